// Copies of many boxes, and of many ranges, in one call.

#include <numeric>
#include <vector>

#include "conformance.h"

namespace prorata::conformance {
namespace {

constexpr char kBoxes[] = "CUDA Driver API, Memory Management, cuMemcpy3DBatchAsync";

class CopyBatchTest : public DriverTest {
 protected:
  static CUmemcpy3DOperand Pointer(CUdeviceptr address, size_t row, size_t height) {
    CUmemcpy3DOperand operand{};
    operand.type = CU_MEMCPY_OPERAND_TYPE_POINTER;
    operand.op.ptr.ptr = address;
    operand.op.ptr.rowLength = row;
    operand.op.ptr.layerHeight = height;
    return operand;
  }
};

RULE_TEST(CopyBatchTest, BoxesAreCopiedAsDescribed,
          "a batch copies each of its boxes, with the row length and layer height of either side",
          kBoxes) {
  // A box of 8 bytes by 3 rows by 2 layers out of rows of 16 bytes in layers of 4 rows.
  CUdeviceptr wide = 0;
  CUdeviceptr tight = 0;
  std::vector<uint8_t> bytes(16 * 4 * 2);
  std::iota(bytes.begin(), bytes.end(), uint8_t{1});
  CUDA_OK(cuMemAlloc_v2, &wide, bytes.size());
  CUDA_OK(cuMemAlloc_v2, &tight, 8 * 3 * 2);
  CUDA_OK(cuMemcpyHtoD_v2, wide, bytes.data(), bytes.size());
  CUDA_MEMCPY3D_BATCH_OP op{};
  op.src = Pointer(wide, 16, 4);
  op.dst = Pointer(tight, 8, 3);
  op.extent = {8, 3, 2};
  op.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  CUstream stream = NewStream();
  size_t failed = 0;
  CUDA_OK(cuMemcpy3DBatchAsync, 1, &op, &failed, 0, stream);
  CUDA_OK(cuStreamSynchronize, stream);
  std::vector<uint8_t> out(8 * 3 * 2);
  CUDA_OK(cuMemcpyDtoH_v2, out.data(), tight, out.size());
  for (size_t z = 0; z < 2; ++z) {
    for (size_t y = 0; y < 3; ++y) {
      for (size_t x = 0; x < 8; ++x) {
        EXPECT_EQ(out[(z * 3 + y) * 8 + x], bytes[(z * 4 + y) * 16 + x]);
      }
    }
  }
}

RULE_TEST(CopyBatchTest, TheLegacyStreamTakesNone,
          "the stream of a batch must not be the legacy stream",
          "CUDA Driver API, Memory Management, cuMemcpyBatchAsync") {
  CUDA_MEMCPY3D_BATCH_OP op{};
  op.src = Pointer(NewWord(1), 8, 1);
  op.dst = Pointer(NewWord(2), 8, 1);
  op.extent = {8, 1, 1};
  op.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  EXPECT_NE(CUDA(cuMemcpy3DBatchAsync)(1, &op, nullptr, 0, nullptr), CUDA_SUCCESS);
}

}  // namespace
}  // namespace prorata::conformance
