#pragma once

#include <expected>
#include <string>
#include <string_view>
#include <utility>

namespace prorata {

// An expected failure, in words a person can act on: what was tried, on what, what was seen, and
// what to do next. `code` is stable and machine-readable (lower_snake_case), for tests and --json.
struct Error {
  std::string code;
  std::string message;
};

template <typename T>
using Result = std::expected<T, Error>;

using Status = Result<void>;

inline std::unexpected<Error> Fail(std::string code, std::string message) {
  return std::unexpected<Error>(Error{std::move(code), std::move(message)});
}

// Fail with the text of an errno value at the end: "cannot open /x: No such file or directory".
std::unexpected<Error> FailErrno(std::string code, std::string_view what, int error_number);

}  // namespace prorata
