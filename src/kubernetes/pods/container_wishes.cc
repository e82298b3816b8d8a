#include "kubernetes/pods/container_wishes.h"

#include <nlohmann/json.hpp>

namespace prorata::kubernetes {
using nlohmann::json;

Result<std::map<std::string, ShareWish>> WishesOf(const json& pod,
                                                  std::span<const ContainerRequest> requests) {
  std::vector<std::string> containers;
  for (const ContainerRequest& request : requests) {
    if (request.kind != ContainerKind::kInit) containers.push_back(request.name);
  }
  Annotations texts;
  const json::json_pointer where("/metadata/annotations");
  if (pod.contains(where) && pod.at(where).is_object()) {
    for (const auto& [key, value] : pod.at(where).items()) {
      if (value.is_string()) texts[key] = value.get<std::string>();
    }
  }
  auto wishes = ReadWishes(texts, containers, kContainerEntries);
  if (!wishes) return wishes;
  for (auto& [container, wish] : *wishes) {
    wish.memory_bytes.reset();
    wish.compute_percent.reset();
  }
  return wishes;
}

}  // namespace prorata::kubernetes
