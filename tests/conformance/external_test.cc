// Memory of another interface, imported by a file descriptor.

#include <fcntl.h>
#include <unistd.h>

#include "conformance.h"
#include "exporter.h"

namespace prorata::conformance {
namespace {

#define EXTERNAL_API(function) DRIVER_API("External Resource Interoperability, " function)

constexpr uint64_t kBytes = 8 * kMiB;

class ExternalMemoryTest : public DriverTest {
 protected:
  void SetUp() override {
    SIMULATED_ONLY("a GPU's external memory needs a graphics API");
    DriverTest::SetUp();
  }
  static CUDA_EXTERNAL_MEMORY_HANDLE_DESC Describe(int fd, uint64_t bytes) {
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc = {};
    desc.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
    desc.handle.fd = fd;
    desc.size = bytes;
    return desc;
  }
  static CUexternalMemory Import(const Exporter& exporter, uint64_t bytes = kBytes) {
    const auto desc = Describe(exporter.fd(), bytes);
    CUexternalMemory memory = nullptr;
    EXPECT_EQ(CUDA(cuImportExternalMemory)(&memory, &desc), CUDA_SUCCESS);
    return memory;
  }
  static CUdeviceptr Map(CUexternalMemory memory, uint64_t offset = 0, uint64_t bytes = kBytes) {
    const CUDA_EXTERNAL_MEMORY_BUFFER_DESC desc = {offset, bytes, 0, {}};
    CUdeviceptr address = 0;
    EXPECT_EQ(CUDA(cuExternalMemoryGetMappedBuffer)(&address, memory, &desc), CUDA_SUCCESS);
    return address;
  }
};

constexpr char kImport[] = EXTERNAL_API("cuImportExternalMemory");
constexpr char kBuffer[] = EXTERNAL_API("cuExternalMemoryGetMappedBuffer");
constexpr char kMappedMipmap[] = EXTERNAL_API("cuExternalMemoryGetMappedMipmappedArray");
constexpr char kDestroyMemory[] = EXTERNAL_API("cuDestroyExternalMemory");

RULE_TEST(ExternalMemoryTest, BothSeeTheSameBytes,
          "a mapped buffer is the memory of the other interface: what one writes the other reads",
          kBuffer) {
  Exporter exporter(kBytes);
  const CUexternalMemory memory = Import(exporter);
  const CUdeviceptr address = Map(memory);
  EXPECT_EQ(ReadWord(address), Exporter::kFilled);
  EXPECT_EQ(ReadWord(address + kBytes - 8), Exporter::kFilled);
  ASSERT_EQ(Step(nullptr, address, 0, 77, 1000), CUDA_SUCCESS);
  CUDA_OK(cuCtxSynchronize);
  EXPECT_EQ(exporter.FirstWord(), 77U);
  CUDA_OK(cuMemFree_v2, address);
  CUDA_OK(cuDestroyExternalMemory, memory);
}

RULE_TEST(ExternalMemoryTest, TheDescriptorIsTheDriversThen,
          "an import that succeeds takes the file descriptor", kImport) {
  Exporter exporter(kBytes);
  const CUexternalMemory memory = Import(exporter);
  EXPECT_EQ(fcntl(exporter.fd(), F_GETFD), -1) << "closed";
  CUDA_OK(cuDestroyExternalMemory, memory);
}

RULE_TEST(ExternalMemoryTest, ARefusedImportTakesNothing,
          "the descriptor must be of a memory object as large as said, else it stays the program's",
          kImport) {
  Exporter exporter(kBytes);
  CUexternalMemory memory = nullptr;
  auto desc = Describe(exporter.fd(), kBytes + kMiB);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuImportExternalMemory, &memory, &desc);
  desc.size = 0;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuImportExternalMemory, &memory, &desc);
  desc.size = kBytes;
  desc.flags = 2;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuImportExternalMemory, &memory, &desc);
  EXPECT_NE(fcntl(exporter.fd(), F_GETFD), -1);
  const auto closed = Describe(-1, kBytes);
  EXPECT_NE(CUDA(cuImportExternalMemory)(&memory, &closed), CUDA_SUCCESS);
  const int other = open("/dev/null", O_RDONLY | O_CLOEXEC);
  const auto none = Describe(other, kBytes);
  EXPECT_NE(CUDA(cuImportExternalMemory)(&memory, &none), CUDA_SUCCESS);
  close(other);
  close(exporter.fd());
}

RULE_TEST(ExternalMemoryTest, BuffersLieWithin,
          "a mapped buffer must lie within the memory, with flags of zero", kBuffer) {
  Exporter exporter(kBytes);
  const CUexternalMemory memory = Import(exporter, kBytes - kMiB);
  CUdeviceptr address = 0;
  CUDA_EXTERNAL_MEMORY_BUFFER_DESC desc = {kMiB, kBytes - kMiB, 0, {}};
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuExternalMemoryGetMappedBuffer, &address, memory, &desc);
  desc = {kBytes, kMiB, 0, {}};
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuExternalMemoryGetMappedBuffer, &address, memory, &desc);
  desc = {0, kMiB, 1, {}};
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuExternalMemoryGetMappedBuffer, &address, memory, &desc);
  CUDA_OK(cuDestroyExternalMemory, memory);
}

RULE_TEST(ExternalMemoryTest, BuffersBeginAtTheirOffset,
          "a buffer begins at its offset, and has its size", kBuffer) {
  Exporter exporter(kBytes);
  const CUexternalMemory memory = Import(exporter);
  const CUdeviceptr whole = Map(memory), part = Map(memory, 4 * kMiB, kMiB);
  CUDA_OK(cuMemsetD32_v2, part, 9, 2);
  EXPECT_EQ(ReadWord(whole + 4 * kMiB), 0x9'0000'0009U);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  CUDA_OK(cuMemGetAddressRange_v2, &base, &bytes, part + 100);
  EXPECT_EQ(base, part);
  EXPECT_EQ(bytes, kMiB);
  CUDA_OK(cuMemFree_v2, part);
  CUDA_OK(cuMemFree_v2, whole);
  CUDA_OK(cuDestroyExternalMemory, memory);
}

RULE_TEST(
    ExternalMemoryTest, BuffersOutliveTheImport,
    "what is mapped must be freed by itself, with cuMemFree, also when the import is destroyed",
    kDestroyMemory) {
  Exporter exporter(kBytes);
  const CUexternalMemory memory = Import(exporter);
  const CUdeviceptr address = Map(memory);
  CUDA_OK(cuDestroyExternalMemory, memory);
  CUDA_IS(CUDA_ERROR_INVALID_HANDLE, cuDestroyExternalMemory, memory);
  CUDA_OK(cuMemFree_v2, address);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2, address);
}

RULE_TEST(ExternalMemoryTest, ArraysAreMappedToo,
          "a mipmapped array is mapped onto the memory, with its levels, where it fits",
          kMappedMipmap) {
  Exporter exporter(kBytes);
  const CUexternalMemory memory = Import(exporter);
  CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC desc = {};
  desc.arrayDesc = {256, 256, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1, 0};
  desc.numLevels = 3;
  CUmipmappedArray mipmap = nullptr;
  CUarray level = nullptr;
  CUDA_OK(cuExternalMemoryGetMappedMipmappedArray, &mipmap, memory, &desc);
  CUDA_OK(cuMipmappedArrayGetLevel, &level, mipmap, 0);
  uint64_t word = 0;
  CUDA_OK(cuMemcpyAtoH_v2, &word, level, 0, sizeof(word));
  EXPECT_EQ(word, Exporter::kFilled);
  word = 5;
  CUDA_OK(cuMemcpyHtoA_v2, level, 0, &word, sizeof(word));
  EXPECT_EQ(exporter.FirstWord(), 5U);
  CUDA_OK(cuMipmappedArrayGetLevel, &level, mipmap, 2);
  CUDA_ARRAY3D_DESCRIPTOR shape = {};
  CUDA_OK(cuArray3DGetDescriptor_v2, &shape, level);
  EXPECT_EQ(shape.Width, 64U);
  desc.arrayDesc = {4096, 4096, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1, 0};
  CUmipmappedArray larger = nullptr;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuExternalMemoryGetMappedMipmappedArray, &larger, memory,
          &desc);
  CUDA_OK(cuDestroyExternalMemory, memory);
  CUDA_OK(cuMipmappedArrayDestroy, mipmap);
}

RULE_TEST(ExternalMemoryTest, ItIsNotCountedTwice,
          "imported memory is its maker's, and takes none of the device's again", kImport) {
  Exporter exporter(kBytes);
  const uint64_t before = FreeBytes();
  const CUexternalMemory memory = Import(exporter);
  const CUdeviceptr address = Map(memory);
  EXPECT_EQ(FreeBytes(), before);
  CUDA_OK(cuMemFree_v2, address);
  CUDA_OK(cuDestroyExternalMemory, memory);
  EXPECT_EQ(FreeBytes(), before);
}

}  // namespace
}  // namespace prorata::conformance
