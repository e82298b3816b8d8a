// What a program can ask about an address.

#include <cstring>

#include "generated/cuda_abi.h"
#include "sim/cuda/context/context.h"
#include "sim/cuda/memory/memory.h"
#include "sim/cuda/memory/pool.h"
#include "sim/cuda/memory/vmm.h"

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

template <typename T>
CUresult Put(void* data, T value) {
  // T is often a pointer, and its own bytes are meant.
  std::memcpy(data, &value, sizeof(T));  // NOLINT(bugprone-sizeof-expression)
  return CUDA_SUCCESS;
}

struct Range {
  uint64_t base;
  uint64_t bytes;
};

// Of mapped memory, the reservation that it is mapped in.
Range RangeOf(const Memory& memory, uint64_t address) {
  Range range = {memory.base, memory.bytes};
  if (memory.kind == Memory::Kind::kMapped) FindReservation(address, &range.base, &range.bytes);
  return range;
}

CUresult Attribute(void* data, CUpointer_attribute attribute, const Memory* memory,
                   CUdeviceptr ptr) {
  if (!data) return CUDA_ERROR_INVALID_VALUE;
  if (!memory) return CUDA_ERROR_INVALID_VALUE;
  const bool on_device = memory->on_device();
  const bool managed = memory->kind == Memory::Kind::kManaged;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return Put(data, HandleOf(memory->ctx));
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return Put(data, on_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      return Put(data, ptr);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (on_device && !managed) return CUDA_ERROR_INVALID_VALUE;
      return Put(data, ptr);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return Put(data, int{memory->sync_memops});
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
      return Put(data, memory->buffer_id);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      // Four bytes: cudart 11.8, 12 and 13 read as many, and set none before.
      return Put(data, static_cast<unsigned>(managed));
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return Put(data, memory->device);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return Put(data, static_cast<unsigned char>(memory->kind == Memory::Kind::kDevice));
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return Put(data, static_cast<unsigned char>(0));
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return Put(data, RangeOf(*memory, ptr).base);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return Put(data, static_cast<size_t>(RangeOf(*memory, ptr).bytes));
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
      return Put(data, memory->base);
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
      return Put(data, static_cast<size_t>(memory->bytes));
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return Put(data, static_cast<unsigned char>(1));
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return Put(data, uint64_t{0});
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return Put(data, CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return Put(data, memory->pool ? HandleOf(memory->pool) : nullptr);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// What cuPointerGetAttributes gives for an address that is no CUDA memory.
CUresult Absent(void* data, CUpointer_attribute attribute) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return Put(data, 0);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return Put(data, int{CU_DEVICE_INVALID});
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return Put(data, 0);
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return Put(data, 0u);
    case CU_POINTER_ATTRIBUTE_MAPPED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
      return Put(data, static_cast<unsigned char>(0));
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS:
      return CUDA_ERROR_INVALID_VALUE;
    default:
      return Put(data, uint64_t{0});
  }
}

}  // namespace

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr ptr) {
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  return Attribute(data, attribute, FindMemory(ptr), ptr);
}

CUresult cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute* attributes,
                                void** data, CUdeviceptr ptr) {
  if (CUresult result = EnterCall()) return result;
  if (!attributes || !data || numAttributes == 0) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  const Memory* memory = FindMemory(ptr);
  for (unsigned i = 0; i < numAttributes; ++i) {
    if (!data[i]) return CUDA_ERROR_INVALID_VALUE;
    const bool failed = !memory || Attribute(data[i], attributes[i], memory, ptr) != CUDA_SUCCESS;
    if (!failed) continue;
    if (CUresult result = Absent(data[i], attributes[i])) return result;
  }
  return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute, CUdeviceptr ptr) {
  if (CUresult result = EnterCall()) return result;
  if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  Memory* memory = FindMemory(ptr);
  if (!memory) return CUDA_ERROR_INVALID_VALUE;
  unsigned flag;
  std::memcpy(&flag, value, sizeof(flag));
  memory->sync_memops = flag != 0;
  return CUDA_SUCCESS;
}
