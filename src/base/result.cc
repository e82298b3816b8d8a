#include "base/result.h"

#include <cstring>

namespace prorata {

std::unexpected<Error> FailErrno(std::string code, std::string_view what, int error_number) {
  char buffer[128];
  std::string message(what);
  message += ": ";
  message += strerror_r(error_number, buffer, sizeof buffer);
  return Fail(std::move(code), std::move(message));
}

}  // namespace prorata
