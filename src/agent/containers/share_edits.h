#pragma once

#include <string>

#include "agent/containers/cdi.h"
#include "agent/share/share.h"
#include "base/result.h"

namespace prorata::agent {

// What makes a container one of this share: its folder, the client library in the driver's place
// under all names that a program asks for, and the driver's own files under none. Reads the
// driver's folders. "driver_files", "device_nodes".
Result<CdiEdits> EditsOf(const ShareConfig& config, const std::string& nvml_path,
                         const std::string& library_folder);

// Adds the hook by which the libraries that these edits mount are listed in the container's
// ld.so.cache (cache_hook.h). `program`: prorata's own.
void AddCacheHook(const std::string& program, CdiEdits* edits);

}  // namespace prorata::agent
