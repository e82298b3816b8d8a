#include "cli/output.h"

#include <cerrno>
#include <cstdio>

#include "cli/options/options.h"
#include "cli/text/one_line.h"

namespace prorata::cli {
namespace {

std::unexpected<Error> CannotWrite(int error_number) {
  return FailErrno(error_number == EPIPE ? "closed" : "write", "cannot write to standard output",
                   error_number);
}

}  // namespace

Status WriteOut(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (written && std::fflush(stdout) == 0) return {};
  const int error_number = errno;
  std::clearerr(stdout);  // it is said by who called, and not again by CloseOutput
  return CannotWrite(error_number);
}

int Print(const std::string& text) {
  const Status written = WriteOut(text);
  return written ? kExitOk : Refuse(written.error());
}

int CloseOutput(int status) {
  errno = 0;
  const bool written = std::ferror(stdout) == 0 && std::fflush(stdout) == 0;
  if (written || status != kExitOk || errno == EPIPE) return status;
  return Refuse(CannotWrite(errno != 0 ? errno : EIO).error());
}

void PrintError(const std::string& message) {
  std::fprintf(stderr, "prorata: %s\n", OneLine(message).c_str());
}

int Refuse(const Error& error) {
  PrintError(error.message);
  return kExitRefused;
}

}  // namespace prorata::cli
