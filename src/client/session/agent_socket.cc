#include "client/session/agent_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

namespace prorata::client {

namespace {

constexpr char kSocketName[] = "/socket";

int Connect(const sockaddr_un& address) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd >= 0 && connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    close(fd);
    return -1;
  }
  return fd;
}

}  // namespace

int ConnectToAgent(const char* folder) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (std::strlen(folder) + sizeof kSocketName <= sizeof address.sun_path) {
    std::strcpy(address.sun_path, folder);
    std::strcat(address.sun_path, kSocketName);
    return Connect(address);
  }
  // Its name is too long: so by way of a descriptor of the folder.
  const int directory = open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (directory < 0) return -1;
  std::strcpy(address.sun_path, "/proc/self/fd/");
  char* at = address.sun_path + std::strlen(address.sun_path);
  char digits[12];
  size_t count = 0;
  for (int rest = directory; count == 0 || rest != 0; rest /= 10) {
    digits[count++] = static_cast<char>('0' + rest % 10);
  }
  while (count != 0) *at++ = digits[--count];
  std::strcpy(at, kSocketName);
  const int fd = Connect(address);
  close(directory);
  return fd;
}

}  // namespace prorata::client
