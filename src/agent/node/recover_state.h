#pragma once

#include <string>

#include "agent/node/state_file.h"

namespace prorata::agent {

// What a damaged state said, as far as the shares' own files say it, too: names, devices, limits,
// requests (of memory, too) and weights. All else is as if it had not been asked for; nobody owns
// them but the agent's user. A share of `prorata create` is kept on, others end with their last
// member.
SavedState RecoverState(const std::string& runtime_dir);

// Renames the damaged file to PATH.damaged, in the place of one that was set aside before. "state".
Status SetAside(const std::string& path);

// A file in the folder of a share that is kept without programs: what its limits file does not say.
// It is empty, or for a share of whole devices has kExclusiveMark in it.
inline constexpr char kExclusiveMark[] = "exclusive";
std::string HeldMark(const std::string& share_folder);

// The files of a share, also of one that was being made, and its folder if nothing else is in it.
void RemoveShareFolder(const std::string& share_folder);

}  // namespace prorata::agent
