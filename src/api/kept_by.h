#pragma once

// What keeps a share there while no program runs on it: a process, a file (a
// resource-config.txt), or `prorata create`, until the share is removed by its name.

#include <cstdint>
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

}  // namespace prorata::api
