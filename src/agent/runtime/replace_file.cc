#include "agent/runtime/replace_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/unique_fd.h"

namespace prorata::agent {
namespace {

Status WriteAll(int fd, const std::string& text, const std::string& path, const char* code) {
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t n = ::write(fd, text.data() + written, text.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return FailErrno(code, "cannot write '" + path + "'", errno);
    written += static_cast<size_t>(n);
  }
  return {};
}

}  // namespace

Status ReplaceFile(const std::string& path, const std::string& text, mode_t mode,
                   const char* code) {
  const std::string building = path + ".new";
  const UniqueFd fd(
      ::open(building.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, mode));
  if (!fd) return FailErrno(code, "cannot write '" + building + "'", errno);
  Status ok = WriteAll(fd.get(), text, building, code);
  // The umask may have made it narrower.
  if (ok && (::fchmod(fd.get(), mode) != 0 || ::fsync(fd.get()) != 0 ||
             ::rename(building.c_str(), path.c_str()) != 0)) {
    ok = FailErrno(code, "cannot replace '" + path + "'", errno);
  }
  if (!ok) {
    ::unlink(building.c_str());
    return ok;
  }
  // The name, too: else a machine that loses power finds the file of before.
  const size_t slash = path.rfind('/');
  const UniqueFd folder(::open(slash == std::string::npos ? "." : path.substr(0, slash + 1).c_str(),
                               O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder) ::fsync(folder.get());
  return {};
}

}  // namespace prorata::agent
