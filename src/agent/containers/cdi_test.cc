#include "agent/containers/cdi.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace prorata::agent {
namespace {

TEST(CdiTest, NamesOfDevices) {
  for (const char* name : {"train", "a", "0", "9lives", "a.b-c_d", "a:b"}) {
    EXPECT_TRUE(ValidateCdiName(name)) << name;
  }
  for (const char* name : {"", "-a", "a-", ".a", "a.", "a/b", "a b", "a=b", "ä", "_a"}) {
    const auto ok = ValidateCdiName(name);
    ASSERT_FALSE(ok) << name;
    EXPECT_EQ(ok.error().code, "bad_name");
  }
}

TEST(CdiTest, ASpecificationAsEnginesReadIt) {
  CdiEdits edits;
  edits.environment = {"A=b"};
  edits.device_nodes = {"/dev/nvidia0"};
  edits.mounts = {{"/from", "/to"}, {"/state", "/into", true}};
  edits.hooks = {{"createContainer", "/bin/hook", {"hook", "x"}}};
  const auto expected = nlohmann::json::parse(R"({
    "cdiVersion": "0.5.0", "kind": "prorata.dev/share",
    "devices": [{"name": "train", "containerEdits": {
      "env": ["A=b"],
      "deviceNodes": [{"path": "/dev/nvidia0"}],
      "mounts": [
        {"hostPath": "/from", "containerPath": "/to", "options": ["ro", "nosuid", "nodev", "bind"]},
        {"hostPath": "/state", "containerPath": "/into",
         "options": ["rw", "nosuid", "nodev", "bind"]}],
      "hooks": [{"hookName": "createContainer", "path": "/bin/hook", "args": ["hook", "x"]}]}}]})");
  EXPECT_EQ(CdiSpecification("train", edits), expected);
  EXPECT_EQ(CdiFileName("train"), "prorata.dev-share-train.json");
}

TEST(CdiTest, EmptyPartsAreNotThere) {
  const auto edits = CdiSpecification("x", {})["devices"][0]["containerEdits"];
  EXPECT_TRUE(edits.is_object());
  EXPECT_TRUE(edits.empty());
}

}  // namespace
}  // namespace prorata::agent
