#pragma once

// How a kernel is written for the simulated GPU: the C interface between the simulated driver and a
// *host image*, an ordinary x86-64 shared object that is handed to cuModuleLoadData or
// cuLibraryLoadData as it lies in memory (or in a file, to cuModuleLoad). It stands alone: it needs
// no other header of prorata, and is valid C and C++.
//
// For every kernel NAME the image exports, with C linkage:
//
//   void NAME(const ProrataHostLaunch* launch, void** params);
//       The work of the whole grid. Called once for a launch, on the driver's executor thread, soon
//       after the launch completes in model time, one launch after the other: what is ordered
//       behind it, on the device or in the program, sees what it wrote. params[i] points at the
//       launch's own copy of parameter i. Device pointers can be followed: device memory is mapped
//       at its device address. CUDA calls made here are refused with CUDA_ERROR_NOT_PERMITTED.
//
//   extern const unsigned NAME__param_sizes[];
//       Bytes of each parameter in order, then 0. Required: it is what makes NAME a kernel.
//
//   unsigned long long NAME__duration_ns(const ProrataHostLaunch* launch, void** params);
//       Optional. How long the launch runs alone on the device, in model nanoseconds. Called in the
//       launching thread, at the launch; start_ns and end_ns are 0 then. Without it the driver's
//       cost model for unknown kernels decides.
//
//   unsigned NAME__sm_ppm(const ProrataHostLaunch* launch, void** params);
//       Optional. The part of the device's SMs that the launch fills, in parts per million. Without
//       it: the part that its threads would fill.
//
//   unsigned NAME__rendezvous(const ProrataHostLaunch* launch, void** params,
//                          unsigned long long* number);
//       Optional. With how many launches, itself included, this one meets, as a collective does: of
//       all that say the same number (not 0), in any process and on any device, none ends before
//       all of them have run their time; those on the device meanwhile hold their SMs. Called in
//       the launching thread, at the launch. 0: with none.
//
//   extern unsigned char NAME__device[]; (any size) with a name listed in
//   extern const char* const prorata_globals[]; ending with a null pointer
//       Optional. Names of the image's data symbols that cuModuleGetGlobal finds.

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ProrataHostLaunch {
  unsigned struct_bytes;  // sizeof(ProrataHostLaunch) of the driver: fields are only ever added
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;  // dynamic shared memory asked for
  unsigned sm_count;      // SMs of the device
  unsigned reserved;
  // When the launch ran, in model nanoseconds of the simulated machine's clock, the same for all
  // processes on it: what a kernel on a GPU would read from %globaltimer first and last.
  unsigned long long start_ns;
  unsigned long long end_ns;
} ProrataHostLaunch;

#ifdef __cplusplus
}
#endif
