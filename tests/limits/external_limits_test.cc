// Memory that another interface allocated, here a process that has no CUDA: charged while it is
// imported. On a GPU it takes a graphics API to make some.

#include <fcntl.h>
#include <unistd.h>

#include "../conformance/exporter.h"
#include "limits.h"

namespace prorata::limits {
namespace {

using conformance::Exporter;

constexpr uint64_t kExternalBytes = 16 * kMib;

class ExternalLimits : public LimitTest {
 protected:
  void SetUp() override {
    SKIP_UNLESS(!OnRealGpu(), "external memory without a graphics API");
    LimitTest::SetUp();
  }
  void TearDown() override {
    if (!OnRealGpu()) LimitTest::TearDown();
  }

  static CUresult Import(const Exporter& exporter, CUexternalMemory* memory,
                         uint64_t bytes = kExternalBytes) {
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc = {};
    desc.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
    desc.handle.fd = exporter.fd();
    desc.size = bytes;
    return CUDA(cuImportExternalMemory)(memory, &desc);
  }
};

TEST_F(ExternalLimits, ImportExternalMemoryRefused) {
  Exporter exporter(kExternalBytes);
  LeaveRoom(kExternalBytes / 2);
  CUexternalMemory memory = nullptr;
  Refused([&] { return Import(exporter, &memory); });
  EXPECT_NE(fcntl(exporter.fd(), F_GETFD), -1) << "a refused import leaves the descriptor alone";
  GiveRoomBack();
  ASSERT_EQ(Import(exporter, &memory), CUDA_SUCCESS) << "and it can be tried again";
  CUDA_OK(cuDestroyExternalMemory, memory);
}

TEST_F(ExternalLimits, ImportExternalMemoryCharged) {
  Exporter exporter(kExternalBytes);
  CUexternalMemory memory = nullptr;
  ASSERT_EQ(Import(exporter, &memory, kExternalBytes - kSlab + 1), CUDA_SUCCESS);
  EXPECT_TRUE(Charged(kExternalBytes)) << "in whole slabs";
  // What is mapped of it is a view.
  const CUDA_EXTERNAL_MEMORY_BUFFER_DESC buffer = {0, kMib, 0, {}};
  CUdeviceptr first = 0, second = 0;
  CUDA_OK(cuExternalMemoryGetMappedBuffer, &first, memory, &buffer);
  CUDA_OK(cuExternalMemoryGetMappedBuffer, &second, memory, &buffer);
  CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC array = {};
  array.arrayDesc = {256, 256, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1, 0};
  array.numLevels = 2;
  CUmipmappedArray mipmap = nullptr;
  CUDA_OK(cuExternalMemoryGetMappedMipmappedArray, &mipmap, memory, &array);
  EXPECT_TRUE(Charged(kExternalBytes));
  CUDA_OK(cuMipmappedArrayDestroy, mipmap);
  CUDA_OK(cuMemFree_v2, first);
  CUDA_OK(cuMemFree_v2, second);
  EXPECT_TRUE(Charged(kExternalBytes)) << "until the import itself is destroyed";
  CUDA_OK(cuDestroyExternalMemory, memory);
  EXPECT_TRUE(Charged(0));
}

TEST_F(ExternalLimits, AFailedImportIsNotCharged) {
  Exporter exporter(kExternalBytes);
  CUexternalMemory memory = nullptr;
  EXPECT_NE(Import(exporter, &memory, 2 * kExternalBytes), CUDA_SUCCESS) << "it is not as large";
  EXPECT_TRUE(Charged(0));
  close(exporter.fd());
}

TEST_F(ExternalLimits, DestroyExternalMemoryMakesRoom) {
  Exporter exporter(kExternalBytes);
  LeaveRoom(kExternalBytes + kExternalBytes / 2);
  CUexternalMemory memory = nullptr;
  CUdeviceptr address = 0;
  ASSERT_EQ(Import(exporter, &memory), CUDA_SUCCESS);
  Refused([&] { return CUDA(cuMemAlloc_v2)(&address, kExternalBytes); });
  CUDA_OK(cuDestroyExternalMemory, memory);
  CUDA_OK(cuMemAlloc_v2, &address, kExternalBytes);
  CUDA_OK(cuMemFree_v2, address);
}

TEST_F(ExternalLimits, DestroyExternalMemoryGivesBack) {
  Exporter exporter(kExternalBytes), other_exporter(kExternalBytes);
  CUexternalMemory memory = nullptr, in_other = nullptr;
  ASSERT_EQ(Import(exporter, &memory), CUDA_SUCCESS);
  EXPECT_TRUE(Charged(kExternalBytes));
  CUDA_OK(cuDestroyExternalMemory, memory);
  EXPECT_TRUE(Charged(0));
  EXPECT_NE(CUDA(cuDestroyExternalMemory)(memory), CUDA_SUCCESS) << "once";
  EXPECT_TRUE(Charged(0));
  // What a context imported goes with it.
  CUcontext other = nullptr;
  CUDA_OK(cuCtxCreate_v2, &other, 0, device_);
  ASSERT_EQ(Import(other_exporter, &in_other), CUDA_SUCCESS);
  CUDA_OK(cuCtxDestroy_v2, other);
  CUDA_OK(cuCtxSetCurrent, ctx_);
  EXPECT_TRUE(Charged(0));
}

}  // namespace
}  // namespace prorata::limits
