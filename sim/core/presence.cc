#include "sim/core/presence.h"

#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>

#include "sim/core/kept_file.h"
#include "sim/core/model/steps.h"

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

// The kernel gives every program image 16 random bytes (getauxval(3), AT_RANDOM), which forked
// children inherit; and it knows when each process began, in ticks since the boot (proc(5), stat,
// the 22nd field), which an exec does not change.
uint64_t OwnImage() {
  uint64_t image = 0;
  const auto* bytes = reinterpret_cast<const void*>(getauxval(AT_RANDOM));
  if (bytes != nullptr) std::memcpy(&image, bytes, sizeof image);
  std::ifstream file("/proc/self/stat");
  std::string word;
  // The second field, the name in parentheses, may contain anything.
  std::getline(file, word, '\0');
  std::istringstream fields(word.substr(std::min(word.size(), word.rfind(')') + 1)));
  for (int field = 3; field <= 22; ++field) fields >> word;
  uint64_t began = 0;
  std::from_chars(word.data(), word.data() + word.size(), began);
  return image ^ began * 0x9e3779b97f4a7c15u;
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
  // Far up, as kept_file.h says; the first one stays, too, since closing it is trap A.
  const int far_up = DuplicateFarUp(fd);
  const int kept = far_up >= 0 ? far_up : fd;
  open_files[{info.st_dev, info.st_ino}] = kept;
  return Presence(kept);
}

bool Presence::Claim(Index slot) const {
  struct flock lock = ByteLock(F_WRLCK, slot, 1);
  const bool claimed = fcntl(fd_, F_SETLK, &lock) == 0;
  At(Step::kClaimed);
  return claimed;
}

void Presence::Release(Index slot) const {
  struct flock lock = ByteLock(F_UNLCK, slot, 1);
  fcntl(fd_, F_SETLK, &lock);
  At(Step::kReleased);
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
