#include "sim/cuda/memory/sparse.h"

#include <sys/mman.h>

#include <algorithm>

#include "sim/cuda/memory/arena.h"
#include "sim/cuda/memory/memory.h"
#include "sim/cuda/memory/vmm.h"

namespace prorata::simgpu::driver {
namespace {

// Leaked, like the Driver.
struct Known {
  std::map<uint64_t, Sparse*> by_address;
  struct Pending {
    Context* ctx;  // of the stream
    std::vector<TileChange> changes;
  };
  std::map<uint64_t, Pending> pending;  // by number
};

Known& K() {
  static Known* const known = new Known;
  return *known;
}
std::atomic<size_t> g_sparse_arrays;

size_t Tiles(size_t extent, size_t tile) { return (extent + tile - 1) / tile; }

// Of 64 KiB, as other interfaces' sparse images of standard block shapes have them.
void SetTile(Sparse* sparse) {
  struct Shape {
    unsigned element_bytes;
    size_t flat[2], deep[3];
  };
  static constexpr Shape kShapes[] = {{1, {256, 256}, {64, 32, 32}},
                                      {2, {256, 128}, {32, 32, 32}},
                                      {4, {128, 128}, {32, 32, 16}},
                                      {8, {128, 64}, {32, 16, 16}},
                                      {16, {64, 64}, {16, 16, 16}}};
  for (const Shape& shape : kShapes) {
    if (shape.element_bytes != sparse->element_bytes) continue;
    if (sparse->flat) {
      std::copy_n(shape.flat, 2, sparse->tile);
    } else {
      std::copy_n(shape.deep, 3, sparse->tile);
    }
  }
}

bool HasWholeTile(const Sparse& sparse, const Array& level) {
  return level.descriptor.Width >= sparse.tile[0] && level.rows >= sparse.tile[1] &&
         (sparse.flat || level.layers >= sparse.tile[2]);
}

void LayTiles(const std::vector<Array*>& arrays, bool mipmapped, Sparse* sparse) {
  const size_t layers = sparse->flat ? arrays[0]->layers : 1;
  sparse->single_tail = !mipmapped || layers == 1;
  sparse->tail_level = arrays.size();
  size_t tiles = 0;
  for (size_t i = 0; i < arrays.size(); ++i) {
    const Array& array = *arrays[i];
    SparseLevel& level = sparse->levels[i];
    if (sparse->tail_level == arrays.size() && HasWholeTile(*sparse, array)) {
      level.columns = Tiles(array.descriptor.Width, sparse->tile[0]);
      level.rows = Tiles(array.rows, sparse->tile[1]);
      level.first_tile = tiles;
      tiles += level.columns * level.rows * Tiles(array.layers, sparse->tile[2]);
      continue;
    }
    sparse->tail_level = std::min(sparse->tail_level, i);
    level.tail_offset = sparse->tail_bytes;
    sparse->tail_bytes += sparse->single_tail ? level.slice * level.layers : level.slice;
  }
  sparse->tail_bytes = Tiles(sparse->tail_bytes, kTileBytes) * kTileBytes;
  sparse->tails = sparse->tail_bytes == 0 ? 0 : sparse->single_tail ? 1 : layers;
  sparse->tail_first_tile = tiles;
  sparse->tiles.resize(tiles + sparse->tails * (sparse->tail_bytes / kTileBytes));
}

void LetTileGo(const SparseTile& tile) {
  auto found = V().physical.find(tile.memory);
  if (tile.memory != 0 && found != V().physical.end()) LetGo(found->second.get());
}

// Which tile an offset into a level is in, where in it, and how far it goes on from there.
size_t TileAt(const Sparse& sparse, const SparseLevel& level, uint64_t offset, uint64_t* inside,
              size_t* bytes) {
  const size_t z = offset / level.slice;
  const size_t y = offset % level.slice / level.pitch;
  const size_t x = offset % level.pitch;
  if (level.columns == 0) {
    const bool own = !sparse.single_tail;
    const uint64_t at = level.tail_offset + (own ? offset % level.slice : offset);
    *inside = at % kTileBytes;
    *bytes = std::min<size_t>(*bytes, std::min(kTileBytes - *inside, level.pitch - x));
    return sparse.tail_first_tile + (own ? z : 0) * (sparse.tail_bytes / kTileBytes) +
           at / kTileBytes;
  }
  const size_t width = sparse.tile[0] * sparse.element_bytes;
  const size_t height = sparse.tile[1];
  const size_t depth = sparse.tile[2];
  *inside = ((z % depth) * height + y % height) * width + x % width;
  *bytes = std::min({*bytes, width - x % width, level.pitch - x});
  return level.first_tile + (z / depth * level.rows + y / height) * level.columns + x / width;
}

}  // namespace

CUresult MakeSparse(Context* ctx, const std::vector<Array*>& arrays, bool mipmapped,
                    std::shared_ptr<Sparse>* out) {
  const CUDA_ARRAY3D_DESCRIPTOR& shape = arrays[0]->descriptor;
  const unsigned both = CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING;
  // "either a 2D, 2D layered or 3D CUDA array" (cuMemMapArrayAsync)
  if (shape.Height == 0 || (shape.Flags & CUDA_ARRAY3D_CUBEMAP) || (shape.Flags & both) == both) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  auto sparse = std::make_shared<Sparse>();
  sparse->ctx = ctx;
  sparse->deferred = shape.Flags & CUDA_ARRAY3D_DEFERRED_MAPPING;
  sparse->flat = shape.Depth == 0 || (shape.Flags & CUDA_ARRAY3D_LAYERED);
  sparse->element_bytes = ElementBytes(shape.Format, shape.NumChannels);
  for (const Array* array : arrays) {
    SparseLevel& level = sparse->levels.emplace_back();
    level.address = sparse->bytes;  // an offset until there are addresses
    level.pitch = array->pitch;
    level.slice = array->slice();
    level.layers = array->layers;
    sparse->bytes += (level.slice * level.layers + 511) / 512 * 512;
  }
  sparse->bytes = Tiles(sparse->bytes, kTileBytes) * kTileBytes;
  if (sparse->deferred) {
    sparse->tiles.resize(1);
    sparse->tail_level = arrays.size();
  } else {
    SetTile(sparse.get());
    LayTiles(arrays, mipmapped, sparse.get());
  }
  sparse->address = ReserveAnywhere(sparse->bytes, kTileBytes, 0);
  if (sparse->address == 0) return CUDA_ERROR_OUT_OF_MEMORY;
  for (size_t i = 0; i < arrays.size(); ++i) {
    sparse->levels[i].address += sparse->address;
    arrays[i]->address = sparse->levels[i].address;
    arrays[i]->sparse = sparse;
  }
  Memory memory;
  memory.base = sparse->address;
  memory.bytes = sparse->bytes;
  memory.ctx = ctx;
  memory.device = ctx->device;
  AddMemory(memory);
  K().by_address[sparse->address] = sparse.get();
  g_sparse_arrays.fetch_add(1);
  *out = std::move(sparse);
  return CUDA_SUCCESS;
}

void DropSparse(Sparse* sparse) {
  sparse->gone = true;
  for (const SparseTile& tile : sparse->tiles) LetTileGo(tile);
  sparse->tiles.clear();
  K().by_address.erase(sparse->address);
  D().memory.erase(sparse->address);
  munmap(reinterpret_cast<void*>(sparse->address), sparse->bytes);
  g_sparse_arrays.fetch_sub(1);
}

uint64_t KeepTileChanges(Context* ctx, std::vector<TileChange> changes) {
  for (const TileChange& change : changes) {
    if (change.to.memory != 0) ++V().physical.at(change.to.memory)->mappings;
  }
  const uint64_t number = D().next_id++;
  K().pending[number] = {ctx, std::move(changes)};
  return number;
}

void DropTileChanges(uint64_t number) {
  auto found = K().pending.find(number);
  if (found == K().pending.end()) return;
  for (const TileChange& change : found->second.changes) LetTileGo(change.to);
  K().pending.erase(found);
}

void ForgetTileChanges(Context* ctx) {
  std::vector<uint64_t> numbers;
  for (const auto& [number, pending] : K().pending) {
    if (pending.ctx == ctx) numbers.push_back(number);
  }
  for (uint64_t number : numbers) DropTileChanges(number);
}

void ApplyTileChanges(uint64_t number) {
  std::lock_guard lock(D().mutex);
  auto found = K().pending.find(number);
  if (found == K().pending.end()) return;
  for (const TileChange& change : found->second.changes) {
    SparseTile old = change.to;
    if (!change.sparse->gone) std::swap(old, change.sparse->tiles[change.tile]);
    LetTileGo(old);
  }
  K().pending.erase(found);
}

bool AnySparse() { return g_sparse_arrays.load() != 0; }

uint8_t* SparseBytes(uint64_t address, size_t* bytes) {
  auto after = K().by_address.upper_bound(address);
  if (after == K().by_address.begin()) return reinterpret_cast<uint8_t*>(address);
  const Sparse& sparse = *std::prev(after)->second;
  if (address - sparse.address >= sparse.bytes) return reinterpret_cast<uint8_t*>(address);
  size_t tile = 0;
  uint64_t inside = address - sparse.address;
  if (sparse.deferred) {
    *bytes = std::min<size_t>(*bytes, sparse.bytes - inside);
  } else {
    auto level = std::find_if(sparse.levels.rbegin(), sparse.levels.rend(),
                              [&](const SparseLevel& each) { return each.address <= address; });
    tile = TileAt(sparse, *level, address - level->address, &inside, bytes);
  }
  const SparseTile& at = sparse.tiles[tile];
  auto physical = V().physical.find(at.memory);
  if (at.memory == 0 || physical == V().physical.end()) return nullptr;
  uint8_t* view = ViewOf(physical->second.get());
  return view ? view + at.offset + inside : nullptr;
}

}  // namespace prorata::simgpu::driver
