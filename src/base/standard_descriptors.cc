#include "base/standard_descriptors.h"

#include <fcntl.h>
#include <unistd.h>

namespace prorata {

void ReserveStandardDescriptors() {
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    // The lowest that is free, which is this one.
    ::open("/dev/null", (fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) | O_CLOEXEC);
  }
}

}  // namespace prorata
