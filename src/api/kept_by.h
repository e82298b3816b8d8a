#pragma once

// What keeps a share there while no program runs on it. In JSON {"kind": "process", "pid": N},
// {"kind": "file", "file": PATH} (a resource-config.txt) or {"kind": "hold"}: `prorata create`,
// until the share is removed by its name.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace prorata::api {

struct KeptBy {
  enum class Kind : uint8_t { kProcess, kFile, kHold };
  Kind kind = Kind::kProcess;
  int64_t pid = 0;
  std::string file = {};
};

// "process 12", "'/etc/resource-config.txt'", "`prorata create`".
std::string FormatKeptBy(const KeptBy& kept_by);

nlohmann::json ToJson(const KeptBy& kept_by);
// Throws nlohmann's exception where it is none.
KeptBy KeptByFromJson(const nlohmann::json& json);

}  // namespace prorata::api
