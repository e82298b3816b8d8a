#include "simgpu/core/presence.h"

#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

namespace prorata::simgpu {

namespace {

struct flock ByteLock(short type, Index slot, off_t length) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = slot;
  lock.l_len = length;
  return lock;
}

// The kernel gives every program image 16 random bytes (getauxval(3), AT_RANDOM).
uint64_t OwnImage() {
  uint64_t image = 0;
  const auto* bytes = reinterpret_cast<const void*>(getauxval(AT_RANDOM));
  if (bytes != nullptr) std::memcpy(&image, bytes, sizeof image);
  return image;
}

}  // namespace

Identity Identity::Self() {
  Identity self;
  self.pid = getpid();
  struct stat info{};
  if (stat("/proc/self/ns/pid", &info) == 0) self.pid_namespace = info.st_ino;
  self.image = OwnImage();
  return self;
}

Result<Presence> Presence::Open(const std::string& path) {
  // Never destroyed: programs call the driver while exiting.
  static auto& mutex = *new std::mutex;
  static auto& open_files = *new std::map<std::pair<dev_t, ino_t>, int>;
  const std::lock_guard lock(mutex);
  struct stat info{};
  if (stat(path.c_str(), &info) == 0) {
    const auto found = open_files.find({info.st_dev, info.st_ino});
    if (found != open_files.end()) return Presence(found->second);
  }
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return FailErrno("sim_state", "cannot open " + path, errno);
  if (fstat(fd, &info) != 0) return FailErrno("sim_state", "cannot look at " + path, errno);
  open_files[{info.st_dev, info.st_ino}] = fd;
  return Presence(fd);
}

bool Presence::Claim(Index slot) const {
  struct flock lock = ByteLock(F_WRLCK, slot, 1);
  return fcntl(fd_, F_SETLK, &lock) == 0;
}

void Presence::Release(Index slot) const {
  struct flock lock = ByteLock(F_UNLCK, slot, 1);
  fcntl(fd_, F_SETLK, &lock);
}

int Presence::HolderPid(Index slot) const {
  struct flock lock = ByteLock(F_WRLCK, slot, 1);
  // If the kernel cannot tell, call it alive: freeing a living process's memory is the worse error.
  if (fcntl(fd_, F_GETLK, &lock) != 0) return 0;
  return lock.l_type == F_UNLCK ? -1 : lock.l_pid;
}

bool Presence::AnyOther() const {
  struct flock lock = ByteLock(F_WRLCK, 0, 0);
  return fcntl(fd_, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

}  // namespace prorata::simgpu
