#pragma once

// What nodes have, and what shares ask of them: the vocabulary of placement.
//
// Compute of a GPU is counted in milli-GPU (1000 is a whole one), CPU in milli-cores, memory in
// MiB. All values are plain data, and everything that reads them is deterministic.

#include <array>
#include <cstdint>
#include <limits>

namespace prorata::policy::placement {

inline constexpr int kGpuMilli = 1000;
inline constexpr int kMaxGpusPerNode = 16;

// Bit i: the node's GPU i.
using GpuMask = uint16_t;

// Bit m: a GPU of model m will do. Models are numbered by whoever reads the cluster, up to 64.
using ModelMask = uint64_t;
inline constexpr int kMaxModels = 64;
inline constexpr ModelMask kAnyModel = std::numeric_limits<ModelMask>::max();

enum class GpuMode : uint8_t {
  kShared,     // takes shares of any size
  kExclusive,  // takes whole GPUs only
};

// What a share asks for. `gpu_count` is 0 for a share without a GPU; each of its GPUs has the same
// part of compute and of memory.
struct Request {
  int32_t cpu_milli = 0;
  int32_t memory_mib = 0;
  int32_t gpu_count = 0;
  int32_t gpu_milli = 0;       // of each GPU, 1 to 1000; 0 without GPUs
  int32_t gpu_memory_mib = 0;  // of each GPU; 0: whatever is there
  int32_t min_bandwidth = 0;   // between any two of its GPUs, in the unit of the node's shape
  ModelMask models = kAnyModel;

  bool operator==(const Request&) const = default;

  bool WholeGpus() const { return gpu_milli == kGpuMilli; }
  int32_t TotalGpuMilli() const { return gpu_count * gpu_milli; }
};

// Labels as KubeShare has them, each an interned name; 0 is no label.
struct Labels {
  uint32_t affinity = 0;       // all shares with this label are on one GPU
  uint32_t anti_affinity = 0;  // no two shares with this label are on one GPU
  uint32_t exclusion = 0;      // the GPU has only shares with this label

  bool operator==(const Labels&) const = default;
  bool Any() const { return affinity != 0 || anti_affinity != 0 || exclusion != 0; }
};

// A node as it is when empty.
struct NodeSpec {
  int32_t cpu_milli = 0;
  int32_t memory_mib = 0;
  int32_t gpu_count = 0;       // up to kMaxGpusPerNode
  int32_t gpu_memory_mib = 0;  // of each GPU; 0: not known, so not limited
  uint8_t model = 0;
  GpuMode mode = GpuMode::kShared;
  uint16_t shape = 0;  // how its GPUs are linked: an index that Cluster::AddShape gave; 0: evenly
  uint32_t rack = 0;   // nodes of one rack are near each other
};

// What is left of a node.
struct NodeState {
  int32_t cpu_left_milli = 0;
  int32_t memory_left_mib = 0;
  uint8_t gpu_count = 0;
  uint8_t model = 0;
  GpuMode mode = GpuMode::kShared;
  bool lost = false;  // takes nothing any more
  uint16_t shape = 0;
  GpuMask exclusive = 0;  // GPUs that have shares with an exclusion label
  GpuMask occupied = 0;   // GPUs that have shares
  std::array<int16_t, kMaxGpusPerNode> gpu_left_milli = {};
  std::array<int32_t, kMaxGpusPerNode> gpu_memory_left_mib = {};

  int32_t TotalGpuLeftMilli() const {
    int32_t total = 0;
    for (int i = 0; i < gpu_count; ++i) total += gpu_left_milli[i];
    return total;
  }
};

// Whether the node has the CPU, the memory and the kind of GPU, its GPUs aside.
inline bool HostFits(const Request& request, const NodeState& node) {
  return !node.lost && node.cpu_left_milli >= request.cpu_milli &&
         node.memory_left_mib >= request.memory_mib;
}

// The GPUs of the node that can each give what the request wants of one.
inline GpuMask FittingGpus(const Request& request, const NodeState& node) {
  if ((request.models >> node.model & 1) == 0) return 0;
  if (node.mode == GpuMode::kExclusive && !request.WholeGpus()) return 0;
  GpuMask fits = 0;
  for (int i = 0; i < node.gpu_count; ++i) {
    const bool enough = node.gpu_left_milli[i] >= request.gpu_milli &&
                        node.gpu_memory_left_mib[i] >= request.gpu_memory_mib;
    fits = static_cast<GpuMask>(fits | enough << i);
  }
  return fits;
}

}  // namespace prorata::policy::placement
