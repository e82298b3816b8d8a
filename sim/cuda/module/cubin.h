#pragma once

#include <cstdint>

#include "sim/cuda/module/image.h"

namespace prorata::simgpu::driver {

bool IsElf(const uint8_t* data);
// Bytes of the ELF file at `data`: one past the last that any of its headers names.
uint64_t ElfBytes(const uint8_t* data);
// Adds the kernels and globals of a cubin. The file must be readable as far as its headers say.
void ReadCubin(const uint8_t* data, Image* image);

}  // namespace prorata::simgpu::driver
