#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "client/session/share.h"

namespace prorata::client {

ShareFolder FindShareFolder(char* folder, size_t capacity) {
  // First, and whatever the environment says: a container's share is what was mounted there.
  if (access(kShareInContainer, F_OK) == 0) {
    std::strcpy(folder, kShareInContainer);
    return ShareFolder::kFound;
  }
  const char* named = getenv("PRORATA_SHARE");
  if (named != nullptr && named[0] != 0) {
    if (std::strlen(named) >= capacity) return ShareFolder::kTooLong;
    std::strcpy(folder, named);
    return ShareFolder::kFound;
  }
  return ShareFolder::kNone;
}

const shm::LimitsFile* MapLimits(const char* folder, const char** why) {
  char path[sizeof Share::folder + 16];
  std::strcpy(path, folder);
  std::strcat(path, "/limits");
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    *why = errno == ENOENT ? "there is no limits file in it" : "its limits file cannot be opened";
    return nullptr;
  }
  const off_t size = lseek(fd, 0, SEEK_END);
  void* pages = size < static_cast<off_t>(sizeof(shm::LimitsFile))
                    ? MAP_FAILED
                    : mmap(nullptr, sizeof(shm::LimitsFile), PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (pages == MAP_FAILED) {
    *why = "its limits file is too short or cannot be mapped";
    return nullptr;
  }
  const auto* limits = static_cast<const shm::LimitsFile*>(pages);
  if (limits->header.magic != shm::kLimitsMagic || limits->header.version != shm::kLimitsVersion ||
      limits->header.device_count == 0 || limits->header.device_count > shm::kMaxDevices) {
    *why = "its limits file is not of this version of prorata";
    munmap(pages, sizeof(shm::LimitsFile));
    return nullptr;
  }
  madvise(pages, sizeof(shm::LimitsFile), MADV_DONTFORK);
  return limits;
}

}  // namespace prorata::client
