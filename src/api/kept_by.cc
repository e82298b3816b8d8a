#include "api/kept_by.h"

#include <nlohmann/json.hpp>

namespace prorata::api {

std::string FormatKeptBy(const KeptBy& kept_by) {
  switch (kept_by.kind) {
    case KeptBy::Kind::kProcess:
      return "process " + std::to_string(kept_by.pid);
    case KeptBy::Kind::kFile:
      return "'" + kept_by.file + "'";
    case KeptBy::Kind::kHold:
      break;
  }
  return "`prorata create`";
}

nlohmann::json ToJson(const KeptBy& kept_by) {
  switch (kept_by.kind) {
    case KeptBy::Kind::kProcess:
      return {{"kind", "process"}, {"pid", kept_by.pid}};
    case KeptBy::Kind::kFile:
      return {{"kind", "file"}, {"file", kept_by.file}};
    case KeptBy::Kind::kHold:
      break;
  }
  return {{"kind", "hold"}};
}

KeptBy KeptByFromJson(const nlohmann::json& json) {
  const auto kind = json.at("kind").get<std::string>();
  if (kind == "file") {
    return {.kind = KeptBy::Kind::kFile, .file = json.at("file").get<std::string>()};
  }
  if (kind == "hold") return {.kind = KeptBy::Kind::kHold};
  return {.kind = KeptBy::Kind::kProcess, .pid = json.at("pid").get<int64_t>()};
}

}  // namespace prorata::api
