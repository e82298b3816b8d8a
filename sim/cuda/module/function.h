#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sim/cuda/module/image.h"
#include "sim/cuda/state.h"
#include "sim/cuda/stream/operation.h"
#include "sim/host_kernel.h"

namespace prorata::simgpu::driver {

using HostKernelFunction = void (*)(const ProrataHostLaunch*, void**);
using HostDurationFunction = unsigned long long (*)(const ProrataHostLaunch*, void**);
using HostSmFunction = unsigned (*)(const ProrataHostLaunch*, void**);
using HostRendezvousFunction = unsigned (*)(const ProrataHostLaunch*, void**, unsigned long long*);

// A kernel of a module or library. CUfunction and CUkernel are the address of this one object:
// cudart 13 passes a CUkernel to cuLaunchKernel, cast to CUfunction.
struct Function {
  std::string name;
  std::weak_ptr<Module> owner;  // the same as module
  Module* module = nullptr;
  std::vector<ImageKernel::Parameter> parameters;
  bool parameters_known = false;
  int registers = 32;  // a host kernel has none: a plausible small kernel's
  int shared_bytes = 0;
  int local_bytes = 0;
  int max_threads = 1024;
  HostKernelFunction host_kernel = nullptr;  // null: computes nothing
  HostDurationFunction host_duration = nullptr;
  HostSmFunction host_sm = nullptr;
  HostRendezvousFunction host_rendezvous = nullptr;
  // Settings may change while another thread launches.
  std::atomic<int> max_dynamic_shared_bytes = 49152;
  std::atomic<int> carveout = -1;
  std::atomic<bool> non_portable_cluster = false;
  CUfunc_cache cache_config = CU_FUNC_CACHE_PREFER_NONE;
  std::atomic<bool> loaded = false;  // has been launched, or loaded by name
};

// A loaded image: a CUmodule (of one context), or a CUlibrary (of the process). A library is its
// own module in every context.
struct Module : std::enable_shared_from_this<Module> {
  Context* ctx = nullptr;  // null for a library
  bool is_library = false;
  Image image;
  void* host_object = nullptr;                                 // dlopen handle of a host ELF image
  std::map<std::string, std::shared_ptr<Function>> functions;  // created as asked for
  std::map<std::pair<Context*, std::string>, uint64_t> globals;
  std::map<Context*, uint64_t> code;  // memory of its code, by context; see code_memory.h
  ~Module();
};

struct KernelCost {
  int64_t duration_ns = 0;
  uint32_t sm_ppm = 0;
  uint64_t rendezvous = 0;  // as Work's
  uint32_t rendezvous_size = 0;
};

// How long a launch takes and what it fills. A host kernel may say; otherwise the cost model of
// launches that compute nothing:
//
//   An SM holds 2048 threads (32 blocks at most). A launch of t threads fills t / (SMs * 2048) of
//   the device, at most all of it, and runs in waves: each wave is 3 us, on top of 2 us.
//
// On `sm_count` of the device's `of` SMs.
KernelCost CostOf(const KernelCall& call, uint32_t sm_count, uint32_t of);

// How many blocks of so many threads, each with so much dynamic shared memory, an SM holds at once.
int BlocksPerSm(const Function& function, int block_threads, size_t dynamic_shared);

// Runs the host kernel; on the executor.
void RunHostKernel(const KernelCall& call, unsigned sm_count, const Action& action);

// Look-ups; D().mutex held. The function is created when the image has it: CUDA_ERROR_NOT_FOUND
// when not.
CUresult FindFunction(Module* module, const std::string& name, std::shared_ptr<Function>* out);
CUresult FindFunction(CUfunction function, std::shared_ptr<Function>* out);
CUresult FindModule(CUmodule module, std::shared_ptr<Module>* out);

// Loads what an image in memory has for the device; D().mutex not held.
CUresult LoadModule(const void* data, CUdevice device, std::shared_ptr<Module>* out);
CUresult ReadWholeFile(const char* path, std::vector<char>* out);
// The address of a global in the context; memory is taken for it at the first call.
CUresult FindGlobal(Module* module, Context* ctx, const char* name, uint64_t* address,
                    size_t* bytes);
// Ends a module: its functions and globals are gone. D().mutex held.
void ForgetModule(Module* module);

}  // namespace prorata::simgpu::driver
