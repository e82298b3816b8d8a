#include "sim/cuda/copy/copy.h"

#include "sim/cuda/context/context.h"
#include "sim/cuda/from_c.h"
#include "sim/cuda/graph/capture.h"
#include "sim/cuda/memory/array.h"
#include "sim/cuda/memory/memory.h"

namespace prorata::simgpu::driver {
namespace {

bool OnDevice(uint64_t address) {
  const Memory* memory = FindMemory(address);
  return memory && memory->on_device();
}

// Which way the bytes go. Between devices any context may copy: without a link of theirs the
// driver takes them over the host.
void SetDirection(CopyCall* copy) {
  const Memory* dst = FindMemory(copy->dst);
  const Memory* src = FindMemory(copy->src);
  const bool to_device = dst && dst->on_device();
  const bool from_device = src && src->on_device();
  if (to_device && from_device) {
    copy->from_device = D().machine_index[src->device];
    copy->to_device = D().machine_index[dst->device];
    const bool same = copy->from_device == copy->to_device;
    copy->direction = same ? WorkKind::kCopyOnDevice : WorkKind::kCopyToPeer;
  } else if (to_device) {
    copy->direction = WorkKind::kCopyToDevice;
  } else {
    copy->direction = from_device ? WorkKind::kCopyToHost : WorkKind::kHost;
  }
}

// A last byte that must be mapped, for a box.
uint64_t Extent3D(size_t pitch, size_t slice, const CopyCall& copy) {
  return (copy.depth - 1) * uint64_t{slice} + (copy.height - 1) * uint64_t{pitch} + copy.width;
}

constexpr size_t kMaxPitch = 2147483647;  // as cuDeviceGetAttribute says

PRORATA_ENUMS_FROM_C bool IsMemoryType(CUmemorytype type) {
  return type >= CU_MEMORYTYPE_HOST && type <= CU_MEMORYTYPE_UNIFIED;
}

struct BoxSide {
  CUmemorytype type;
  uint64_t host;
  uint64_t device;
  CUarray array;
  size_t x, y, z;
  size_t pitch, height;
};

// Where the box begins on one side, and its steps.
CUresult Resolve(const BoxSide& side, const CopyCall& box, uint64_t* base, size_t* pitch,
                 size_t* slice) {
  if (side.type == CU_MEMORYTYPE_ARRAY) {
    Array* array;
    if (CUresult result = FindArray(side.array, &array)) return result;
    const CUDA_ARRAY3D_DESCRIPTOR& shape = array->descriptor;
    if (side.x % ElementBytes(shape.Format, shape.NumChannels) != 0 ||
        side.x + box.width > array->pitch || side.y + box.height > array->rows ||
        side.z + box.depth > array->layers) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *pitch = array->pitch;
    *slice = array->slice();
    *base = array->address;
  } else {
    *base = side.type == CU_MEMORYTYPE_HOST ? side.host : side.device;
    *pitch = side.pitch ? side.pitch : side.x + box.width;
    const size_t rows = side.height ? side.height : side.y + box.height;
    const bool checked = !Broken(Rule::kPitchHoldsRow);
    if (checked &&
        (*pitch > kMaxPitch || *pitch < side.x + box.width || rows < side.y + box.height)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    *slice = *pitch * rows;
  }
  *base += side.z * *slice + side.y * *pitch + side.x;
  return CUDA_SUCCESS;
}

bool IsPinned(uint64_t address) { return FindMemory(address) != nullptr; }

std::shared_ptr<std::vector<uint8_t>> Stage(const CopyCall& copy) {
  auto bytes = std::make_shared<std::vector<uint8_t>>(copy.bytes());
  CopyCall take = copy;
  take.dst = reinterpret_cast<uint64_t>(bytes->data());
  take.dst_pitch = copy.width;
  take.dst_slice = copy.width * copy.height;
  RunCopy(take);
  return bytes;
}

}  // namespace

CUresult MakeCopy(uint64_t dst, Side dst_side, uint64_t src, Side src_side, size_t bytes,
                  CopyCall* out) {
  const bool dst_device = dst_side == Side::kDevice || OnDevice(dst);
  const bool src_device = src_side == Side::kDevice || OnDevice(src);
  if (bytes > 0 && (dst == 0 || src == 0)) return CUDA_ERROR_INVALID_VALUE;
  if (dst_device && !DeviceRangeIsValid(dst, bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (src_device && !DeviceRangeIsValid(src, bytes)) return CUDA_ERROR_INVALID_VALUE;
  // Pinned host memory given as a device address is host memory to the copy engines.
  out->dst = dst;
  out->src = src;
  SetDirection(out);
  out->width = bytes;
  return CUDA_SUCCESS;
}

PRORATA_ENUMS_FROM_C CUresult MakeBoxCopy(const CUDA_MEMCPY3D& box, CopyCall* out) {
  const BoxSide dst = {box.dstMemoryType, AddressOf(box.dstHost), box.dstDevice,
                       box.dstArray,      box.dstXInBytes,        box.dstY,
                       box.dstZ,          box.dstPitch,           box.dstHeight};
  const BoxSide src = {box.srcMemoryType, AddressOf(box.srcHost), box.srcDevice,
                       box.srcArray,      box.srcXInBytes,        box.srcY,
                       box.srcZ,          box.srcPitch,           box.srcHeight};
  if (!IsMemoryType(dst.type) || !IsMemoryType(src.type)) return CUDA_ERROR_INVALID_VALUE;
  if (box.srcLOD != 0 || box.dstLOD != 0) return CUDA_ERROR_INVALID_VALUE;
  out->width = box.WidthInBytes;
  out->height = box.Height;
  out->depth = box.Depth;
  if (out->bytes() == 0) return CUDA_SUCCESS;
  if (CUresult result = Resolve(dst, *out, &out->dst, &out->dst_pitch, &out->dst_slice)) {
    return result;
  }
  if (CUresult result = Resolve(src, *out, &out->src, &out->src_pitch, &out->src_slice)) {
    return result;
  }
  const bool dst_device = dst.type != CU_MEMORYTYPE_HOST && OnDevice(out->dst);
  const bool src_device = src.type != CU_MEMORYTYPE_HOST && OnDevice(out->src);
  if (dst_device && !DeviceRangeIsValid(out->dst, Extent3D(out->dst_pitch, out->dst_slice, *out))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (src_device && !DeviceRangeIsValid(out->src, Extent3D(out->src_pitch, out->src_slice, *out))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if ((dst.type == CU_MEMORYTYPE_DEVICE && !IsPinned(out->dst)) ||
      (src.type == CU_MEMORYTYPE_DEVICE && !IsPinned(out->src))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  SetDirection(out);
  return CUDA_SUCCESS;
}

CUresult CopyOnHost(const CopyCall& copy, CUstream stream, bool per_thread, Ending ending) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  StreamRef target;
  bool pageable_src;
  bool pageable_dst;
  bool always_waits;
  bool capturing;
  {
    std::lock_guard lock(D().mutex);
    if (CUresult result = FindStream(stream, per_thread, ctx, &target)) return result;
    pageable_src = !IsPinned(copy.src);
    pageable_dst = !IsPinned(copy.dst);
    always_waits = SynchronousMemops(*ctx, copy.dst) || SynchronousMemops(*ctx, copy.src) ||
                   Broken(Rule::kDeviceCopyDoesNotWait);
    capturing = target->capture != nullptr;
  }
  if (copy.bytes() == 0) return CUDA_SUCCESS;
  const bool on_device =
      copy.direction == WorkKind::kCopyOnDevice || copy.direction == WorkKind::kCopyToPeer;
  if (ending == Ending::kBlocking) {
    if (CUresult result = CheckCaptureSafe()) return result;
    return (on_device && !always_waits) || Broken(Rule::kSyncCopyWaits)
               ? Enqueue(target, copy)
               : EnqueueAndWait(target, copy);
  }
  if (capturing) return Enqueue(target, copy);
  // Between host addresses, pinned or not, even the asynchronous kind is fully synchronous.
  if (copy.direction == WorkKind::kHost) return EnqueueAndWait(target, copy);
  if (copy.direction == WorkKind::kCopyToHost && pageable_dst &&
      !Broken(Rule::kPageableCopyIsDone)) {
    return EnqueueAndWait(target, copy);
  }
  if (copy.direction == WorkKind::kCopyToDevice && pageable_src &&
      !Broken(Rule::kPageableIsTaken)) {
    CopyCall staged = copy;
    staged.staged = Stage(copy);
    return Enqueue(target, std::move(staged));
  }
  if (copy.direction == WorkKind::kCopyToDevice && Broken(Rule::kPinnedIsReadLate)) {
    CopyCall staged = copy;
    staged.staged = Stage(copy);
    return Enqueue(target, std::move(staged));
  }
  return Enqueue(target, copy);
}

PRORATA_ENUMS_FROM_C CUDA_MEMCPY3D BoxOf(const CUDA_MEMCPY2D& copy) {
  CUDA_MEMCPY3D box{};
  box.srcXInBytes = copy.srcXInBytes;
  box.srcY = copy.srcY;
  box.srcMemoryType = copy.srcMemoryType;
  box.srcHost = copy.srcHost;
  box.srcDevice = copy.srcDevice;
  box.srcArray = copy.srcArray;
  box.srcPitch = copy.srcPitch;
  box.dstXInBytes = copy.dstXInBytes;
  box.dstY = copy.dstY;
  box.dstMemoryType = copy.dstMemoryType;
  box.dstHost = copy.dstHost;
  box.dstDevice = copy.dstDevice;
  box.dstArray = copy.dstArray;
  box.dstPitch = copy.dstPitch;
  box.WidthInBytes = copy.WidthInBytes;
  box.Height = copy.Height;
  box.Depth = 1;
  return box;
}

PRORATA_ENUMS_FROM_C CUDA_MEMCPY3D BoxOf(const CUDA_MEMCPY3D_PEER& copy) {
  CUDA_MEMCPY3D box{};
  box.srcXInBytes = copy.srcXInBytes;
  box.srcY = copy.srcY;
  box.srcZ = copy.srcZ;
  box.srcMemoryType = copy.srcMemoryType;
  box.srcHost = copy.srcHost;
  box.srcDevice = copy.srcDevice;
  box.srcArray = copy.srcArray;
  box.srcPitch = copy.srcPitch;
  box.srcHeight = copy.srcHeight;
  box.dstXInBytes = copy.dstXInBytes;
  box.dstY = copy.dstY;
  box.dstZ = copy.dstZ;
  box.dstMemoryType = copy.dstMemoryType;
  box.dstHost = copy.dstHost;
  box.dstDevice = copy.dstDevice;
  box.dstArray = copy.dstArray;
  box.dstPitch = copy.dstPitch;
  box.dstHeight = copy.dstHeight;
  box.WidthInBytes = copy.WidthInBytes;
  box.Height = copy.Height;
  box.Depth = copy.Depth;
  return box;
}

CUDA_MEMCPY3D RowBox(size_t bytes) {
  CUDA_MEMCPY3D box{};
  box.WidthInBytes = bytes;
  box.Height = 1;
  box.Depth = 1;
  return box;
}

}  // namespace prorata::simgpu::driver
