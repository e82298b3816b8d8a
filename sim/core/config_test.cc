#include "sim/core/config.h"

#include <gtest/gtest.h>

namespace prorata::simgpu {
namespace {

std::string ErrorOf(const char* text) {
  const auto config = ParseMachineConfig(text, "m.toml");
  return config ? "" : config.error().message;
}

TEST(ConfigTest, ReadsEverySetting) {
  const auto config = ParseMachineConfig(R"(
    driver_version = 12040
    dilation = 4
    init_ms = 1.5
    [[devices]]
    name = "One"
    uuid = "GPU-1"
    pci_bus_id = "00000000:07:00.0"
    memory = "4GiB"
    sm_count = 8
    compute_capability = "8.6"
    context_memory = "100MiB"
    slab = "1MiB"
    pool_chunk = "16MiB"
    multicast = true
    time_slice_us = 1500.5
    switch_cost_us = 0
    launch_latency_us = 2.5
    h2d_gb_per_s = 10
    d2h_gb_per_s = 11.5
    d2d_gb_per_s = 1000
    [[devices]]
  )",
                                         "m.toml");
  ASSERT_TRUE(config) << config.error().message;
  ASSERT_EQ(config->devices.size(), 2u);
  const DeviceConfig& one = config->devices[0];
  EXPECT_EQ(config->driver_version, 12040);
  EXPECT_EQ(config->dilation, 4.0);
  EXPECT_EQ(config->init_ns, 1'500'000);
  EXPECT_EQ(one.name, "One");
  EXPECT_EQ(one.memory_bytes, 4 * kGiB);
  EXPECT_EQ(one.compute_major, 8);
  EXPECT_EQ(one.compute_minor, 6);
  EXPECT_TRUE(one.multicast);
  EXPECT_FALSE(config->devices[1].multicast);
  EXPECT_EQ(one.time_slice_ns, 1'500'500);
  EXPECT_EQ(one.switch_cost_ns, 0);
  EXPECT_EQ(one.launch_latency_ns, 2500);
  EXPECT_EQ(one.d2h_bytes_per_s, 11'500'000'000u);
  EXPECT_NE(config->devices[1].uuid, "");
  EXPECT_NE(CanonicalText(*config), CanonicalText(DefaultMachineConfig()));
}

TEST(ConfigTest, AnEmptyFileIsTheDefaultMachine) {
  EXPECT_EQ(CanonicalText(*ParseMachineConfig("", "m.toml")),
            CanonicalText(DefaultMachineConfig()));
}

TEST(ConfigTest, ErrorsNameFileAndKey) {
  EXPECT_NE(ErrorOf("dilation = 0.5").find("m.toml: dilation: "), std::string::npos);
  EXPECT_NE(ErrorOf("dilution = 2").find("m.toml: dilution: unknown"), std::string::npos);
  EXPECT_NE(ErrorOf("[[devices]]\nmemory = \"4Gib\"").find("m.toml: devices[0].memory: "),
            std::string::npos);
  EXPECT_NE(ErrorOf("[[devices]]\nmemory = \"5MiB\"").find("multiple"), std::string::npos);
  EXPECT_NE(ErrorOf("[[devices]]\ntime_slice_us = -1").find("devices[0].time_slice_us"),
            std::string::npos);
  EXPECT_NE(ErrorOf("[[devices]]\ncompute_capability = \"nine\"").find("compute_capability"),
            std::string::npos);
  EXPECT_NE(ErrorOf("[[devices]]\nuuid=\"A\"\n[[devices]]\nuuid=\"A\"").find("also devices[0]"),
            std::string::npos);
  EXPECT_NE(ErrorOf("[[devices]]\nmulticast = 1").find("multicast: expected true or false"),
            std::string::npos);
  EXPECT_NE(ErrorOf("devices = []").find("devices: "), std::string::npos);
  EXPECT_NE(ErrorOf("a = ").find("m.toml: line 1"), std::string::npos);
}

}  // namespace
}  // namespace prorata::simgpu
