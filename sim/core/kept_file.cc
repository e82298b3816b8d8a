#include "sim/core/kept_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <utility>

namespace prorata::simgpu {

int DuplicateFarUp(int fd) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return -1;
  // Not further: the kernel's table of descriptors is as long as the highest number.
  const auto from = static_cast<int>(std::min<rlim_t>(limit.rlim_cur / 2, 4096));
  return fcntl(fd, F_DUPFD_CLOEXEC, from);
}

std::unique_ptr<KeptFile> KeptFile::Keep(int fd, std::string path) {
  std::unique_ptr<KeptFile> file(new KeptFile);
  struct stat info{};
  fstat(fd, &info);
  file->device_ = info.st_dev;
  file->inode_ = info.st_ino;
  file->path_ = std::move(path);
  const int far_up = DuplicateFarUp(fd);
  if (far_up >= 0) close(fd);
  file->fd_ = far_up >= 0 ? far_up : fd;
  return file;
}

KeptFile::~KeptFile() { Close(); }

void KeptFile::Close() {
  const int fd = fd_.exchange(-1);
  if (fd >= 0) close(fd);
}

bool KeptFile::Reopen() {
  // Closed, perhaps in a forked child, where somebody may hold the mutex for ever.
  if (fd_.load() < 0) return false;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (fcntl(fd_.load(), F_GETFD) >= 0) return true;  // another thread has done it
  const int fd = open(path_.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return false;
  struct stat info{};
  if (fstat(fd, &info) != 0 || info.st_dev != device_ || info.st_ino != inode_) {
    close(fd);
    return false;
  }
  const int far_up = DuplicateFarUp(fd);
  if (far_up >= 0) close(fd);
  fd_ = far_up >= 0 ? far_up : fd;
  return true;
}

}  // namespace prorata::simgpu
