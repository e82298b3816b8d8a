#pragma once

#include "client/nvml/share.h"

namespace prorata::client {

// nvmlSystemGetProcessName for the share's processes; NVML_ERROR_NOT_FOUND for all others.
nvmlReturn_t NameOf(const NvmlShare& share, unsigned int pid, char* name, unsigned int length);

}  // namespace prorata::client
