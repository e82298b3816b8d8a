#include "agent/containers/outside_process.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace prorata::agent {
namespace {

TEST(OutsideProcessTest, LibcudaOfAMap) {
  const char* const map =
      "55d0c0000000-55d0c0001000 r--p 00000000 00:1b 12   /usr/bin/libcuda.so-not/python3\n"
      "7f10aa000000-7f10aa021000 rw-p 00000000 00:00 0 \n"
      "7f10b0000000-7f10b0100000 r--p 00000000 00:1b 77   /usr/local/cuda/compat/libcuda.so.1\n"
      "7f10b0100000-7f10b0200000 r-xp 00100000 00:1b 77   /usr/local/cuda/compat/libcuda.so.1\n"
      "7f10b0300000-7f10b0400000 r-xp 00000000 00:1b 78   /usr/lib/libcudart.so.12\n"
      "7f10b0500000-7f10b0600000 r-xp 00000000 00:1b 79   /with space/libcuda.so.real (deleted)\n"
      "7ffd00000000-7ffd00021000 rw-p 00000000 00:00 0    [stack]\n";
  EXPECT_EQ(LibcudaOfMaps(map),
            "/usr/local/cuda/compat/libcuda.so.1, /with space/libcuda.so.real (deleted)");
  EXPECT_EQ(LibcudaOfMaps(""), "");
  EXPECT_EQ(LibcudaOfMaps("no map at all"), "");
}

TEST(OutsideProcessTest, WhatAProgramCallsItsFilesDoesNoHarm) {
  EXPECT_EQ(LibcudaOfMaps("0-1 r-xp 0 00:1b 7 /a\x1b[2J/libcuda.so\x80"), "/a?[2J/libcuda.so?");
  std::string many;
  for (int i = 0; i < 1000; ++i) {
    many += "0-1 r-xp 0 00:1b 7 /" + std::to_string(i) + "/libcuda.so\n";
  }
  EXPECT_EQ(LibcudaOfMaps(many), "/0/libcuda.so, /1/libcuda.so, /2/libcuda.so");
}

TEST(OutsideProcessTest, AProcessInNoContainerIsNone) {
  // Unless the tests run in one themselves.
  const auto seen = InspectOutside(::getpid());
  if (seen) {
    EXPECT_EQ(seen->process.pid, ::getpid());
  }
  EXPECT_FALSE(InspectOutside(0));
  EXPECT_FALSE(InspectOutside(1 << 30));
}

}  // namespace
}  // namespace prorata::agent
