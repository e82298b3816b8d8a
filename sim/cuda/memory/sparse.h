#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "sim/cuda/memory/array.h"

// Arrays without memory of their own: the program maps physical memory (cuMemCreate) behind them,
// tile by tile (CUDA_ARRAY3D_SPARSE) or all at once (CUDA_ARRAY3D_DEFERRED_MAPPING).
//
// Such an array has addresses in which nothing is ever mapped. They say, as those of any array do,
// where in it a copy begins; the copy itself looks up, row by row and in stream order, which memory
// is behind them (SparseBytes). What is written where nothing is mapped is lost, and zeros are read
// there: on a GPU that is undefined.
//
//   level with at least one tile in each dimension    tiles, row by row, slice by slice
//   smaller levels                                    the mip tail: bytes, level after level; one
//                                                     for each layer, of plain arrays one for all
//   deferred                                          one piece
//
// Each tile holds its memory (Physical::mappings), as a mapping does. Memory goes with its holder's
// context, so tiles name it by handle, and one that is gone is as one that was never mapped.

namespace prorata::simgpu::driver {

inline constexpr uint64_t kTileBytes = uint64_t{64} << 10;

struct SparseTile {
  uint64_t memory = 0;  // handle; 0: not mapped
  uint64_t offset = 0;
};

struct SparseLevel {
  uint64_t address = 0;
  size_t pitch = 0;
  uint64_t slice = 0;
  size_t layers = 1;  // or slices of a 3D level
  // Of a level with tiles.
  size_t columns = 0;
  size_t rows = 0;
  size_t first_tile = 0;
  // Of one in the mip tail.
  uint64_t tail_offset = 0;
};

struct Sparse {
  Context* ctx = nullptr;
  bool deferred = false;
  bool flat = false;  // 2D or 2D layered: each layer has tiles of its own
  bool gone = false;
  unsigned element_bytes = 0;
  size_t tile[3] = {1, 1, 1};  // elements
  uint64_t address = 0;
  uint64_t bytes = 0;
  std::vector<SparseLevel> levels;
  size_t tail_level = 0;  // the first in the mip tail; levels.size(): none
  bool single_tail = true;
  uint64_t tail_bytes = 0;  // of one, in whole tiles
  size_t tail_first_tile = 0;
  size_t tails = 0;
  std::vector<SparseTile> tiles;
};

// All need D().mutex, but for SparseBytes.

// For the levels of a mipmapped array, or of an array, that have no addresses yet; gives them some.
// CUDA_ERROR_INVALID_VALUE for shapes that cannot be sparse.
CUresult MakeSparse(Context* ctx, const std::vector<Array*>& levels, bool mipmapped,
                    std::shared_ptr<Sparse>* out);
// The array is destroyed, and holds nothing any more.
void DropSparse(Sparse* sparse);
// The same for maps and unmaps that were not reached, of a context that goes.
void ForgetTileChanges(Context* ctx);

struct TileChange {
  std::shared_ptr<Sparse> sparse;
  size_t tile = 0;
  SparseTile to;
};
// Keeps what is to be mapped until its time has come; the number says which changes. They must be
// applied, or dropped, or go with the context of their stream.
uint64_t KeepTileChanges(Context* ctx, std::vector<TileChange> changes);
void DropTileChanges(uint64_t number);
// In stream order. Locks D().mutex.
void ApplyTileChanges(uint64_t number);

CUresult FindSparse(const CUarrayMapInfo& info, std::shared_ptr<Sparse>* out);

// What is behind an address, and for how many bytes at most from there on: itself for memory, null
// for a tile that is not mapped. D().mutex held.
uint8_t* SparseBytes(uint64_t address, size_t* bytes);
// Whether there is any such array; else SparseBytes need not be asked.
bool AnySparse();

}  // namespace prorata::simgpu::driver
