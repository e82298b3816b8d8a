#include "base/life_lock.h"

#include <fcntl.h>

#include <cerrno>

namespace prorata {
namespace {

bool Lock(int fd, int command, struct flock* whole) {
  whole->l_whence = SEEK_SET;  // all of it, and l_pid is 0, as it must be
  return ::fcntl(fd, command, whole) == 0;
}

}  // namespace

Result<UniqueFd> TakeLifeLock(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd) return FailErrno("lock", "cannot open '" + path + "'", errno);
  struct flock all = {};
  all.l_type = F_WRLCK;
  if (Lock(fd.get(), F_OFD_SETLK, &all)) return fd;
  if (errno == EAGAIN || errno == EACCES) return Fail("locked", "'" + path + "' is locked");
  return FailErrno("lock", "cannot lock '" + path + "'", errno);
}

bool IsLifeLocked(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  struct flock held = {};
  held.l_type = F_RDLCK;
  return fd && Lock(fd.get(), F_OFD_GETLK, &held) && held.l_type != F_UNLCK;
}

}  // namespace prorata
