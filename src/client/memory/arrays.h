#pragma once

// How much device memory an array takes. Pure.

#include <cstdint>

#include "generated/cuda_abi.h"

namespace prorata::client {

// Bits of one element (all channels), for block-compressed formats averaged over the block. A
// format that this table does not know counts as the largest there is, 128 bits.
uint32_t BitsPerElement(CUarray_format format, uint32_t channels);

// Bytes of all levels, slices and faces; 0 for arrays that take no memory of their own (sparse and
// deferred ones, whose tiles are mapped from cuMemCreate's memory). Zero heights and depths mean
// one and two dimensions. `levels` is 1 for a plain array; more than the full chain counts as the
// chain. Saturates at 2^63.
uint64_t ArrayBytes(const CUDA_ARRAY3D_DESCRIPTOR& shape, uint32_t levels);

}  // namespace prorata::client
