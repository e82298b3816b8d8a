#include "cli/container_commands.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/bytes.h"
#include "cli/text/tables.h"

namespace prorata::cli {
namespace {

nlohmann::json Specification(const nlohmann::json& edits) {
  return {{"devices", nlohmann::json::array({{{"name", "x"}, {"containerEdits", edits}}})}};
}

TEST(ContainerCommandsTest, WhatCtrIsGiven) {
  const nlohmann::json specification = Specification(
      {{"env", {"A=b"}},
       {"deviceNodes", {{{"path", "/dev/nvidia0"}}}},
       {"mounts", {{{"hostPath", "/a"}, {"containerPath", "/b"}, {"options", {"ro", "bind"}}}}}});
  const auto arguments = MountArguments(specification, MountStyle::kCtr);
  ASSERT_TRUE(arguments);
  EXPECT_EQ(*arguments,
            "--env\nA=b\n--device\n/dev/nvidia0\n"
            "--mount\ntype=bind,src=/a,dst=/b,options=rbind:ro\n");
  EXPECT_EQ(MountArguments(specification, MountStyle::kVolumes),
            "--env=A=b\n--device=/dev/nvidia0\n--volume=/a:/b:ro\n");
  EXPECT_EQ(MountArguments(Specification(nlohmann::json::object()), MountStyle::kCtr), "");
}

TEST(ContainerCommandsTest, WhatCtrCannotBeGiven) {
  for (const char* path : {"/a,b", "/a b", "/a*", "/a:b"}) {
    const auto arguments = MountArguments(
        Specification(
            {{"mounts", {{{"hostPath", path}, {"containerPath", "/b"}, {"options", {"ro"}}}}}}),
        MountStyle::kCtr);
    ASSERT_FALSE(arguments) << path;
    EXPECT_NE(arguments.error().message.find(path), std::string::npos);
  }
  EXPECT_EQ(MountArguments(nlohmann::json::object(), MountStyle::kCtr).error().code, "agent_reply");
}

TEST(ContainerCommandsTest, AShareInWordsAndInATable) {
  api::ShareStatus share;
  share.name = "train";
  share.kept_by.kind = api::KeptBy::Kind::kHold;
  share.container = {{"podman", "0123456789abcdef", "box"}};
  api::ShareDevice& device = share.devices.emplace_back();
  device.uuid = "GPU-1";
  device.memory_limit_bytes = device.memory_request_bytes = 4 * kGiB;
  share.members.push_back({12, "python", kGiB, 0});
  const std::string text = InspectText(share, true);
  for (const char* part : {"prorata.dev/share=train", "`prorata create`",
                           "box (podman 0123456789ab)", "4 GiB", "process 12", "python, 1 GiB"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in\n" << text;
  }
  EXPECT_NE(ShareTable({share}).find("CONTAINER"), std::string::npos);
  EXPECT_NE(ShareTable({share}).find("12       box\n"), std::string::npos) << ShareTable({share});
  share.container.reset();
  EXPECT_EQ(ShareTable({share}).find("CONTAINER"), std::string::npos);
}

}  // namespace
}  // namespace prorata::cli
