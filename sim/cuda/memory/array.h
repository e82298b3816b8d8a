#pragma once

#include <cstdint>
#include <memory>

#include "sim/cuda/state.h"

namespace prorata::simgpu::driver {

struct Sparse;

// A CUDA array: rows one behind the other in device memory. The layout is the simulation's own, as
// a program never sees it.
struct Array {
  Context* ctx = nullptr;
  CUDA_ARRAY3D_DESCRIPTOR descriptor{};
  uint64_t address = 0;
  size_t pitch = 0;  // bytes of a row
  size_t rows = 1;   // of a layer
  size_t layers = 1;
  bool owns_memory = true;         // a level of a mipmapped array does not
  std::shared_ptr<Sparse> sparse;  // what the program maps memory behind

  uint64_t slice() const { return uint64_t{pitch} * rows; }
};

// Bytes of one element, 0 for a format that the simulation does not know.
unsigned ElementBytes(CUarray_format format, unsigned channels);

// D().mutex held.
CUresult FindArray(CUarray handle, Array** out);
void ForgetArrays(Context* ctx);

}  // namespace prorata::simgpu::driver
