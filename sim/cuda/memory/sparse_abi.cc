// Mapping memory behind sparse arrays, and what a program must know of them to do so.

#include <bit>
#include <utility>

#include "generated/cuda_abi.h"
#include "sim/cuda/context/context.h"
#include "sim/cuda/from_c.h"
#include "sim/cuda/graph/capture.h"
#include "sim/cuda/memory/sparse.h"
#include "sim/cuda/memory/vmm.h"
#include "sim/cuda/stream/operation.h"

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

// The tiles that a map or unmap is of, in the order of the memory behind them.
using Tiles = std::vector<size_t>;

bool Aligned(size_t offset, size_t extent, size_t tile, size_t tiles) {
  return offset % tile == 0 && extent % tile == 0 && extent > 0 && offset / tile < tiles &&
         extent / tile <= tiles - offset / tile;
}

CUresult TilesOfLevel(const Sparse& sparse, const CUarrayMapInfo& info, Tiles* tiles) {
  const auto& box = info.subresource.sparseLevel;
  if (box.level >= sparse.tail_level) return CUDA_ERROR_INVALID_VALUE;
  const SparseLevel& level = sparse.levels[box.level];
  if (!Aligned(box.offsetX, box.extentWidth, sparse.tile[0], level.columns) ||
      !Aligned(box.offsetY, box.extentHeight, sparse.tile[1], level.rows)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  size_t first = box.layer;
  size_t count = 1;
  if (sparse.flat) {
    if (box.layer >= level.layers || box.offsetZ != 0 || box.extentDepth != 1) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  } else {
    const size_t slices = (level.layers + sparse.tile[2] - 1) / sparse.tile[2];
    if (box.layer != 0 || !Aligned(box.offsetZ, box.extentDepth, sparse.tile[2], slices)) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    first = box.offsetZ / sparse.tile[2];
    count = box.extentDepth / sparse.tile[2];
  }
  for (size_t z = first; z < first + count; ++z) {
    for (size_t y = 0; y < box.extentHeight / sparse.tile[1]; ++y) {
      for (size_t x = 0; x < box.extentWidth / sparse.tile[0]; ++x) {
        tiles->push_back(level.first_tile +
                         (z * level.rows + box.offsetY / sparse.tile[1] + y) * level.columns +
                         box.offsetX / sparse.tile[0] + x);
      }
    }
  }
  return CUDA_SUCCESS;
}

CUresult TilesOfTail(const Sparse& sparse, const CUarrayMapInfo& info, Tiles* tiles) {
  const auto& tail = info.subresource.miptail;
  if (tail.layer >= sparse.tails || tail.offset % kTileBytes != 0 || tail.size % kTileBytes != 0 ||
      tail.size == 0 || tail.offset > sparse.tail_bytes ||
      tail.size > sparse.tail_bytes - tail.offset) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const size_t first =
      sparse.tail_first_tile + (tail.layer * sparse.tail_bytes + tail.offset) / kTileBytes;
  for (size_t i = 0; i < tail.size / kTileBytes; ++i) tiles->push_back(first + i);
  return CUDA_SUCCESS;
}

PRORATA_ENUMS_FROM_C CUresult TilesOf(const Sparse& sparse, const CUarrayMapInfo& info,
                                      Tiles* tiles) {
  if (sparse.deferred) {  // all of it: the subresource is not looked at
    tiles->push_back(0);
    return CUDA_SUCCESS;
  }
  switch (info.subresourceType) {
    case CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL:
      return TilesOfLevel(sparse, info, tiles);
    case CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL:
      return TilesOfTail(sparse, info, tiles);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// The memory of a map is a tile pool of the stream's device, with room for all the tiles.
PRORATA_ENUMS_FROM_C CUresult CheckMemory(const CUarrayMapInfo& info, const Sparse& sparse,
                                          size_t tiles, int device) {
  const uint64_t handle = info.memHandle.memHandle;
  if (info.memOperationType == CU_MEM_OPERATION_TYPE_UNMAP) {
    return handle == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  if (info.memOperationType != CU_MEM_OPERATION_TYPE_MAP ||
      info.memHandleType != CU_MEM_HANDLE_TYPE_GENERIC) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  Physical* physical;
  if (CUresult result = FindPhysical(handle, &physical)) return result;
  const bool pool = physical->prop.allocFlags.usage & CU_MEM_CREATE_USAGE_TILE_POOL;
  if (!pool && !Broken(Rule::kTilesAreOfAPool)) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t bytes = sparse.deferred ? sparse.bytes : tiles * kTileBytes;
  if (physical->device != device || info.offset % kTileBytes != 0 ||
      info.offset > physical->bytes || bytes > physical->bytes - info.offset) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult AddChanges(const CUarrayMapInfo& info, int device, std::vector<TileChange>* changes) {
  // "must have exactly one bit set, and the corresponding device must match the device associated
  // with the stream"
  if (std::popcount(info.deviceBitMask) != 1 || std::countr_zero(info.deviceBitMask) != device ||
      info.flags != 0 || info.reserved[0] != 0 || info.reserved[1] != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::shared_ptr<Sparse> sparse;
  if (CUresult result = FindSparse(info, &sparse)) return result;
  if (sparse->ctx->device != device) return CUDA_ERROR_INVALID_VALUE;
  Tiles tiles;
  if (CUresult result = TilesOf(*sparse, info, &tiles)) return result;
  if (CUresult result = CheckMemory(info, *sparse, tiles.size(), device)) return result;
  const uint64_t memory = info.memHandle.memHandle;
  for (size_t i = 0; i < tiles.size(); ++i) {
    const uint64_t offset = memory == 0 ? 0 : info.offset + i * kTileBytes;
    changes->push_back({sparse, tiles[i], {memory, offset}});
  }
  return CUDA_SUCCESS;
}

CUresult MapArrays(const CUarrayMapInfo* list, unsigned count, CUstream handle, bool per_thread) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (!list || count == 0) return CUDA_ERROR_INVALID_VALUE;
  StreamRef stream;
  uint64_t number;
  {
    std::lock_guard lock(D().mutex);
    if (CUresult result = FindStream(handle, per_thread, ctx, &stream)) return result;
    if (CUresult result = CheckNotCapturing(stream.get())) return result;
    std::vector<TileChange> changes;
    for (unsigned i = 0; i < count; ++i) {
      if (CUresult result = AddChanges(list[i], stream->ctx->device, &changes)) return result;
    }
    number = KeepTileChanges(stream->ctx, std::move(changes));
  }
  if (Broken(Rule::kTilesInStreamOrder)) return ApplyTileChanges(number), CUDA_SUCCESS;
  uint64_t sequence = 0;
  CUresult result = Enqueue(stream, TilesCall{number}, &sequence);
  if (result == CUDA_SUCCESS && sequence == 0) result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (result != CUDA_SUCCESS) {
    std::lock_guard lock(D().mutex);
    DropTileChanges(number);
  }
  return result;
}

}  // namespace

CUresult cuMemMapArrayAsync(CUarrayMapInfo* mapInfoList, unsigned int count, CUstream hStream) {
  return MapArrays(mapInfoList, count, hStream, false);
}
CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo* mapInfoList, unsigned int count,
                                 CUstream hStream) {
  return MapArrays(mapInfoList, count, hStream, true);
}
