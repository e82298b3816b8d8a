#pragma once

// Promises that are not kept yet. As tests/unmet.py: what is expected to fail passes, and says so
// loudly, while it fails; when it is met it fails, so that the mark is taken away.

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <string>
#include <utility>

namespace prorata::simulation {

// `known`: what is missed, by words of each expectation's message: best the end of its first line,
// which has the bound, and the case, which is the second. A miss of anything else is a failure as
// elsewhere; without any, all may be missed.
template <typename Body>
void Unmet(const char* why, std::initializer_list<const char*> known, Body&& body) {
  ::testing::TestPartResultArray results;
  {
    ::testing::ScopedFakeTestPartResultReporter reporter(
        ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
    body();
  }
  const ::testing::TestPartResult* first = nullptr;
  int missed = 0;
  for (int i = 0; i < results.size(); ++i) {
    const ::testing::TestPartResult& result = results.GetTestPartResult(i);
    if (!result.failed()) continue;
    const std::string message = result.message();
    const auto named = [&message](const char* words) {
      return message.find(words) != std::string::npos;
    };
    if (known.size() != 0 && std::none_of(known.begin(), known.end(), named)) {
      ADD_FAILURE() << "not among what is known to be missed: " << message;
      continue;
    }
    ++missed;
    if (first == nullptr) first = &result;
  }
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string name = std::string(test->test_suite_name()) + "." + test->name();
  if (missed == 0) {
    ADD_FAILURE() << name << " is met now: take away its mark (" << why << ")";
    return;
  }
  std::printf("EXPECTED FAILURE %s: %s (%d expectations missed; the first: %s)\n", name.c_str(),
              why, missed, first->summary());
}

template <typename Body>
void Unmet(const char* why, Body&& body) {
  Unmet(why, {}, std::forward<Body>(body));
}

}  // namespace prorata::simulation
