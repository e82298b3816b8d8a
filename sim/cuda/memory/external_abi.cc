// External memory (external.h). Of the kinds of handles there are, an opaque file descriptor is the
// one that can be without a graphics API: to the machine it is the descriptor of memory that some
// process shares (core/machine_shared.cc), whoever made it.

#include "sim/cuda/memory/external.h"

#include <sys/mman.h>
#include <unistd.h>

#include <utility>

#include "generated/cuda_abi.h"
#include "sim/cuda/context/context.h"
#include "sim/cuda/from_c.h"
#include "sim/cuda/graph/capture.h"
#include "sim/cuda/memory/ipc.h"
#include "sim/cuda/memory/memory.h"

namespace prorata::simgpu::driver {
namespace {

// Held by the import and by each view.
struct Imported {
  explicit Imported(SharedMemory memory) : shared(std::move(memory)) {}
  Imported(const Imported&) = delete;
  Imported& operator=(const Imported&) = delete;
  ~Imported() { D().machine->DropShare(shared.share); }
  SharedMemory shared;
};

class View : public ExternalView {
 public:
  View(std::shared_ptr<Imported> memory, uint64_t address)
      : memory_(std::move(memory)), address_(address) {}
  View(const View&) = delete;
  View& operator=(const View&) = delete;
  ~View() override { munmap(reinterpret_cast<void*>(address_), memory_->shared.length_bytes); }

  uint64_t address() const { return address_; }

 private:
  std::shared_ptr<Imported> memory_;
  uint64_t address_;
};

struct External {
  Context* ctx = nullptr;
  uint64_t bytes = 0;  // as the program said
  std::shared_ptr<Imported> memory;
};

struct Buffer {
  Context* ctx = nullptr;
  std::shared_ptr<View> view;
};

// Leaked, like the Driver; under its mutex.
struct Externals {
  std::map<const void*, std::unique_ptr<External>> imports;
  std::map<uint64_t, Buffer> buffers;  // by address
};
Externals& Imports() {
  static auto* const externals = new Externals;
  return *externals;
}

CUresult Find(CUexternalMemory handle, External** out) {
  const auto found = Imports().imports.find(handle);
  if (found == Imports().imports.end()) return CUDA_ERROR_INVALID_HANDLE;
  *out = found->second.get();
  return CUDA_SUCCESS;
}

// Null: no addresses left.
std::shared_ptr<View> Map(const External& external) {
  const uint64_t address = MapShared(external.memory->shared);
  return address == 0 ? nullptr : std::make_shared<View>(external.memory, address);
}

bool LiesWithin(const External& external, uint64_t offset, uint64_t bytes) {
  return offset <= external.bytes && bytes <= external.bytes - offset;
}

}  // namespace

bool IsExternalBuffer(uint64_t address) { return Imports().buffers.contains(address); }

bool FreeExternalBuffer(uint64_t address) {
  if (Imports().buffers.erase(address) == 0) return false;
  D().memory.erase(address);
  return true;
}

void DropExternal(Context* ctx) {
  for (auto at = Imports().buffers.begin(); at != Imports().buffers.end();) {
    const auto buffer = at++;
    if (buffer->second.ctx == ctx) FreeExternalBuffer(buffer->first);
  }
  std::erase_if(Imports().imports, [&](const auto& entry) { return entry.second->ctx == ctx; });
}

}  // namespace prorata::simgpu::driver

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

PRORATA_ENUMS_FROM_C CUresult cuImportExternalMemory(
    CUexternalMemory* extMem_out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC* memHandleDesc) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (!extMem_out || !memHandleDesc) return CUDA_ERROR_INVALID_VALUE;
  const CUDA_EXTERNAL_MEMORY_HANDLE_DESC& desc = *memHandleDesc;
  const bool known = (desc.flags & ~unsigned{CUDA_EXTERNAL_MEMORY_DEDICATED}) == 0;
  if (desc.size == 0 || !known) return CUDA_ERROR_INVALID_VALUE;
  if (desc.type < CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD ||
      desc.type > CU_EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // The others are of another operating system or of interfaces that are not here.
  if (desc.type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD) return CUDA_ERROR_NOT_SUPPORTED;
  std::lock_guard lock(D().mutex);
  auto shared = D().machine->ImportDescriptor(desc.handle.fd, D().process);
  if (!shared) {
    return shared.error() == Code::kInvalidValue ? CUDA_ERROR_INVALID_HANDLE
                                                 : FromCode(shared.error());
  }
  auto memory = std::make_shared<Imported>(std::move(*shared));
  const bool fits = desc.size <= memory->shared.length_bytes;
  const bool here = memory->shared.device == D().machine_index[ctx->device];
  if ((!fits && !Broken(Rule::kExternalHasASize)) || !here) return CUDA_ERROR_INVALID_VALUE;
  auto made = std::make_unique<External>();
  made->ctx = ctx;
  made->bytes = desc.size;
  made->memory = std::move(memory);
  // It is the driver's from now on.
  if (!Broken(Rule::kExternalTakesTheDescriptor)) close(desc.handle.fd);
  *extMem_out = reinterpret_cast<CUexternalMemory>(made.get());
  Imports().imports[made.get()] = std::move(made);
  return CUDA_SUCCESS;
}

CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr* devPtr, CUexternalMemory extMem,
                                         const CUDA_EXTERNAL_MEMORY_BUFFER_DESC* bufferDesc) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (!devPtr || !bufferDesc) return CUDA_ERROR_INVALID_VALUE;
  if (bufferDesc->flags != 0 || bufferDesc->size == 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  External* external;
  if (CUresult result = Find(extMem, &external)) return result;
  const bool within = LiesWithin(*external, bufferDesc->offset, bufferDesc->size);
  if (!within && !Broken(Rule::kExternalBuffersLieWithin)) return CUDA_ERROR_INVALID_VALUE;
  auto view = Map(*external);
  if (!view) return CUDA_ERROR_OUT_OF_MEMORY;
  Memory memory;
  memory.kind = Memory::Kind::kImported;
  memory.base = view->address() + bufferDesc->offset;
  memory.bytes = bufferDesc->size;
  memory.ctx = external->ctx;
  memory.device = external->ctx->device;
  AddMemory(memory);
  Imports().buffers[memory.base] = {external->ctx, std::move(view)};
  *devPtr = memory.base;
  return CUDA_SUCCESS;
}

CUresult cuExternalMemoryGetMappedMipmappedArray(
    CUmipmappedArray* mipmap, CUexternalMemory extMem,
    const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC* mipmapDesc) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (!mipmap || !mipmapDesc) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  External* external;
  if (CUresult result = Find(extMem, &external)) return result;
  if (!LiesWithin(*external, mipmapDesc->offset, 1)) return CUDA_ERROR_INVALID_VALUE;
  auto view = Map(*external);
  if (!view) return CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t address = view->address() + mipmapDesc->offset;
  return MapMipmap(external->ctx, mipmapDesc->arrayDesc, mipmapDesc->numLevels, address,
                   external->bytes - mipmapDesc->offset, std::move(view), mipmap);
}

CUresult cuDestroyExternalMemory(CUexternalMemory extMem) {
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  External* external;
  if (CUresult result = Find(extMem, &external)) return result;
  if (Broken(Rule::kExternalOutlivesItsImport)) {
    const Context* const owner = external->ctx;
    std::erase_if(Imports().buffers, [&](const auto& entry) {
      if (entry.second.ctx != owner) return false;
      D().memory.erase(entry.first);
      return true;
    });
  }
  Imports().imports.erase(extMem);
  return CUDA_SUCCESS;
}
