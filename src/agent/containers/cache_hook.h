#pragma once

// What a container engine runs as the share's hook while it makes a container (OCI createRuntime:
// the root file system is there, no program of it has run): the libraries that the share brings are
// listed in the container's ld.so.cache, as NVIDIA's update-ldcache does.
//
// It runs as the engine's user, outside of the container, on files that are the image's: paths are
// resolved within the container's root, nothing of it is executed, links are not followed, and only
// a regular etc/ld.so.cache is replaced, by rename. A program of prorata's own; no agent.

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace prorata::agent {

// `state`: what the engine writes to a hook (its "bundle" is used). `libraries`: paths in the
// container. Without a cache there is nothing to do: the loader looks into its folders then.
// "hook": what could not be done, and was left as it is; a container is as good without.
Status UpdateLoaderCache(std::string_view state, const std::vector<std::string>& libraries);

}  // namespace prorata::agent
