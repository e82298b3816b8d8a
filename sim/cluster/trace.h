#pragma once

// Clusters and workloads as CSV files have them, in the form of the openb trace.
//
// Nodes: sn, cpu_milli, memory_mib, gpu, model, and where there are such columns gpu_memory_mib,
// rack and links (even, dgx1, pcie2x4). Pods: name, cpu_milli, memory_mib, num_gpu, gpu_milli,
// and gpu_spec (models, separated by |), creation_time, deletion_time (seconds), gpu_memory_mib.
// Other columns are ignored. A pod is a share here.
//
// Errors name file and line: "nodes.csv:17: gpu: 'x' is not a whole number from 0 to 16".

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "policy/placement/cluster.h"

namespace prorata::sim::cluster {

struct Node {
  std::string name;
  policy::placement::NodeSpec spec;
  std::string links;  // "" or "even", "dgx1", "pcie2x4"
};

struct Nodes {
  std::vector<Node> nodes;
  std::vector<std::string> models;  // by number

  int64_t GpuMilli() const;
};

struct Pod {
  std::string name;
  policy::placement::Request request;
  uint32_t kind = 0;  // pods that ask for the same have the same
  int64_t arrival_s = 0;
  int64_t run_s = 0;
};

struct Pods {
  std::vector<Pod> pods;
  uint32_t kinds = 0;
  bool has_times = false;
};

// A node without a GPU is refused unless `cpu_nodes`.
Result<Nodes> ReadNodes(const std::string& path, bool cpu_nodes);
// `models`: what gpu_spec may name.
Result<Pods> ReadPods(const std::string& path, const std::vector<std::string>& models);

// Sets the pods' kinds.
void NumberKinds(Pods* pods);

}  // namespace prorata::sim::cluster
