#pragma once

#include "sim/cuda/state.h"
#include "sim/cuda/stream/operation.h"

namespace prorata::simgpu::driver {

// What the name of a copy call says about its two sides.
enum class Side { kHost, kDevice, kAny };

// A copy of `bytes` bytes. CUDA_ERROR_INVALID_VALUE when a device side is not device memory as far
// as the copy goes. D().mutex held.
CUresult MakeCopy(uint64_t dst, Side dst_side, uint64_t src, Side src_side, size_t bytes,
                  CopyCall* out);
// A box between pitched memory or arrays. D().mutex held.
CUresult MakeBoxCopy(const CUDA_MEMCPY3D& box, CopyCall* out);

// How a copy call ends:
//   kAsync      returns at once. From pageable memory the bytes are taken before it returns; to
//               pageable memory it waits, as the driver does.
//   kBlocking   returns when the copy is done, except between device addresses, where the driver
//               does not wait either.
enum class Ending { kAsync, kBlocking };

// Puts the copy on the stream of the call. `stream` as the program gave it.
CUresult CopyOnHost(const CopyCall& copy, CUstream stream, bool per_thread, Ending ending);

// The same box in the shapes of the other ABIs.
CUDA_MEMCPY3D BoxOf(const CUDA_MEMCPY2D& copy);
CUDA_MEMCPY3D BoxOf(const CUDA_MEMCPY3D_PEER& copy);
// `bytes` of a one-dimensional array, from `offset`.
CUDA_MEMCPY3D RowBox(size_t bytes);

}  // namespace prorata::simgpu::driver
