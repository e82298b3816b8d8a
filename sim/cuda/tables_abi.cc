// cuGetExportTable: the private tables that NVIDIA's libraries ask for by UUID, as far as they are
// known to be needed (found by running those libraries on a logging stand-in). All others are
// refused: a table that answered success for slots it does not implement would make callers trust
// outputs nobody set.
//
// Unless noted, slot 0 is the table's size in bytes, and slots that are not implemented answer
// CUDA_ERROR_NOT_SUPPORTED.

#include <pthread.h>
#include <unistd.h>

#include <cstring>

#include "generated/cuda_abi.h"
#include "sim/cuda/context/context.h"
#include "sim/cuda/module/function.h"
#include "sim/cuda/module/integrity.h"

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

template <typename Function>
void* Slot(Function* function) {
  return reinterpret_cast<void*>(function);
}

template <size_t N>
void* Size() {
  return reinterpret_cast<void*>(N * sizeof(void*));
}

CUresult Unknown() { return CUDA_ERROR_NOT_SUPPORTED; }

// --- 6bd5fb6c-...: what cudart itself needs ----------------------------------------------------

// The primary context's handle, equal to what retaining it gives, without making it: or looking at
// the devices would cost every one of them a context.
CUresult PrimaryHandle(CUcontext* out, CUdevice device) {
  if (CUresult result = EnterDevice(device)) return result;
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = HandleOf(&D().device(device).primary);
  return CUDA_SUCCESS;
}

CUresult LoadFromWrapper(CUmodule* module, const void* wrapper) {
  return cuModuleLoadData(module, wrapper);
}
CUresult LoadFromWrapperWithExtras(CUmodule* module, const void* wrapper, void*, void*, void*) {
  return cuModuleLoadData(module, wrapper);
}
CUresult LoadFromHeader(const void* header, CUmodule* module, void*, void*, void*) {
  return cuModuleLoadData(module, header);
}
CUresult AfterLoad(void*) { return CUDA_SUCCESS; }

// cudart 13.2 asks at its start, before it looks at any device, and gives up on a refusal. It takes
// no notice of what is left in its arguments (found by trying; cudart 13.0 never asks).
CUresult AtStart() { return CUDA_SUCCESS; }

void* g_runtime_table[] = {Size<13>(),
                           Slot(LoadFromWrapper),
                           Slot(PrimaryHandle),
                           Slot(Unknown),
                           Slot(Unknown),
                           Slot(Unknown),
                           Slot(LoadFromWrapperWithExtras),
                           Slot(AfterLoad),
                           Slot(LoadFromHeader),
                           Slot(Unknown),
                           Slot(Unknown),
                           Slot(Unknown),
                           Slot(AtStart)};

// --- a094798c-...: flags by which a profiler would be called at runtime calls ------------------

constexpr size_t kRuntimeCallbackFlags = 4096;  // fewer than about 600 crash cudart 13.0
constexpr size_t kOtherFlags = 64;              // at least 14, or cudart refuses the driver

CUresult RuntimeCallbackFlags(uint32_t** flags, size_t* count) {
  static uint32_t none[kRuntimeCallbackFlags];
  *flags = none;
  *count = kRuntimeCallbackFlags;
  return CUDA_SUCCESS;
}
CUresult OtherFlags(uint32_t** flags, size_t* count) {
  static uint32_t none[kOtherFlags];
  *flags = none;
  *count = kOtherFlags;
  return CUDA_SUCCESS;
}

void* g_profiler_table[] = {Size<7>(),       Slot(Unknown), Slot(RuntimeCallbackFlags),
                            Slot(Unknown),   Slot(Unknown), Slot(Unknown),
                            Slot(OtherFlags)};

// --- 42d85a81-...: thread-local data of tools ---------------------------------------------------

CUresult ToolsThreadData(void** out) {
  *out = nullptr;
  return CUDA_SUCCESS;
}

void* g_tools_table[] = {Size<4>(), Slot(Unknown), Slot(ToolsThreadData), Slot(Unknown)};

// --- c693336e-...: context-local storage; no size in slot 0 -------------------------------------

// 0 and -1 mean the current context (-1: seen by the lupine project).
bool StorageContext(CUcontext ctx, CUcontext* out) {
  if (ctx && ctx != reinterpret_cast<CUcontext>(-1)) {
    *out = ctx;
    return true;
  }
  Thread& self = Self();
  if (self.stack.empty() || !self.stack.back()) return false;
  *out = HandleOf(self.stack.back());
  return true;
}

CUresult StoragePut(CUcontext ctx, void* key, void* value, ContextStorage::Destructor destructor) {
  if (!Initialized()) return CUDA_ERROR_NOT_INITIALIZED;
  CUcontext owner;
  if (!StorageContext(ctx, &owner)) return CUDA_ERROR_INVALID_CONTEXT;
  return D().storage.Put(owner, key, value, destructor);
}
CUresult StorageDelete(CUcontext ctx, void* key) {
  if (!Initialized()) return CUDA_ERROR_NOT_INITIALIZED;
  CUcontext owner;
  if (!StorageContext(ctx, &owner)) return CUDA_ERROR_INVALID_CONTEXT;
  return D().storage.Delete(owner, key);
}
CUresult StorageGet(void** value, CUcontext ctx, void* key) {
  if (!Initialized()) return CUDA_ERROR_NOT_INITIALIZED;
  CUcontext owner;
  if (!StorageContext(ctx, &owner)) return CUDA_ERROR_INVALID_CONTEXT;
  return D().storage.Get(value, owner, key);
}

void* g_storage_table[] = {Slot(StoragePut), Slot(StorageDelete), Slot(StorageGet)};

// --- 263e8860-...: checks of a context ----------------------------------------------------------

CUresult CheckContext(CUcontext, uint32_t* result, void**) {
  *result = 0;
  return CUDA_SUCCESS;
}
CUresult CheckNothing() { return CUDA_SUCCESS; }

void* g_check_table[] = {Size<4>(), Slot(Unknown), Slot(CheckContext), Slot(CheckNothing)};

// --- d4082055-...: is this NVIDIA's driver? (integrity.h) ---------------------------------------

CUresult Integrity(uint32_t version, uint64_t unix_time, uint64_t* out);

void* g_integrity_table[] = {Size<3>(), Slot(Integrity), Slot(Unknown)};

CUresult Integrity(uint32_t version, uint64_t unix_time, uint64_t* out) {
  int driver_version = 0;
  cuDriverGetVersion(&driver_version);
  std::vector<IntegrityDevice> devices;
  for (const auto& device : D().devices) {
    devices.push_back({device->uuid, device->pci_domain, device->pci_bus, device->pci_device});
  }
  const IntegrityTables tables = {g_runtime_table, g_integrity_table, g_integrity_table[1]};
  IntegrityAnswer(version, unix_time, static_cast<uint32_t>(driver_version),
                  static_cast<uint32_t>(getpid()), static_cast<uint32_t>(pthread_self()), tables,
                  devices, out);
  return CUDA_SUCCESS;
}

// --- 21318c60-...: tokens that name a context (every GEMM of cuBLAS asks) or a stream -----------

CUresult ContextToken(CUcontext ctx, uint64_t* out) {
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  Context* found;
  if (CUresult result = LiveContext(ctx, &found)) return result;
  *out = found->id;
  return CUDA_SUCCESS;
}

// cuBLAS 11.11, 12.9 and 13.4 on a stream of the program's, before they choose a workspace: slot 51
// turns the stream into a token (without a word on its size: a smaller table makes them call
// address 0), slot 39 that token into another. Both are opaque, eight bytes, and differ from stream
// to stream; a refusal becomes CUBLAS_STATUS_INTERNAL_ERROR.
CUresult StreamToken(CUcontext, CUstream stream, uint64_t* out) {
  unsigned long long id;
  if (CUresult result = cuStreamGetId(stream, &id)) return result;
  *out = id;
  return CUDA_SUCCESS;
}
CUresult TokenOfStreamToken(CUcontext, uint64_t token, uint64_t* out) {
  if (CUresult result = EnterCall()) return result;
  *out = token;
  return CUDA_SUCCESS;
}

constexpr size_t kTokenSlots = 64;

void** TokenTable() {
  static void* table[kTokenSlots];
  static const bool filled = [] {
    for (void*& slot : table) slot = Slot(Unknown);
    table[0] = Size<kTokenSlots>();
    table[4] = Slot(ContextToken);
    table[39] = Slot(TokenOfStreamToken);
    table[51] = Slot(StreamToken);
    return true;
  }();
  static_cast<void>(filled);
  return table;
}

// --- 6e163fbe-...: walks the functions of a module (cuFFT); answers 1 ---------------------------

using FunctionVisitor = void (*)(void* user, CUfunction function);

int WalkFunctions(CUcontext, CUmodule module, FunctionVisitor visit, void* user) {
  unsigned count = 0;
  if (cuModuleGetFunctionCount(&count, module) != CUDA_SUCCESS || count == 0) return 1;
  std::vector<CUfunction> functions(count);
  if (cuModuleEnumerateFunctions(functions.data(), count, module) != CUDA_SUCCESS) return 1;
  for (CUfunction function : functions) visit(user, function);
  return 1;
}

void* g_walk_table[] = {Size<8>(),     Slot(Unknown), Slot(Unknown), Slot(Unknown),
                        Slot(Unknown), Slot(Unknown), Slot(Unknown), Slot(WalkFunctions)};

// --- 1734dc26-...: two numbers, unknown which ----------------------------------------------------

// cuBLASLt 12.9 and 13.4 take the table for granted (without it they read address 0) and ask slot
// 4, but are content with a refusal there.
void* g_numbers_table[] = {Size<8>(),     Slot(Unknown), Slot(Unknown), Slot(Unknown),
                           Slot(Unknown), Slot(Unknown), Slot(Unknown), Slot(Unknown)};

// --- 7cb63f9b-...: what the driver has in place of CUPTI's own functions -------------------------

// libcupti 13.2 asks at each of its calls (JAX asks its version), and where the table is refused it
// calls itself until the stack ends. By its size this one has none: CUPTI uses its own. What it
// then needs to trace anything are tables that are refused.
void* g_cupti_table[] = {Size<1>()};

struct NamedTable {
  unsigned char uuid[16];
  void** table;
};

const NamedTable kTables[] = {
    {{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d,
      0xf9},
     g_runtime_table},
    {{0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a,
      0x66},
     g_profiler_table},
    {{0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec,
      0xdc},
     g_tools_table},
    {{0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95,
      0x93},
     g_storage_table},
    {{0x26, 0x3e, 0x88, 0x60, 0x7c, 0xd2, 0x61, 0x43, 0x92, 0xf6, 0xbb, 0xd5, 0x00, 0x6d, 0xfa,
      0x7e},
     g_check_table},
    {{0xd4, 0x08, 0x20, 0x55, 0xbd, 0xe6, 0x70, 0x4b, 0x8d, 0x34, 0xba, 0x12, 0x3c, 0x66, 0xe1,
      0xf2},
     g_integrity_table},
    {{0x21, 0x31, 0x8c, 0x60, 0x97, 0x14, 0x32, 0x48, 0x8c, 0xa6, 0x41, 0xff, 0x73, 0x24, 0xc8,
      0xf2},
     TokenTable()},
    {{0x6e, 0x16, 0x3f, 0xbe, 0xb9, 0x58, 0x44, 0x4d, 0x83, 0x5c, 0xe1, 0x82, 0xaf, 0xf1, 0x99,
      0x1e},
     g_walk_table},
    {{0x17, 0x34, 0xdc, 0x26, 0x80, 0x0d, 0x47, 0x45, 0x87, 0x26, 0xc0, 0xf1, 0xe7, 0xdd, 0x8b,
      0xca},
     g_numbers_table},
    {{0x7c, 0xb6, 0x3f, 0x9b, 0x9c, 0xa4, 0x8e, 0x42, 0xa4, 0x84, 0xbe, 0xb6, 0x6e, 0x6a, 0xed,
      0x7f},
     g_cupti_table},
};

}  // namespace

CUresult cuGetExportTable(const void** ppExportTable, const CUuuid* pExportTableId) {
  if (!ppExportTable || !pExportTableId) return CUDA_ERROR_INVALID_VALUE;
  *ppExportTable = nullptr;
  for (const NamedTable& entry : kTables) {
    if (std::memcmp(entry.uuid, pExportTableId->bytes, sizeof(entry.uuid)) != 0) continue;
    *ppExportTable = entry.table;
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}
