#pragma once

// Promises that are not kept yet. As tests/unmet.py: what is expected to fail passes, and says so
// loudly, while it fails; when it is met it fails, so that the mark is taken away.

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

namespace prorata::simulation {

template <typename Body>
void Unmet(const char* why, Body&& body) {
  ::testing::TestPartResultArray results;
  {
    ::testing::ScopedFakeTestPartResultReporter reporter(
        ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
    body();
  }
  int failures = 0;
  for (int i = 0; i < results.size(); ++i) failures += results.GetTestPartResult(i).failed();
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string name = std::string(test->test_suite_name()) + "." + test->name();
  if (failures == 0) {
    ADD_FAILURE() << name << " is met now: take away its mark (" << why << ")";
    return;
  }
  std::printf("EXPECTED FAILURE %s: %s (%d expectations missed; the first: %s)\n", name.c_str(),
              why, failures, results.GetTestPartResult(0).summary());
}

}  // namespace prorata::simulation
