#include <gtest/gtest.h>

#include <cstring>

#include "sim/nvml/test_support.h"

// What the machine's file says of links is what NVML tells of them.

namespace prorata::simgpu {
namespace {

// Four devices: 0 and 1 by NVLink, 0 and 2 behind one PCIe switch, the other pairs over the host;
// 3 is far from all.
constexpr char kFourDevices[] = R"(
[[devices]]
[[devices]]
[[devices]]
[[devices]]
[[links]]
devices = [0, 1]
type = "nvlink"
nvlinks = 4
[[links]]
devices = [0, 2]
type = "pcie-switch"
topology = "multiple"
)";

class NvmlLinks : public NvmlTest {
 protected:
  NvmlLinks() { machine_file_ = kFourDevices; }
  void SetUp() override {
    NvmlTest::SetUp();
    ASSERT_EQ(NVML(nvmlInit_v2)(), NVML_SUCCESS);
    for (unsigned int i = 0; i < 4; ++i) {
      ASSERT_EQ(NVML(nvmlDeviceGetHandleByIndex_v2)(i, &device_[i]), NVML_SUCCESS);
    }
  }
  void TearDown() override { EXPECT_EQ(NVML(nvmlShutdown)(), NVML_SUCCESS); }

  nvmlGpuTopologyLevel_t Level(int a, int b) {
    nvmlGpuTopologyLevel_t level = NVML_TOPOLOGY_INTERNAL;
    EXPECT_EQ(NVML(nvmlDeviceGetTopologyCommonAncestor)(device_[a], device_[b], &level),
              NVML_SUCCESS);
    return level;
  }
  bool Can(int a, int b, nvmlGpuP2PCapsIndex_t what) {
    nvmlGpuP2PStatus_t status = NVML_P2P_STATUS_UNKNOWN;
    EXPECT_EQ(NVML(nvmlDeviceGetP2PStatus)(device_[a], device_[b], what, &status), NVML_SUCCESS);
    EXPECT_TRUE(status == NVML_P2P_STATUS_OK || status == NVML_P2P_STATUS_NOT_SUPPORTED) << status;
    return status == NVML_P2P_STATUS_OK;
  }

  nvmlDevice_t device_[4] = {};
};

TEST_F(NvmlLinks, TheCommonAncestorIsTheLinksTopologyEitherWay) {
  EXPECT_EQ(Level(0, 0), NVML_TOPOLOGY_INTERNAL);
  EXPECT_EQ(Level(0, 1), NVML_TOPOLOGY_NODE) << "the default of nvlink";
  EXPECT_EQ(Level(1, 0), NVML_TOPOLOGY_NODE);
  EXPECT_EQ(Level(2, 0), NVML_TOPOLOGY_MULTIPLE) << "what the file says";
  EXPECT_EQ(Level(3, 1), NVML_TOPOLOGY_SYSTEM) << "the default of no link";
  nvmlGpuTopologyLevel_t level;
  auto* ask = NVML(nvmlDeviceGetTopologyCommonAncestor);
  EXPECT_EQ(ask(device_[0], device_[1], nullptr), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(ask(device_[0], nullptr, &level), NVML_ERROR_INVALID_ARGUMENT);
}

TEST_F(NvmlLinks, TheNearestAreThoseAtTheLevelAndCountedWhenThereIsNoRoom) {
  auto* ask = NVML(nvmlDeviceGetTopologyNearestGpus);
  unsigned int count = 0;
  EXPECT_EQ(ask(device_[1], NVML_TOPOLOGY_SYSTEM, &count, nullptr), NVML_SUCCESS);
  EXPECT_EQ(count, 2u);
  nvmlDevice_t found[3] = {};
  count = 1;
  EXPECT_EQ(ask(device_[1], NVML_TOPOLOGY_SYSTEM, &count, found), NVML_SUCCESS);
  EXPECT_EQ(count, 2u);
  EXPECT_EQ(found[0], device_[2]);
  EXPECT_EQ(found[1], nullptr) << "there was room for one";
  count = 3;
  EXPECT_EQ(ask(device_[0], NVML_TOPOLOGY_MULTIPLE, &count, found), NVML_SUCCESS);
  ASSERT_EQ(count, 1u);
  EXPECT_EQ(found[0], device_[2]);
  EXPECT_EQ(ask(device_[0], NVML_TOPOLOGY_SINGLE, &count, found), NVML_SUCCESS);
  EXPECT_EQ(count, 0u);
  EXPECT_EQ(ask(device_[0], NVML_TOPOLOGY_SINGLE, nullptr, found), NVML_ERROR_INVALID_ARGUMENT);
  count = 1;
  EXPECT_EQ(ask(device_[0], NVML_TOPOLOGY_SINGLE, &count, nullptr), NVML_ERROR_INVALID_ARGUMENT);
}

TEST_F(NvmlLinks, PeersReachEachOtherAsTheirLinkSays) {
  for (const auto what : {NVML_P2P_CAPS_INDEX_READ, NVML_P2P_CAPS_INDEX_WRITE}) {
    EXPECT_TRUE(Can(0, 1, what));
    EXPECT_TRUE(Can(1, 0, what));
    EXPECT_TRUE(Can(0, 2, what));
    EXPECT_FALSE(Can(1, 2, what));
    EXPECT_FALSE(Can(3, 0, what));
  }
  for (const auto what : {NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_CAPS_INDEX_ATOMICS}) {
    EXPECT_TRUE(Can(0, 1, what));
    EXPECT_FALSE(Can(0, 2, what));
    EXPECT_FALSE(Can(0, 3, what));
  }
  EXPECT_FALSE(Can(0, 1, NVML_P2P_CAPS_INDEX_PCI));
  EXPECT_TRUE(Can(2, 0, NVML_P2P_CAPS_INDEX_PCI));
  auto* ask = NVML(nvmlDeviceGetP2PStatus);
  nvmlGpuP2PStatus_t status;
  EXPECT_EQ(ask(device_[0], device_[0], NVML_P2P_CAPS_INDEX_READ, &status),
            NVML_ERROR_INVALID_ARGUMENT)
      << "nobody is his own peer";
  EXPECT_EQ(ask(device_[0], device_[1], NVML_P2P_CAPS_INDEX_UNKNOWN, &status),
            NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(ask(device_[0], device_[1], NVML_P2P_CAPS_INDEX_READ, nullptr),
            NVML_ERROR_INVALID_ARGUMENT);
}

TEST_F(NvmlLinks, TheNvlinksThatThereAreAreUpAndTheOthersAreNotThere) {
  auto* state_of = NVML(nvmlDeviceGetNvLinkState);
  for (unsigned int link = 0; link < NVML_NVLINK_MAX_LINKS; ++link) {
    nvmlEnableState_t state = NVML_FEATURE_DISABLED;
    const nvmlReturn_t expected = link < 4 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
    EXPECT_EQ(state_of(device_[0], link, &state), expected) << link;
    EXPECT_EQ(state, link < 4 ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED) << link;
    EXPECT_EQ(state_of(device_[1], link, &state), expected) << link;
    EXPECT_EQ(state_of(device_[2], link, &state), NVML_ERROR_NOT_SUPPORTED)
        << "it is behind a PCIe switch";
  }
  nvmlEnableState_t state;
  EXPECT_EQ(state_of(device_[0], NVML_NVLINK_MAX_LINKS, &state), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(state_of(device_[0], 0, nullptr), NVML_ERROR_INVALID_ARGUMENT);
}

TEST_F(NvmlLinks, AnNvlinkCarriesPeerAccessAndAtomicsOfDevicesAndNotOfTheHost) {
  auto* ask = NVML(nvmlDeviceGetNvLinkCapability);
  const auto can = [&](nvmlNvLinkCapability_t what) {
    unsigned int answer = 7;
    EXPECT_EQ(ask(device_[0], 0, what, &answer), NVML_SUCCESS);
    return answer;
  };
  EXPECT_EQ(can(NVML_NVLINK_CAP_P2P_SUPPORTED), 1u);
  EXPECT_EQ(can(NVML_NVLINK_CAP_P2P_ATOMICS), 1u);
  EXPECT_EQ(can(NVML_NVLINK_CAP_VALID), 1u);
  EXPECT_EQ(can(NVML_NVLINK_CAP_SYSMEM_ACCESS), 0u);
  EXPECT_EQ(can(NVML_NVLINK_CAP_SYSMEM_ATOMICS), 0u);
  EXPECT_EQ(can(NVML_NVLINK_CAP_SLI_BRIDGE), 0u);
  unsigned int answer;
  EXPECT_EQ(ask(device_[0], 0, NVML_NVLINK_CAP_COUNT, &answer), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(ask(device_[2], 0, NVML_NVLINK_CAP_VALID, &answer), NVML_ERROR_NOT_SUPPORTED);
}

TEST_F(NvmlLinks, AnNvlinkLeadsToThePeer) {
  auto* type_of = NVML(nvmlDeviceGetNvLinkRemoteDeviceType);
  auto* remote_of = NVML(nvmlDeviceGetNvLinkRemotePciInfo_v2);
  nvmlPciInfo_t peer{}, remote{};
  ASSERT_EQ(NVML(nvmlDeviceGetPciInfo_v3)(device_[1], &peer), NVML_SUCCESS);
  for (unsigned int link = 0; link < 4; ++link) {
    nvmlIntNvLinkDeviceType_t type = NVML_NVLINK_DEVICE_TYPE_UNKNOWN;
    EXPECT_EQ(type_of(device_[0], link, &type), NVML_SUCCESS);
    EXPECT_EQ(type, NVML_NVLINK_DEVICE_TYPE_GPU);
    EXPECT_EQ(remote_of(device_[0], link, &remote), NVML_SUCCESS);
    EXPECT_STREQ(remote.busId, peer.busId);
    EXPECT_EQ(remote.bus, peer.bus);
  }
  EXPECT_EQ(remote_of(device_[0], 4, &remote), NVML_ERROR_NOT_SUPPORTED) << "it has four";
  EXPECT_EQ(remote_of(device_[0], 0, nullptr), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(type_of(device_[0], 0, nullptr), NVML_ERROR_INVALID_ARGUMENT);
}

class NvmlSwitched : public NvmlTest {
 protected:
  NvmlSwitched() {
    machine_file_ = "[[devices]]\n[[devices]]\n[[devices]]\n[[links]]\ntype = \"nvlink\"\n";
  }
};

// 18 to each of two peers: more than a device has, so that all of its links lead to a switch.
TEST_F(NvmlSwitched, ADeviceHasNoMoreLinksThanItsChip) {
  ASSERT_EQ(NVML(nvmlInit_v2)(), NVML_SUCCESS);
  nvmlDevice_t device = nullptr;
  ASSERT_EQ(NVML(nvmlDeviceGetHandleByIndex_v2)(0, &device), NVML_SUCCESS);
  int up = 0;
  for (unsigned int link = 0; link < NVML_NVLINK_MAX_LINKS; ++link) {
    nvmlEnableState_t state;
    up += NVML(nvmlDeviceGetNvLinkState)(device, link, &state) == NVML_SUCCESS;
    nvmlIntNvLinkDeviceType_t type = NVML_NVLINK_DEVICE_TYPE_UNKNOWN;
    EXPECT_EQ(NVML(nvmlDeviceGetNvLinkRemoteDeviceType)(device, link, &type), NVML_SUCCESS);
    EXPECT_EQ(type, NVML_NVLINK_DEVICE_TYPE_SWITCH);
    nvmlPciInfo_t remote{};
    EXPECT_EQ(NVML(nvmlDeviceGetNvLinkRemotePciInfo_v2)(device, link, &remote),
              NVML_ERROR_NOT_SUPPORTED);
  }
  EXPECT_EQ(up, kMaxNvlinks);
  EXPECT_EQ(NVML(nvmlShutdown)(), NVML_SUCCESS);
}

TEST_F(NvmlTest, ThereIsNoFabricAndAskingForItSucceeds) {
  nvmlGpuFabricInfoV_t info;
  std::memset(&info, 0x5a, sizeof info);
  EXPECT_EQ(NVML(nvmlDeviceGetGpuFabricInfoV)(nullptr, &info), NVML_ERROR_UNINITIALIZED);
  ASSERT_EQ(NVML(nvmlInit_v2)(), NVML_SUCCESS);
  nvmlDevice_t device = nullptr;
  ASSERT_EQ(NVML(nvmlDeviceGetHandleByIndex_v2)(0, &device), NVML_SUCCESS);
  EXPECT_EQ(NVML(nvmlDeviceGetGpuFabricInfoV)(device, &info), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
  // As PyTorch asks: with the structure of version 2, which ends before version 3's last field.
  info.version = nvmlGpuFabricInfo_v2;
  ASSERT_EQ(NVML(nvmlDeviceGetGpuFabricInfoV)(device, &info), NVML_SUCCESS);
  EXPECT_EQ(info.version, nvmlGpuFabricInfo_v2);
  EXPECT_EQ(info.state, NVML_GPU_FABRIC_STATE_NOT_SUPPORTED);
  EXPECT_EQ(info.status, NVML_SUCCESS);
  EXPECT_EQ(info.cliqueId, 0u);
  EXPECT_EQ(info.clusterUuid[0], 0);
  EXPECT_EQ(info.clusterUuid[15], 0);
  const auto* bytes = reinterpret_cast<const unsigned char*>(&info);
  for (size_t at = sizeof(nvmlGpuFabricInfo_v2_t); at < sizeof info; ++at) {
    EXPECT_EQ(bytes[at], 0x5a) << "written behind the caller's structure, at " << at;
  }
  std::memset(&info, 0x5a, sizeof info);
  info.version = nvmlGpuFabricInfo_v3;
  ASSERT_EQ(NVML(nvmlDeviceGetGpuFabricInfoV)(device, &info), NVML_SUCCESS);
  EXPECT_EQ(info.state, NVML_GPU_FABRIC_STATE_NOT_SUPPORTED);
  EXPECT_EQ(info.healthSummary, NVML_GPU_FABRIC_HEALTH_SUMMARY_NOT_SUPPORTED);
  nvmlGpuFabricInfo_t old;
  std::memset(&old, 0x5a, sizeof old);
  ASSERT_EQ(NVML(nvmlDeviceGetGpuFabricInfo)(device, &old), NVML_SUCCESS);
  EXPECT_EQ(old.state, NVML_GPU_FABRIC_STATE_NOT_SUPPORTED);
  EXPECT_EQ(old.cliqueId, 0u);
  EXPECT_EQ(NVML(nvmlDeviceGetGpuFabricInfo)(device, nullptr), NVML_ERROR_INVALID_ARGUMENT);
  EXPECT_EQ(NVML(nvmlShutdown)(), NVML_SUCCESS);
}

}  // namespace
}  // namespace prorata::simgpu
