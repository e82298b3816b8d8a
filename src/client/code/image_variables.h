#pragma once

// What the variables of a module image take, read from the image before it is loaded. Pure; reads
// no more of the image than the driver must.

#include <cstdint>

namespace prorata::client {

// Bytes of device memory for the variables that an image in memory declares, in whole slabs: large
// ones each by itself, small ones packed. PTX text and cubins say it; 0 for those without
// variables, and for what is not read (fatbins, whose parts are packed).
uint64_t VariableBytes(const void* image);

}  // namespace prorata::client
