#include "api/kept_by.h"

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

}  // namespace prorata::api
