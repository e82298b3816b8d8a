// Loading code into a context, and the limits of a context that cost device memory.

#include "client/code/image_variables.h"
#include "client/code/implicit_allocations.h"
#include "client/memory/allocations.h"
#include "client/memory/memory.h"
#include "client/session/share.h"

namespace prorata::client {
namespace {

// Any code at all takes a slab, but for what fits into one that the context has already.
constexpr uint64_t kMinCodeBytes = kSlabBytes;

template <typename Call, typename Undo, typename Key>
CUresult Take(const Place& place, uint64_t expected_bytes, uint64_t certain_bytes, Call call,
              Undo undo, Key key) {
  struct All {
    Call call;
    Undo undo;
    Key key;
  } all{call, undo, key};
  return TakeImplicit(place, expected_bytes, certain_bytes,
                      {[](void* data) { return static_cast<All*>(data)->call(); },
                       [](void* data) { static_cast<All*>(data)->undo(); },
                       [](void* data) { return static_cast<All*>(data)->key(); }, &all});
}

uint64_t HandleKey(Space space, const void* handle) {
  return KeyOf(space, reinterpret_cast<uint64_t>(handle));
}

template <typename Call, typename Undo, typename Key>
CUresult Load(const void* image, Call call, Undo undo, Key key) {
  const Place place = Governed() ? CurrentPlace() : Place{};
  if (place.device == kNoDevice) return call();
  const uint64_t heaps = TakeExpectedHeaps(place.device);
  const uint64_t variables = VariableBytes(image);
  const CUresult result =
      Take(place, kMinCodeBytes + heaps + variables, variables, call, undo, key);
  if (result != CUDA_SUCCESS) ExpectHeap(place.device, heaps);
  return result;
}

template <typename Call>
CUresult LoadModule(CUmodule* module, const void* image, Call call) {
  return Load(
      image, call, [=] { PRORATA_REAL(cuModuleUnload)(*module); },
      [=] { return HandleKey(Space::kModule, *module); });
}

// A library takes memory when it is loaded only where code is loaded eagerly.
bool LoadsEagerly() {
  CUmoduleLoadingMode mode;
  const OwnCalls own;
  return PRORATA_REAL(cuModuleGetLoadingMode)(&mode) == CUDA_SUCCESS &&
         mode == CU_MODULE_EAGER_LOADING;
}

template <typename Call>
CUresult LoadLibrary(CUlibrary* library, const void* image, Call call) {
  if (!Governed() || !LoadsEagerly()) return call();
  return Load(
      image, call, [=] { PRORATA_REAL(cuLibraryUnload)(*library); },
      [=] { return HandleKey(Space::kLibrary, *library); });
}

template <typename Call>
CUresult Unload(uint64_t key, Call call) {
  if (!Governed()) return call();
  const InFlightEpoch moving;
  const Allocation allocation = ForgetForFree(key);
  const CUresult result = call();
  AfterFree(key, allocation, result);
  return result;
}

uint64_t Attribute(CUdevice_attribute attribute, CUdevice ordinal) {
  int value = 0;
  const OwnCalls own;
  return PRORATA_REAL(cuDeviceGetAttribute)(&value, attribute, ordinal) == CUDA_SUCCESS && value > 0
             ? static_cast<uint64_t>(value)
             : 0;
}

// A stack is there for every thread that the device can hold at once.
uint64_t StackBytes(uint32_t device, uint64_t of_each) {
  const CUdevice ordinal = g_share.ordinal_of_index[device];
  const uint64_t threads = Attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, ordinal) *
                           Attribute(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, ordinal);
  uint64_t bytes;
  return __builtin_mul_overflow(of_each, threads, &bytes) ? ~uint64_t{0} : bytes;
}

CUresult SetLimit(CUlimit limit, size_t value) {
  const auto call = [=] { return PRORATA_REAL(cuCtxSetLimit)(limit, value); };
  const bool heap = limit == CU_LIMIT_PRINTF_FIFO_SIZE || limit == CU_LIMIT_MALLOC_HEAP_SIZE;
  const bool stack = limit == CU_LIMIT_STACK_SIZE;
  // The device runtime's take what no document says, so nothing is expected, and all is measured.
  const bool runtime = limit == CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT ||
                       limit == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH;
  const Place place = Governed() && (heap || stack || runtime) ? CurrentPlace() : Place{};
  size_t before = 0;
  if (place.device == kNoDevice || PRORATA_REAL(cuCtxGetLimit)(&before, limit) != CUDA_SUCCESS) {
    return call();
  }
  const uint64_t key = KeyOf(
      Space::kLimit, reinterpret_cast<uint64_t>(place.context) + static_cast<uint64_t>(limit));
  uint64_t more = 0;
  if (value > before && !runtime) {
    more = heap ? value - before : StackBytes(place.device, value - before);
    if (more > ~uint64_t{0} - kSlabBytes) return CUDA_ERROR_OUT_OF_MEMORY;
    more = RoundUp(more, kSlabBytes);
  } else if (value < before) {
    // What is left of it is measured as if it were new.
    AfterFree(key, ForgetForFree(key), CUDA_SUCCESS);
  }
  const CUresult result = Take(
      place, more, 0, call, [=] { PRORATA_REAL(cuCtxSetLimit)(limit, before); },
      [=] { return key; });
  if (result == CUDA_SUCCESS && heap) ExpectHeap(place.device, more);
  return result;
}

}  // namespace
}  // namespace prorata::client

using namespace prorata::client;

CUresult cuModuleLoad(CUmodule* module, const char* fname) {
  return LoadModule(module, nullptr, [=] { return PRORATA_REAL(cuModuleLoad)(module, fname); });
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return LoadModule(module, image, [=] { return PRORATA_REAL(cuModuleLoadData)(module, image); });
}

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int numOptions,
                            CUjit_option* options, void** optionValues) {
  return LoadModule(module, image, [=] {
    return PRORATA_REAL(cuModuleLoadDataEx)(module, image, numOptions, options, optionValues);
  });
}

CUresult cuModuleLoadFatBinary(CUmodule* module, const void* fatCubin) {
  return LoadModule(module, fatCubin,
                    [=] { return PRORATA_REAL(cuModuleLoadFatBinary)(module, fatCubin); });
}

CUresult cuModuleUnload(CUmodule hmod) {
  return Unload(HandleKey(Space::kModule, hmod),
                [=] { return PRORATA_REAL(cuModuleUnload)(hmod); });
}

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* jitOptions,
                           void** jitOptionsValues, unsigned int numJitOptions,
                           CUlibraryOption* libraryOptions, void** libraryOptionValues,
                           unsigned int numLibraryOptions) {
  return LoadLibrary(library, code, [=] {
    return PRORATA_REAL(cuLibraryLoadData)(library, code, jitOptions, jitOptionsValues,
                                           numJitOptions, libraryOptions, libraryOptionValues,
                                           numLibraryOptions);
  });
}

CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* fileName, CUjit_option* jitOptions,
                               void** jitOptionsValues, unsigned int numJitOptions,
                               CUlibraryOption* libraryOptions, void** libraryOptionValues,
                               unsigned int numLibraryOptions) {
  return LoadLibrary(library, nullptr, [=] {
    return PRORATA_REAL(cuLibraryLoadFromFile)(library, fileName, jitOptions, jitOptionsValues,
                                               numJitOptions, libraryOptions, libraryOptionValues,
                                               numLibraryOptions);
  });
}

CUresult cuLibraryUnload(CUlibrary library) {
  return Unload(HandleKey(Space::kLibrary, library),
                [=] { return PRORATA_REAL(cuLibraryUnload)(library); });
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value) { return SetLimit(limit, value); }
