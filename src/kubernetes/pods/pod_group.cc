#include "kubernetes/pods/pod_group.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "kubernetes/pods/annotations.h"

namespace prorata::kubernetes {
namespace {

constexpr size_t kMaxSize = 1'000;

}  // namespace

Result<std::optional<PodGroup>> GroupOf(const nlohmann::json& pod) {
  const auto name = AnnotationOf(pod, kGroupAnnotation);
  const auto size = AnnotationOf(pod, kGroupSizeAnnotation);
  if (!name && !size) return std::nullopt;
  if (!name || !size || name->empty()) {
    return Fail("bad_annotation", std::string("the annotations ") + kGroupAnnotation + " and " +
                                      kGroupSizeAnnotation + " go together");
  }
  PodGroup group;
  const auto [end, error] = std::from_chars(size->data(), size->data() + size->size(), group.size);
  if (error != std::errc() || end != size->data() + size->size() || group.size < 1 ||
      group.size > kMaxSize) {
    return Fail("bad_annotation", std::string("the annotation ") + kGroupSizeAnnotation + " is '" +
                                      *size + "', which is no whole number from 1 to " +
                                      std::to_string(kMaxSize));
  }
  group.name = pod.at("metadata").value("namespace", "") + "/" + *name;
  return group;
}

}  // namespace prorata::kubernetes
