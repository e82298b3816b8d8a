#pragma once

// What an agent must know of its shares after it was killed: RUNTIME_DIR/state.json, replaced as a
// whole (written beside, synced, renamed) before whoever asked for a share, or for other terms, has
// the answer. Who the members are stands in the shares' limits files (MemberRow), for that is
// memory: joining waits for no disk.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "agent/runtime/process.h"
#include "agent/share/share.h"
#include "base/result.h"

namespace prorata::agent {

struct SavedShare {
  ShareConfig config;  // its devices by UUID; their indices are this machine's at this moment
  bool ended = false;
  std::optional<Container> container = {};
};

struct SavedState {
  std::vector<SavedShare> shares;
  std::map<std::string, double> overcommit = {};             // by UUID; what is not there is 1
  std::map<std::string, uint32_t> elastic_ceiling_ppm = {};  // likewise
  uint32_t waiting = 0;                                      // shares in line (starts.h)
};

std::string EncodeState(const SavedState& state);
// "state": of another version; "state_damaged": not one at all. With what is wrong.
Result<SavedState> DecodeState(const std::string& text);

// An absent file is an empty state. Errors: "state", "state_damaged".
Result<SavedState> LoadState(const std::string& path);
// `text`: as EncodeState made it.
Status WriteState(const std::string& path, const std::string& text);

}  // namespace prorata::agent
