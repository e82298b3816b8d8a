#include "client/session/agent_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

namespace prorata::client {

// A folder's name may be longer than sun_path: so by way of a descriptor of the folder.
int ConnectToAgent(const char* folder) {
  const int directory = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return -1;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, "/proc/self/fd/");
  char* at = address.sun_path + std::strlen(address.sun_path);
  char digits[12];
  size_t count = 0;
  for (int rest = directory; count == 0 || rest != 0; rest /= 10) {
    digits[count++] = static_cast<char>('0' + rest % 10);
  }
  while (count != 0) *at++ = digits[--count];
  std::strcpy(at, "/socket");
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd >= 0 && connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    close(fd);
    close(directory);
    return -1;
  }
  close(directory);
  return fd;
}

}  // namespace prorata::client
