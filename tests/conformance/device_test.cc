// Devices: how they are found, and what they say of themselves.

#include <cstring>
#include <string>

#include "conformance.h"

namespace prorata::conformance {
namespace {

class DeviceTest : public ::testing::Test {
 protected:
  void SetUp() override { CUDA_OK(cuInit, 0); }
  int Ask(CUdevice_attribute attribute) {
    int value = -1;
    EXPECT_EQ(CUDA(cuDeviceGetAttribute)(&value, attribute, 0), CUDA_SUCCESS);
    return value;
  }
};

RULE_TEST(DeviceTest, OrdinalsCountFromZero,
          "cuDeviceGet takes ordinals from 0 to cuDeviceGetCount() - 1, and no others",
          "CUDA Driver API 13.0, Device Management, cuDeviceGet") {
  int count = 0;
  CUDA_OK(cuDeviceGetCount, &count);
  ASSERT_GE(count, 1);
  for (int i = 0; i < count; ++i) {
    CUdevice device = -1;
    CUDA_OK(cuDeviceGet, &device, i);
  }
  CUdevice device = -1;
  CUDA_IS(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet, &device, count);
  CUDA_IS(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet, &device, -1);
}

RULE_TEST(DeviceTest, NullPlacesAreRefused,
          "device queries need a place for their answer: NULL is CUDA_ERROR_INVALID_VALUE",
          "CUDA Driver API 13.0, Device Management (return values)") {
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuDeviceGetCount, nullptr);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuDeviceGet, nullptr, 0);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuDeviceTotalMem_v2, nullptr, 0);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuDeviceGetAttribute, nullptr, CU_DEVICE_ATTRIBUTE_WARP_SIZE,
          0);
}

RULE_TEST(DeviceTest, NamesAreShortenedToFit,
          "cuDeviceGetName ends its text with a null and shortens it to len",
          "CUDA Driver API 13.0, Device Management, cuDeviceGetName") {
  char full[256];
  CUDA_OK(cuDeviceGetName, full, sizeof(full), 0);
  EXPECT_GT(std::strlen(full), 0u);
  char part[6];
  std::memset(part, 'x', sizeof(part));
  CUDA_OK(cuDeviceGetName, part, 5, 0);
  EXPECT_EQ(std::string(part), std::string(full).substr(0, 4));
  EXPECT_EQ(part[5], 'x');
}

RULE_TEST(DeviceTest, TheUuidIsTheDevices,
          "cuDeviceGetUuid gives 16 bytes that identify the device, the same at each call",
          "CUDA Driver API 13.0, Device Management, cuDeviceGetUuid") {
  CUuuid first{};
  CUuuid second{};
  const CUuuid none{};
  CUDA_OK(cuDeviceGetUuid_v2, &first, 0);
  CUDA_OK(cuDeviceGetUuid_v2, &second, 0);
  EXPECT_EQ(std::memcmp(&first, &second, sizeof(first)), 0);
  EXPECT_NE(std::memcmp(&first, &none, sizeof(first)), 0);
  int count = 0;
  CUDA_OK(cuDeviceGetCount, &count);
  for (int i = 1; i < count; ++i) {
    CUDA_OK(cuDeviceGetUuid_v2, &second, i);
    EXPECT_NE(std::memcmp(&first, &second, sizeof(first)), 0);
  }
}

RULE_TEST(DeviceTest, TheTotalMemoryIsPositive,
          "cuDeviceTotalMem gives the device's memory in bytes, context or not",
          "CUDA Driver API 13.0, Device Management, cuDeviceTotalMem") {
  size_t bytes = 0;
  CUDA_OK(cuDeviceTotalMem_v2, &bytes, 0);
  EXPECT_GT(bytes, size_t{64} << 20);
}

RULE_TEST(DeviceTest, TheBusIdFindsTheDevice,
          "cuDeviceGetByPCIBusId finds the device by the text of cuDeviceGetPCIBusId",
          "CUDA Driver API 13.0, Device Management, cuDeviceGetByPCIBusId") {
  char bus[32];
  CUDA_OK(cuDeviceGetPCIBusId, bus, sizeof(bus), 0);
  CUdevice device = -1;
  CUDA_OK(cuDeviceGetByPCIBusId, &device, bus);
  EXPECT_EQ(device, 0);
  std::string without_function(bus);
  without_function.resize(without_function.rfind('.'));
  device = -1;
  CUDA_OK(cuDeviceGetByPCIBusId, &device, without_function.c_str());
  EXPECT_EQ(device, 0);
}

RULE_TEST(DeviceTest, TheBusIdHasItsForm,
          "the bus id is [domain]:[bus]:[device].[function] in hexadecimal, as the attributes say",
          "CUDA Driver API 13.0, Device Management, cuDeviceGetPCIBusId") {
  char bus[32];
  CUDA_OK(cuDeviceGetPCIBusId, bus, sizeof(bus), 0);
  unsigned domain = 0, number = 0, slot = 0, function = 0;
  ASSERT_EQ(std::sscanf(bus, "%x:%x:%x.%x", &domain, &number, &slot, &function), 4) << bus;
  EXPECT_EQ(domain, static_cast<unsigned>(Ask(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)));
  EXPECT_EQ(number, static_cast<unsigned>(Ask(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)));
  EXPECT_EQ(slot, static_cast<unsigned>(Ask(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)));
}

RULE_TEST(DeviceTest, NoSuchBusIdIsNoDevice,
          "a bus id of no device is CUDA_ERROR_INVALID_DEVICE, a text that is none an error",
          "CUDA Driver API 13.0, Device Management, cuDeviceGetByPCIBusId (return values)") {
  CUdevice device = -1;
  CUDA_IS(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetByPCIBusId, &device, "fffe:ee:1d.0");
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuDeviceGetByPCIBusId, &device, "nowhere");
}

RULE_TEST(DeviceTest, EveryAttributeHasAnAnswer,
          "cuDeviceGetAttribute answers every attribute of its enumeration",
          "CUDA Driver API 13.0, Device Management, cuDeviceGetAttribute; Data types, "
          "CUdevice_attribute") {
  int version = 0;
  CUDA_OK(cuDriverGetVersion, &version);
  for (int i = 1; i < CU_DEVICE_ATTRIBUTE_MAX; ++i) {
    int value = 0;
    const CUresult result =
        CUDA(cuDeviceGetAttribute)(&value, static_cast<CUdevice_attribute>(i), 0);
    if (version >= 13000 && !OnRealGpu()) {
      EXPECT_EQ(result, CUDA_SUCCESS) << i;
    }
    if (i <= CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED && i != 92 && i != 93 && i != 94) {
      EXPECT_EQ(result, CUDA_SUCCESS) << i;  // 92 to 94 left the enumeration
    }
  }
}

RULE_TEST(DeviceTest, UnknownAttributesAreRefused,
          "an attribute outside the enumeration is CUDA_ERROR_INVALID_VALUE",
          "CUDA Driver API 13.0, Device Management, cuDeviceGetAttribute (return values)") {
  int value = 0;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuDeviceGetAttribute, &value,
          static_cast<CUdevice_attribute>(100'000), 0);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuDeviceGetAttribute, &value,
          static_cast<CUdevice_attribute>(0), 0);
}

RULE_TEST(DeviceTest, LimitsAreThoseOfTheArchitecture,
          "warps have 32 threads, blocks up to 1024, grids up to 2^31 - 1 by 65535 by 65535",
          "CUDA C++ Programming Guide 13.0, 20.2 Features and Technical Specifications") {
  EXPECT_EQ(Ask(CU_DEVICE_ATTRIBUTE_WARP_SIZE), 32);
  EXPECT_EQ(Ask(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK), 1024);
  EXPECT_EQ(Ask(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X), 1024);
  EXPECT_EQ(Ask(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y), 1024);
  EXPECT_EQ(Ask(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z), 64);
  EXPECT_EQ(Ask(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X), 2147483647);
  EXPECT_EQ(Ask(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y), 65535);
  EXPECT_EQ(Ask(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z), 65535);
  EXPECT_EQ(Ask(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK), 49152);
}

RULE_TEST(DeviceTest, TheOldQueriesAgreeWithTheAttributes,
          "cuDeviceComputeCapability gives the attributes' compute capability",
          "CUDA Driver API 13.0, Device Management [DEPRECATED], cuDeviceComputeCapability") {
  int major = 0;
  int minor = -1;
  CUDA_OK(cuDeviceComputeCapability, &major, &minor, 0);
  EXPECT_EQ(major, Ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
  EXPECT_EQ(minor, Ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
}

RULE_TEST(DeviceTest, TheSimulatedDeviceIsAsConfigured,
          "without a machine's file there is one device, of 16 GiB and 132 SMs",
          "docs/reference/simulated-gpu.md, Settings") {
  SIMULATED_ONLY("it reads the defaults of the machine's file");
  int count = 0;
  size_t bytes = 0;
  CUDA_OK(cuDeviceGetCount, &count);
  CUDA_OK(cuDeviceTotalMem_v2, &bytes, 0);
  EXPECT_EQ(count, 1);
  EXPECT_EQ(bytes, size_t{16} << 30);
  EXPECT_EQ(Ask(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT), 132);
}

}  // namespace
}  // namespace prorata::conformance
