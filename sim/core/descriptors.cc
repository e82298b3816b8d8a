#include "sim/core/descriptors.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "sim/core/model/steps.h"

namespace prorata::simgpu {

namespace {

constexpr uint64_t kMagic = 0x31646673'6d697370;  // "psimsfd1"

struct Content {
  uint64_t magic = 0;
  uint64_t handle = 0;
  uint64_t cookie = 0;
};

struct flock FirstByte(short type) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_len = 1;
  return lock;
}

}  // namespace

std::string Descriptors::PathOf(uint32_t index) const {
  return folder_ + "/export-" + std::to_string(index);
}

Result<UniqueFd> Descriptors::Make(uint32_t index, const ShareName& name) const {
  const std::string path = PathOf(index);
  unlink(path.c_str());  // left by somebody who was killed over it
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (!fd) return FailErrno("sim_state", "cannot make " + path, errno);
  const Content content = {kMagic, name.handle, name.cookie};
  if (pwrite(fd.get(), &content, sizeof content, 0) != ssize_t{sizeof content}) {
    return FailErrno("sim_state", "cannot write " + path, errno);
  }
  At(Step::kDescriptorFile);
  struct flock lock = FirstByte(F_RDLCK);
  if (fcntl(fd.get(), F_OFD_SETLK, &lock) != 0) {
    return FailErrno("sim_state", "cannot lock " + path, errno);
  }
  At(Step::kDescriptorHeld);
  return fd;
}

bool Descriptors::Held(uint32_t index) const {
  const UniqueFd fd(open(PathOf(index).c_str(), O_RDWR | O_CLOEXEC));
  if (!fd) return errno != ENOENT;
  struct flock lock = FirstByte(F_WRLCK);
  // If the kernel cannot tell, call it held: freeing memory in use is the worse error.
  return fcntl(fd.get(), F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

void Descriptors::Remove(uint32_t index) const {
  At(Step::kDescriptorDropped);
  unlink(PathOf(index).c_str());
}

bool Descriptors::Read(int fd, ShareName* name) {
  Content content;
  if (pread(fd, &content, sizeof content, 0) != ssize_t{sizeof content}) return false;
  *name = {content.handle, content.cookie};
  return content.magic == kMagic;
}

}  // namespace prorata::simgpu
