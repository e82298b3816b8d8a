#pragma once

// Shares that wait in line to be made (`--wait`): "create_share" with a "wait" is answered by a
// WaitingShare, once if it has to wait and again when its place changes, and then by the share or
// an error. The line is in the reply to "list_shares", too, in its order
// (docs/reference/control.md).
//
// Who gives `since_ms` back to another agent, after the death of the one that said it, has its
// place by it. Whoever waits is out of the line at once when its connection ends, and no share is
// made for it. Pure; thread-safe.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/fraction.h"
#include "base/result.h"

namespace prorata::api {

// The most that wait at once; who comes then is refused.
inline constexpr size_t kMaxWaiting = 96;

struct StartWait {
  std::optional<uint64_t> within_ms = {};  // absent: as long as it takes
  std::optional<uint64_t> since_ms = {};   // absent: now
};

struct WaitingShare {
  uint32_t place = 0;  // from 1
  uint64_t since_ms = 0;
  uint64_t waited_ms = 0;
  int64_t pid = 0;
  uint32_t owner_uid = 0;
  std::string name = {};
  std::vector<std::string> gpus = {};
  uint32_t gpu_count = 1;
  std::optional<uint64_t> memory_bytes = {};
  Fraction compute_request = {};
  bool exclusive = false;
  std::string why = {};
};

nlohmann::json ToJson(const WaitingShare& waiting);
// "agent_reply", as other replies.
Result<WaitingShare> WaitingShareFromJson(const nlohmann::json& json);

// "first", "2nd", "3rd", "11th".
std::string PlaceInWords(uint32_t place);

}  // namespace prorata::api
