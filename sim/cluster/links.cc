// How the GPUs of nodes are linked, by name.

#include <array>
#include <map>

#include "sim/cluster/simulation.h"

namespace prorata::sim::cluster {
namespace {

namespace placement = policy::placement;

// V100s of a DGX-1 in a hybrid cube mesh: the number of NVLinks of each pair, 0 where there is
// none.
constexpr std::array<int32_t, 64> kDgx1Links = {0, 1, 1, 2, 2, 0, 0, 0,  //
                                                1, 0, 2, 1, 0, 2, 0, 0,  //
                                                1, 2, 0, 2, 0, 0, 1, 0,  //
                                                2, 1, 2, 0, 0, 0, 0, 1,  //
                                                2, 0, 0, 0, 0, 1, 1, 2,  //
                                                0, 2, 0, 0, 1, 0, 2, 1,  //
                                                0, 0, 1, 0, 1, 2, 0, 2,  //
                                                0, 0, 0, 1, 2, 1, 2, 0};

// GB/s each way: an NVLink of the second generation, and PCIe 3.0 with 16 lanes where there is
// none.
constexpr int32_t kNvlinkGbps = 25;
constexpr int32_t kPcieGbps = 12;
constexpr int32_t kAcrossSocketsGbps = 8;

}  // namespace

std::vector<int32_t> LinksOf(const std::string& links) {
  std::vector<int32_t> bandwidth(64);
  for (int a = 0; a < 8; ++a) {
    for (int b = 0; b < 8; ++b) {
      const bool same_socket = a / 4 == b / 4;
      const int32_t pcie = same_socket ? kPcieGbps : kAcrossSocketsGbps;
      const int32_t nvlinks = links == "dgx1" ? kDgx1Links[a * 8 + b] : 0;
      bandwidth[a * 8 + b] = nvlinks > 0 ? nvlinks * kNvlinkGbps : pcie;
    }
  }
  return bandwidth;
}

void AddNodes(const Nodes& nodes, placement::Cluster* cluster) {
  std::map<std::string, uint16_t> shapes;
  for (const Node& node : nodes.nodes) {
    placement::NodeSpec spec = node.spec;
    if (!node.links.empty() && node.links != "even") {
      auto [at, added] = shapes.try_emplace(node.links);
      if (added) {
        at->second = cluster->AddShape(placement::Shape(spec.gpu_count, LinksOf(node.links),
                                                        cluster->workload().weight_of_gpus()));
      }
      spec.shape = at->second;
    }
    cluster->AddNode(spec);
  }
}

}  // namespace prorata::sim::cluster
