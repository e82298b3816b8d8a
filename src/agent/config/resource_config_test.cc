#include "agent/config/resource_config.h"

#include <gtest/gtest.h>

#include "api/control.h"

namespace prorata::agent {
namespace {

std::string ErrorOf(std::string_view text) {
  const auto clients = ParseResourceConfig("c.txt", text);
  if (clients) return "";
  EXPECT_EQ(clients.error().code, "resource_config");
  EXPECT_EQ(clients.error().message.find('\n'), std::string::npos);
  return clients.error().message;
}

TEST(ResourceConfigTest, WhatGeminiReads) {
  const auto clients = ParseResourceConfig(
      "c.txt", "3\ndefault/trainer 0.5 1.0 4294967296\nb 0.500000\t0.5 2\nc 0 1 3\n");
  ASSERT_TRUE(clients) << clients.error().message;
  const std::vector<ResourceClient> wanted = {
      {"default/trainer", {500'000}, Fraction::One(), 4294967296, 2},
      {"b", {500'000}, {500'000}, 2, 3},
      {"c", {0}, Fraction::One(), 3, 4}};
  EXPECT_EQ(*clients, wanted);
}

TEST(ResourceConfigTest, NoClientsIsAConfigurationToo) {
  const auto clients = ParseResourceConfig("c.txt", "0\n");
  ASSERT_TRUE(clients);
  EXPECT_TRUE(clients->empty());
}

TEST(ResourceConfigTest, EmptyLinesCarriageReturnsAndNoLastNewline) {
  const auto clients = ParseResourceConfig("c.txt", "\r\n2\r\n\r\n  a 0 1 1\r\n\n\tb 0 1 1 \r");
  ASSERT_TRUE(clients) << clients.error().message;
  ASSERT_EQ(clients->size(), 2u);
  EXPECT_EQ((*clients)[0].line, 4u);
  EXPECT_EQ((*clients)[1].line, 6u);
}

TEST(ResourceConfigTest, TheNumberOfClientsIsKept) {
  EXPECT_EQ(ErrorOf("2\na 0 1 1\n"), "c.txt:1: it says 2 clients, but 1 follow");
  EXPECT_EQ(ErrorOf("\n1\na 0 1 1\nb 0 1 1\n"), "c.txt:2: it says 1 clients, but 2 follow");
  EXPECT_EQ(ErrorOf(""), "c.txt:1: the file is empty; its first line is the number of clients");
  EXPECT_EQ(ErrorOf(" \n\n"),
            "c.txt:1: the file is empty; its first line is the number of clients");
  for (const char* text : {"a 0 1 1\n", "x\n", "-1\na 0 1 1\n", "1 2\n", "4294967296\n", "1.0\n"}) {
    EXPECT_NE(ErrorOf(text).find("c.txt:1: '"), std::string::npos) << text;
    EXPECT_NE(ErrorOf(text).find("number of clients"), std::string::npos) << text;
  }
}

TEST(ResourceConfigTest, FieldsAreFour) {
  EXPECT_EQ(ErrorOf("1\na 0 1\n"),
            "c.txt:2: it has 3 fields, not 4; a client's line is ID REQUEST LIMIT GPU_MEM, and "
            "users=... or memory_request=... if need be");
  EXPECT_NE(ErrorOf("1\na 0 1 1 1\n").find("the field '1' after GPU_MEM is not users=all"),
            std::string::npos);
  EXPECT_NE(ErrorOf("1\na 0 1 1 users=all 1\n").find("the field '1' after GPU_MEM"),
            std::string::npos);
  EXPECT_NE(ErrorOf("1\na 0 1 1 a b c\n").find("it has 7 fields"), std::string::npos);
}

TEST(ResourceConfigTest, FurtherFieldsInAnyOrder) {
  for (const char* line :
       {"a 0 1 5 users=7 memory_request=4", "a 0 1 5 memory_request=4 users=7"}) {
    const auto clients = ParseResourceConfig("c.txt", "1\n" + std::string(line) + "\n");
    ASSERT_TRUE(clients) << clients.error().message;
    EXPECT_EQ(clients->front().memory_request_bytes, 4u);
    EXPECT_TRUE(clients->front().allow_users.Admits(7));
  }
  const auto clients = ParseResourceConfig("c.txt", "2\na 0 1 5 memory_request=0\nb 0 1 5\n");
  ASSERT_TRUE(clients) << clients.error().message;
  EXPECT_EQ(clients->front().memory_request_bytes, 0u);
  EXPECT_FALSE(clients->back().memory_request_bytes);
}

TEST(ResourceConfigTest, NumbersOutOfRange) {
  const struct {
    const char* line;
    const char* said;
  } kCases[] = {
      {"a 1.1 1 1", "the REQUEST '1.1' is no fraction"},
      {"a -0.1 1 1", "the REQUEST '-0.1' is no fraction"},
      {"a nan 1 1", "the REQUEST 'nan' is no fraction"},
      {"a 0.1 2.0 1", "the LIMIT '2.0' is no fraction"},
      {"a 0.1 1e-1 1", "the LIMIT '1e-1' is no fraction"},
      {"a 0.1 0.1234567 1", "the LIMIT '0.1234567' is no fraction"},
      {"a 0 0 1", "the LIMIT is 0, with which 'a' could never run"},
      {"a 0.5 0.4 1", "the LIMIT of 'a', 0.4, is below its REQUEST, 0.5"},
      {"a 0 1 0", "the GPU_MEM '0' is no number of bytes above 0"},
      {"a 0 1 -1", "the GPU_MEM '-1' is no number"},
      {"a 0 1 1GiB", "the GPU_MEM '1GiB' is no number"},
      {"a 0 1 1.5", "the GPU_MEM '1.5' is no number"},
      {"a 0 1 18446744073709551616", "the GPU_MEM '18446744073709551616' is no number"},
      {"a 0 1 9223372036854775808", "the GPU_MEM '9223372036854775808' is no number"},
      {"a 0 1 5 memory_request=6", "the 'memory_request=6' is no number of bytes from 0 to the "},
      {"a 0 1 5 memory_request=", "the 'memory_request=' is no number of bytes"},
      {"a 0 1 5 memory_request=-1", "the 'memory_request=-1' is no number of bytes"},
      {"a 0 1 5 memory_request=1 memory_request=2", "the field 'memory_request=2' comes second"},
      {"a 0 1 5 users=1 users=2", "the field 'users=2' comes second"},
  };
  for (const auto& bad : kCases) {
    EXPECT_NE(ErrorOf("2\nz 0 1 1\n" + std::string(bad.line) + "\n")
                  .find("c.txt:3: " + std::string(bad.said)),
              std::string::npos)
        << bad.line << ": " << ErrorOf("2\nz 0 1 1\n" + std::string(bad.line) + "\n");
  }
}

TEST(ResourceConfigTest, AnIdIsANameOfAShare) {
  for (const char* id : {"-a", "a//b", "/a", "a/", "..", "a/../b", "a:b", "a+b"}) {
    EXPECT_NE(ErrorOf("1\n" + std::string(id) + " 0 1 1\n").find("c.txt:2: the ID '"),
              std::string::npos)
        << id;
  }
  const std::string longest(api::kMaxShareNameLength, 'x');
  EXPECT_EQ(ErrorOf("1\n" + longest + " 0 1 1\n"), "");
  EXPECT_NE(ErrorOf("1\n" + longest + "x 0 1 1\n").find("longer than 63"), std::string::npos);
  EXPECT_EQ(ErrorOf("1\n\x01\x80 0 1 1\n").substr(0, 21),
            "c.txt:2: the ID '?"
            "?' ");
}

TEST(ResourceConfigTest, AnIdStandsOnce) {
  EXPECT_EQ(ErrorOf("3\na 0 1 1\nb 0 1 1\na 0 1 1\n"),
            "c.txt:4: the ID 'a' is that of line 2, too");
}

TEST(ResourceConfigTest, RequestsAddUpToAtMostOne) {
  EXPECT_EQ(ErrorOf("2\na 0.7 1 1\nb 0.3 1 1\n"), "");
  EXPECT_EQ(ErrorOf("2\na 0.7 1 1\nb 0.300001 1 1\n"),
            "c.txt:3: with the REQUEST of 'b' all of them add up to 1.000001, above 1: there is "
            "one GPU");
}

TEST(ResourceConfigTest, NoMoreClientsThanAnAgentHolds) {
  std::string text = std::to_string(api::kMaxShares + 1) + "\n";
  for (uint32_t i = 0; i <= api::kMaxShares; ++i) text += "c" + std::to_string(i) + " 0 1 1\n";
  EXPECT_NE(ErrorOf(text).find("one client more than the 256"), std::string::npos);
  EXPECT_NE(ErrorOf(std::string(kMaxResourceConfigBytes + 1, '\n')).find("larger than 1 MiB"),
            std::string::npos);
}

TEST(ResourceConfigTest, TheOptionNamesAGpuAndAFile) {
  const auto file = ParseResourceConfigFile("GPU-1=/etc/a=b.txt");
  ASSERT_TRUE(file);
  EXPECT_EQ(file->gpu, "GPU-1");
  EXPECT_EQ(file->path, "/etc/a=b.txt");
  for (const char* text : {"", "=", "GPU-1", "GPU-1=", "=file"}) {
    EXPECT_FALSE(ParseResourceConfigFile(text)) << text;
  }
}

}  // namespace
}  // namespace prorata::agent
