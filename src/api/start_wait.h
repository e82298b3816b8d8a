#pragma once

// Shares that wait in line to be made (`--wait`), in messages of the control socket.
//
//   request   {"op": "create_share", "share": {...}, "wait": {"within_ms"?: N, "since_ms"?: N}}
//   replies   {"waiting": WAITING}, once if it has to wait and again when its place changes; then
//   the
//             share or an error, as without "wait"
//   WAITING   {"place", "since_ms", "waited_ms", "pid", "owner_uid", "name"?, "gpu"?: [GPU, ...],
//             "gpus"?, "memory_bytes"?, "compute_request", "exclusive"?: true, "why"}
//
// "place" is 1 for who is next. "since_ms" is the time of CLOCK_BOOTTIME at which it came; who
// gives it back to another agent, after the death of the one that said it, has its place by it. The
// line is in the reply to "list_shares", too, as "waiting": [WAITING, ...] in its order.
//
// Whoever waits is out of the line at once when its connection ends, and no share is made for it.
// Pure; thread-safe.

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
  int64_t pid = 0;  // who waits
  uint32_t owner_uid = 0;
  std::string name = {};                      // empty: it will be made up
  std::vector<std::string> gpus = {};         // as asked for; empty: the agent chooses
  uint32_t gpu_count = 1;                     // how many
  std::optional<uint64_t> memory_bytes = {};  // of each GPU; absent: GPUs differ, or exclusive
  Fraction compute_request = {};
  bool exclusive = false;
  std::string why = {};  // for people: what it waits for
};

nlohmann::json ToJson(const StartWait& wait);
nlohmann::json ToJson(const WaitingShare& waiting);
// "malformed" and "agent_reply", as other requests and replies.
Result<StartWait> StartWaitFromJson(const nlohmann::json& json);
Result<WaitingShare> WaitingShareFromJson(const nlohmann::json& json);

// "first", "2nd", "3rd", "11th".
std::string PlaceInWords(uint32_t place);

}  // namespace prorata::api
