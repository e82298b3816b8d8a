#pragma once

#include <string_view>

#include "sim/cuda/module/image.h"

namespace prorata::simgpu::driver {

// Whether `text` (null-terminated) starts like PTX: blanks, comments, or a directive.
bool LooksLikePtx(const char* text);

// Adds the kernels (with their parameters) and the named globals of PTX text to `image`. Only
// declarations are understood; names already there are kept.
void ReadPtx(std::string_view text, Image* image);

}  // namespace prorata::simgpu::driver
