// Tensor maps: arguments are checked as documented (cuTensorMapEncodeTiled and its relatives), and
// packed into the 128 bytes in a layout of the simulation's own. No kernel reads them.

#include <cstring>

#include "generated/cuda_abi.h"

namespace {

constexpr uint64_t kMark = 0x70616d726f736e74;  // that the map was made here

struct Arguments {
  CUtensorMapDataType type;
  cuuint32_t rank;
  void* address;
  const cuuint64_t* dims;
  const cuuint64_t* strides;  // bytes, of all dimensions but the first
  const cuuint32_t* element_strides;
  CUtensorMapInterleave interleave;
  CUtensorMapSwizzle swizzle;
  CUtensorMapL2promotion promotion;
  CUtensorMapFloatOOBfill fill;
};

bool AddressIsValid(const void* address, CUtensorMapInterleave interleave) {
  const uint64_t alignment = interleave == CU_TENSOR_MAP_INTERLEAVE_32B ? 32 : 16;
  return reinterpret_cast<uint64_t>(address) % alignment == 0;
}

bool TypeIsFloat(CUtensorMapDataType type) {
  return type >= CU_TENSOR_MAP_DATA_TYPE_FLOAT16 && type <= CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ;
}

CUresult Check(const CUtensorMap* map, const Arguments& a, cuuint32_t min_rank) {
  if (!map || reinterpret_cast<uint64_t>(map) % 64 != 0) return CUDA_ERROR_INVALID_VALUE;
  if (a.type < 0 || a.type > CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B) return CUDA_ERROR_INVALID_VALUE;
  if (a.rank < min_rank || a.rank > 5) return CUDA_ERROR_INVALID_VALUE;
  if (a.interleave != CU_TENSOR_MAP_INTERLEAVE_NONE && a.rank < 3) return CUDA_ERROR_INVALID_VALUE;
  if (a.interleave < 0 || a.interleave > CU_TENSOR_MAP_INTERLEAVE_32B || a.swizzle < 0 ||
      a.swizzle > CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B || a.promotion < 0 ||
      a.promotion > CU_TENSOR_MAP_L2_PROMOTION_L2_256B || a.fill < 0 ||
      a.fill > CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!a.address || !AddressIsValid(a.address, a.interleave)) return CUDA_ERROR_INVALID_VALUE;
  if (!a.dims || !a.element_strides || (a.rank > 1 && !a.strides)) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t stride_alignment = a.interleave == CU_TENSOR_MAP_INTERLEAVE_32B ? 32 : 16;
  for (cuuint32_t i = 0; i < a.rank; ++i) {
    if (a.dims[i] == 0 || a.dims[i] > uint64_t{1} << 32) return CUDA_ERROR_INVALID_VALUE;
    if (a.element_strides[i] == 0 || a.element_strides[i] > 8) return CUDA_ERROR_INVALID_VALUE;
    if (i + 1 == a.rank) break;
    if (a.strides[i] % stride_alignment != 0 || a.strides[i] >= uint64_t{1} << 40) {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  const bool nan = a.fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA;
  return nan && !TypeIsFloat(a.type) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

// mark | address | type, rank, and so on by bytes | dims, as far as 128 bytes go.
void Pack(CUtensorMap* map, const Arguments& a) {
  std::memset(map, 0, sizeof(*map));
  map->opaque[0] = kMark;
  map->opaque[1] = reinterpret_cast<uint64_t>(a.address);
  map->opaque[2] = static_cast<uint64_t>(a.type) | uint64_t{a.rank} << 8 |
                   static_cast<uint64_t>(a.interleave) << 16 |
                   static_cast<uint64_t>(a.swizzle) << 24 |
                   static_cast<uint64_t>(a.promotion) << 32 | static_cast<uint64_t>(a.fill) << 40;
  for (cuuint32_t i = 0; i < a.rank; ++i) {
    map->opaque[3 + i] = a.dims[i];
    if (i + 1 < a.rank) map->opaque[8 + i] = a.strides[i];
  }
}

CUresult Encode(CUtensorMap* map, const Arguments& a, cuuint32_t min_rank) {
  if (CUresult result = Check(map, a, min_rank)) return result;
  Pack(map, a);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuTensorMapEncodeTiled(CUtensorMap* tensorMap, CUtensorMapDataType tensorDataType,
                                cuuint32_t tensorRank, void* globalAddress,
                                const cuuint64_t* globalDim, const cuuint64_t* globalStrides,
                                const cuuint32_t* boxDim, const cuuint32_t* elementStrides,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion l2Promotion,
                                CUtensorMapFloatOOBfill oobFill) {
  if (!boxDim || tensorRank > 5) return CUDA_ERROR_INVALID_VALUE;
  for (cuuint32_t i = 0; i < tensorRank; ++i) {
    if (boxDim[i] == 0 || boxDim[i] > 256) return CUDA_ERROR_INVALID_VALUE;
  }
  return Encode(tensorMap,
                {tensorDataType, tensorRank, globalAddress, globalDim, globalStrides,
                 elementStrides, interleave, swizzle, l2Promotion, oobFill},
                1);
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap* tensorMap, CUtensorMapDataType tensorDataType,
                                 cuuint32_t tensorRank, void* globalAddress,
                                 const cuuint64_t* globalDim, const cuuint64_t* globalStrides,
                                 const int* pixelBoxLowerCorner, const int* pixelBoxUpperCorner,
                                 cuuint32_t channelsPerPixel, cuuint32_t pixelsPerColumn,
                                 const cuuint32_t* elementStrides, CUtensorMapInterleave interleave,
                                 CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2Promotion,
                                 CUtensorMapFloatOOBfill oobFill) {
  if (!pixelBoxLowerCorner || !pixelBoxUpperCorner || channelsPerPixel > 256 ||
      pixelsPerColumn > 1024) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return Encode(tensorMap,
                {tensorDataType, tensorRank, globalAddress, globalDim, globalStrides,
                 elementStrides, interleave, swizzle, l2Promotion, oobFill},
                3);
}

CUresult cuTensorMapEncodeIm2colWide(CUtensorMap* tensorMap, CUtensorMapDataType tensorDataType,
                                     cuuint32_t tensorRank, void* globalAddress,
                                     const cuuint64_t* globalDim, const cuuint64_t* globalStrides,
                                     int, int, cuuint32_t channelsPerPixel,
                                     cuuint32_t pixelsPerColumn, const cuuint32_t* elementStrides,
                                     CUtensorMapInterleave interleave, CUtensorMapIm2ColWideMode,
                                     CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2Promotion,
                                     CUtensorMapFloatOOBfill oobFill) {
  if (channelsPerPixel > 256 || pixelsPerColumn > 1024) return CUDA_ERROR_INVALID_VALUE;
  return Encode(tensorMap,
                {tensorDataType, tensorRank, globalAddress, globalDim, globalStrides,
                 elementStrides, interleave, swizzle, l2Promotion, oobFill},
                3);
}

CUresult cuTensorMapReplaceAddress(CUtensorMap* tensorMap, void* globalAddress) {
  if (!tensorMap || tensorMap->opaque[0] != kMark || !globalAddress)
    return CUDA_ERROR_INVALID_VALUE;
  const auto interleave = static_cast<CUtensorMapInterleave>(tensorMap->opaque[2] >> 16 & 0xff);
  if (!AddressIsValid(globalAddress, interleave)) return CUDA_ERROR_INVALID_VALUE;
  tensorMap->opaque[1] = reinterpret_cast<uint64_t>(globalAddress);
  return CUDA_SUCCESS;
}
