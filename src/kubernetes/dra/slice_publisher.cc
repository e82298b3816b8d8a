#include "kubernetes/dra/slice_publisher.h"

#include <algorithm>

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

constexpr char kSlices[] = "/apis/resource.k8s.io/v1/resourceslices";

}  // namespace

std::string SlicePublisher::ListPath() const {
  return std::string(kSlices) + "?fieldSelector=metadata.name%3D" + SliceName(node_);
}

Status SlicePublisher::Refresh() {
  known_is_old_ = false;
  auto slice = client_.Get(std::string(kSlices) + "/" + SliceName(node_));
  if (slice) {
    known_ = std::move(*slice);
    generation_ = std::max(generation_, GenerationOf(*known_));
    return {};
  }
  known_.reset();
  // Whoever deleted it may have deleted the node, too.
  owner_.reset();
  if (slice.error().code == "not_found") return {};
  known_is_old_ = true;
  return std::unexpected(slice.error());
}

Result<NodeReference> SlicePublisher::FindNode() {
  if (owner_) return *owner_;
  const auto node = client_.Get("/api/v1/nodes/" + node_);
  if (!node) return std::unexpected(node.error());
  owner_ = NodeReference{node_, node->value(json::json_pointer("/metadata/uid"), "")};
  return *owner_;
}

Status SlicePublisher::Publish(const NodeState& state, const AllocatedClaims& allocated) {
  if (known_is_old_) {
    if (auto ok = Refresh(); !ok) return ok;
  }
  const auto node = FindNode();
  if (!node) return std::unexpected(node.error());
  json devices = SliceDevices(state.devices, state.shares, allocated);
  if (no_taints_) DropTaints(&devices);
  if (known_ && SaysTheSame(*known_, *node, devices)) return {};
  json slice = MakeSlice(*node, devices, generation_ + 1);
  if (known_) {
    slice["metadata"]["resourceVersion"] =
        known_->value(json::json_pointer("/metadata/resourceVersion"), "");
  }
  auto written = known_ ? client_.Put(std::string(kSlices) + "/" + SliceName(node_), slice)
                        : client_.Post(kSlices, slice);
  if (!written) {
    known_is_old_ = true;
    return std::unexpected(written.error());
  }
  known_ = std::move(*written);
  generation_ = GenerationOf(*known_);
  const bool kept = SaysTheSame(*known_, *node, devices);
  if (!kept && DropTaints(&devices) && SaysTheSame(*known_, *node, devices)) no_taints_ = true;
  ++writes_;
  return {};
}

}  // namespace prorata::kubernetes
