#include "client/memory/arrays.h"

#include "client/memory/saturated.h"
#include "client/platform/os.h"

namespace prorata::client {
namespace {

bool IsBlockCompressed(CUarray_format format) {
  return format >= CU_AD_FORMAT_BC1_UNORM && format <= CU_AD_FORMAT_BC7_UNORM_SRGB;
}

// Video formats: all planes together; the number of channels says nothing there.
uint32_t BitsOfFixedFormat(CUarray_format format) {
  switch (static_cast<int>(format)) {
    case CU_AD_FORMAT_UNORM_INT8X1:
    case CU_AD_FORMAT_SNORM_INT8X1:
      return 8;
    case CU_AD_FORMAT_NV12:
      return 12;
    case CU_AD_FORMAT_UNORM_INT8X2:
    case CU_AD_FORMAT_SNORM_INT8X2:
    case CU_AD_FORMAT_UNORM_INT16X1:
    case CU_AD_FORMAT_SNORM_INT16X1:
    case CU_AD_FORMAT_NV16:
    case CU_AD_FORMAT_YUY2:
      return 16;
    case CU_AD_FORMAT_P010:
    case CU_AD_FORMAT_P016:
    case CU_AD_FORMAT_Y444_PLANAR8:
    case CU_AD_FORMAT_YUV444_8bit_SemiPlanar:
      return 24;
    case CU_AD_FORMAT_UNORM_INT8X4:
    case CU_AD_FORMAT_SNORM_INT8X4:
    case CU_AD_FORMAT_UNORM_INT16X2:
    case CU_AD_FORMAT_SNORM_INT16X2:
    case CU_AD_FORMAT_P210:
    case CU_AD_FORMAT_P216:
    case CU_AD_FORMAT_Y210:
    case CU_AD_FORMAT_Y216:
    case CU_AD_FORMAT_AYUV:
    case CU_AD_FORMAT_Y410:
    case CU_AD_FORMAT_UNORM_INT_101010_2:
      return 32;
    case CU_AD_FORMAT_Y444_PLANAR10:
    case CU_AD_FORMAT_YUV444_16bit_SemiPlanar:
      return 48;
    case CU_AD_FORMAT_UNORM_INT16X4:
    case CU_AD_FORMAT_SNORM_INT16X4:
    case CU_AD_FORMAT_Y416:
      return 64;
    default:
      return 0;
  }
}

uint32_t BitsOfBlocks(CUarray_format format) {
  switch (static_cast<int>(format)) {
    case CU_AD_FORMAT_BC1_UNORM:
    case CU_AD_FORMAT_BC1_UNORM_SRGB:
    case CU_AD_FORMAT_BC4_UNORM:
    case CU_AD_FORMAT_BC4_SNORM:
      return 4;  // 8 bytes for 4 x 4 texels
    default:
      return 8;  // 16 bytes
  }
}

}  // namespace

uint32_t BitsPerElement(CUarray_format format, uint32_t channels) {
  channels = channels == 0 ? 1 : channels;
  switch (static_cast<int>(format)) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      return 8 * channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      return 16 * channels;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
      return 32 * channels;
    default:
      break;
  }
  if (IsBlockCompressed(format)) return BitsOfBlocks(format);
  const uint32_t bits = BitsOfFixedFormat(format);
  return bits != 0 ? bits : 128;
}

uint64_t ArrayBytes(const CUDA_ARRAY3D_DESCRIPTOR& shape, uint32_t levels) {
  if ((shape.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0) return 0;
  const bool layered = (shape.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
  const uint64_t unit = IsBlockCompressed(shape.Format) ? 4 : 1;
  const uint64_t bits = BitsPerElement(shape.Format, shape.NumChannels);
  uint64_t width = Min(Max<uint64_t>(shape.Width, 1), kMost);
  uint64_t height = Min(Max<uint64_t>(shape.Height, 1), kMost);
  uint64_t depth = Max<uint64_t>(shape.Depth, 1);
  uint64_t bytes = 0;
  for (uint32_t level = 0; level < levels && level < 64; ++level) {
    const uint64_t texels = Times(Times(RoundUp(width, unit), RoundUp(height, unit)), depth);
    bytes = Min(bytes + (Times(texels, bits) + 7) / 8, kMost);
    if (width == 1 && height == 1 && (layered || depth == 1)) break;
    width = Max<uint64_t>(width / 2, 1);
    height = Max<uint64_t>(height / 2, 1);
    if (!layered) depth = Max<uint64_t>(depth / 2, 1);  // layers and faces do not shrink
  }
  return bytes;
}

}  // namespace prorata::client
