#pragma once

// What an agent must know of its shares after it was killed: RUNTIME_DIR/state.json, replaced as a
// whole (written beside, synced, renamed) before anything that depends on it is told to anybody.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "agent/process.h"
#include "agent/share.h"
#include "base/result.h"

namespace prorata::agent {

struct SavedMember {
  uint32_t slot = 0;
  ProcessId process;
  bool departed = false;
};

struct SavedShare {
  ShareConfig config;  // its devices by UUID; their indices are this machine's at this moment
  bool ended = false;
  std::vector<SavedMember> members;
};

struct SavedState {
  std::vector<SavedShare> shares;
  std::map<std::string, double> overcommit = {};             // by UUID; what is not there is 1
  std::map<std::string, uint32_t> elastic_ceiling_ppm = {};  // likewise
};

std::string EncodeState(const SavedState& state);
// "state" with what is wrong.
Result<SavedState> DecodeState(const std::string& text);

// An absent file is an empty state. Errors: "state".
Result<SavedState> LoadState(const std::string& path);
Status SaveState(const std::string& path, const SavedState& state);

}  // namespace prorata::agent
