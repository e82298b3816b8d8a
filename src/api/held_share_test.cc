#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "api/control.h"

namespace prorata::api {
namespace {

TEST(HeldShare, ItsRequestRoundTrips) {
  ControlRequest request;
  request.op = ControlOp::kCreateShare;
  request.share.name = "train";
  request.share.token = "word";
  request.share.any_container = true;
  const auto read = DecodeRequest(EncodeRequest(request));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->share.token, "word");
  EXPECT_TRUE(read->share.any_container);
  const auto plain = DecodeRequest(R"({"op": "create_share", "share": {"containers": "one"}})");
  ASSERT_TRUE(plain);
  EXPECT_FALSE(plain->share.token);
  EXPECT_FALSE(plain->share.any_container);
  EXPECT_EQ(DecodeRequest(EncodeRequest({ControlOp::kInspectShare, {}, "x"}))->name, "x");
}

TEST(HeldShare, WhatIsRefused) {
  for (const char* bad : {
           R"({"op": "create_share", "share": {"token": "word"}})",
           R"({"op": "create_share", "share": {"name": "a", "token": ""}})",
           R"({"op": "create_share", "share": {"name": "a", "token": 3}})",
           R"({"op": "create_share", "share": {"containers": "two"}})",
           R"({"op": "create_share", "share": {"containers": 1}})",
           R"({"op": "inspect_share"})",
           R"({"op": "inspect_share", "name": "a", "more": 1})",
       }) {
    EXPECT_FALSE(DecodeRequest(bad)) << bad;
  }
}

TEST(HeldShare, WhatKeepsAShareRoundTrips) {
  for (const KeptBy& kept_by :
       {KeptBy{KeptBy::Kind::kProcess, 12, ""}, KeptBy{KeptBy::Kind::kFile, 0, "/etc/x"},
        KeptBy{KeptBy::Kind::kHold, 0, ""}}) {
    ShareStatus share;
    share.kept_by = kept_by;
    const KeptBy read = ShareFromJson(ToJson(share))->kept_by;
    EXPECT_EQ(read.kind, kept_by.kind);
    EXPECT_EQ(read.pid, kept_by.pid);
    EXPECT_EQ(read.file, kept_by.file);
  }
  EXPECT_EQ(FormatKeptBy({KeptBy::Kind::kProcess, 12, ""}), "process 12");
  EXPECT_EQ(FormatKeptBy({KeptBy::Kind::kFile, 0, "/etc/x"}), "'/etc/x'");
  EXPECT_EQ(FormatKeptBy({KeptBy::Kind::kHold, 0, ""}), "`prorata create`");
}

TEST(HeldShare, ItsContainerRoundTrips) {
  ShareStatus share;
  share.name = "train";
  share.any_container = true;
  share.container = {{"podman", "0123", "box"}};
  share.outside = {{7, "python", 1, 5, "/compat/libcuda.so.1"}, {8, "x", 0, {}, ""}};
  const auto read = ShareFromJson(ToJson(share));
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_TRUE(read->any_container);
  ASSERT_TRUE(read->container);
  ASSERT_EQ(read->outside.size(), 2u);
  EXPECT_EQ(read->outside[0].pid, 7);
  EXPECT_EQ(read->outside[0].command, "python");
  EXPECT_EQ(read->outside[0].gpu, 1u);
  EXPECT_EQ(read->outside[0].used_bytes, 5u);
  EXPECT_EQ(read->outside[0].libraries, "/compat/libcuda.so.1");
  EXPECT_FALSE(read->outside[1].used_bytes);
  EXPECT_EQ(read->container->engine, "podman");
  EXPECT_EQ(read->container->id, "0123");
  EXPECT_EQ(read->container->name, "box");
  const auto without = ShareFromJson(ToJson(ShareStatus{}));
  ASSERT_TRUE(without);
  EXPECT_FALSE(without->container);
}

}  // namespace
}  // namespace prorata::api
