#include "agent/share/shared_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

namespace prorata::agent {

using shm::LimitsFile;
using shm::UsageFile;

std::string LimitsMapping::BuildingName(const std::string& path) { return path + ".new"; }

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(address_, other.address_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (address_ != nullptr) ::munmap(address_, bytes_);
}

Result<LimitsMapping> LimitsMapping::Map(const std::string& path, int fd) {
  void* address = ::mmap(nullptr, sizeof(LimitsFile), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) return FailErrno("limits", "cannot map '" + path + "'", errno);
  return LimitsMapping(Mapping(address, sizeof(LimitsFile)));
}

Result<LimitsMapping> LimitsMapping::Create(const std::string& path,
                                            const std::string& share_name) {
  ::unlink(path.c_str());
  // Members may find the file as soon as it has its name, so it gets that last.
  const std::string building = BuildingName(path);
  ::unlink(building.c_str());
  const UniqueFd fd(::open(building.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0444));
  if (!fd) return FailErrno("limits", "cannot make '" + building + "'", errno);
  // Allocated, not only sized: a full tmpfs must fail here, and not kill us by SIGBUS later.
  if (const int error = ::posix_fallocate(fd.get(), 0, sizeof(LimitsFile)); error != 0) {
    return FailErrno("limits", "cannot make room for '" + building + "'", error);
  }
  if (::fchmod(fd.get(), 0444) != 0) {
    return FailErrno("limits", "cannot set the mode of '" + building + "'", errno);
  }
  auto limits = Map(building, fd.get());
  if (!limits) return limits;
  auto* file = new (limits->get()) LimitsFile();
  file->header.magic = shm::kLimitsMagic;
  file->header.version = shm::kLimitsVersion;
  file->header.size_bytes = sizeof(LimitsFile);
  file->header.member_slots = shm::kMaxMembers;
  std::strncpy(file->header.share_name, share_name.c_str(), shm::kShareNameBytes - 1);
  if (::rename(building.c_str(), path.c_str()) != 0) {
    return FailErrno("limits", "cannot name '" + path + "'", errno);
  }
  return limits;
}

Result<LimitsMapping> LimitsMapping::Adopt(const std::string& path, const std::string& share_name) {
  // Its mode is 0444, for its owner too; for the moment of opening it is ours to write.
  const UniqueFd look(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!look) return FailErrno("limits", "cannot open '" + path + "'", errno);
  struct stat info;
  if (::fstat(look.get(), &info) != 0 || !S_ISREG(info.st_mode) ||
      info.st_size != sizeof(LimitsFile) || info.st_uid != ::geteuid()) {
    return Fail("limits", "'" + path + "' is not a limits file of ours");
  }
  ::fchmod(look.get(), 0644);
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  const int error = errno;
  ::fchmod(look.get(), 0444);
  if (!fd) return FailErrno("limits", "cannot open '" + path + "' for writing", error);
  auto limits = Map(path, fd.get());
  if (!limits) return limits;
  const shm::LimitsHeader& header = (*limits)->header;
  if (header.magic != shm::kLimitsMagic || header.version != shm::kLimitsVersion ||
      header.size_bytes != sizeof(LimitsFile) ||
      std::strncmp(header.share_name, share_name.c_str(), shm::kShareNameBytes) != 0) {
    return Fail("limits", "'" + path + "' is the limits file of another version or share");
  }
  return limits;
}

Result<UsageMapping> UsageMapping::Map(UniqueFd fd) {
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  constexpr off_t kMaxBytes = 64 << 10;
  // First the seals: only then is what fstat says true for ever.
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    return Fail("usage", "the usage memory is not a memfd sealed against resizing");
  }
  struct stat info;
  if (::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode) ||
      info.st_size < static_cast<off_t>(sizeof(UsageFile)) || info.st_size > kMaxBytes) {
    return Fail("usage", "the usage memory has the wrong size");
  }
  void* address = ::mmap(nullptr, sizeof(UsageFile), PROT_READ, MAP_SHARED, fd.get(), 0);
  if (address == MAP_FAILED) return FailErrno("usage", "cannot map the usage memory", errno);
  UsageMapping usage(Mapping(address, sizeof(UsageFile)), std::move(fd));
  const auto* header = static_cast<const shm::UsageHeader*>(address);
  if (header->magic != shm::kUsageMagic || header->version != shm::kUsageVersion) {
    return Fail("usage", "the usage memory is of another version");
  }
  return usage;
}

int UsageMapping::Reader() {
  if (!std::exchange(fd_only_reads_, true)) {
    const std::string again = "/proc/self/fd/" + std::to_string(fd_.get());
    fd_ = UniqueFd(::open(again.c_str(), O_RDONLY | O_CLOEXEC));
  }
  return fd_.get();
}

}  // namespace prorata::agent
