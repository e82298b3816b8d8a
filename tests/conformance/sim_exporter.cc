// sim_exporter SOCKET BYTES: memory of the simulated device 0 that no CUDA program made, as that of
// a Vulkan program would be, for tests of cuImportExternalMemory.
//
// Takes a context of the machine and so many bytes, all of value 0x5a, and sends a file descriptor
// of them over the socket. Then answers each byte that comes with the memory's first word, and ends
// when the socket is closed. What it took is on its own account, as NVML shows.

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <iostream>

#include "sim/core/config.h"
#include "sim/core/machine.h"

namespace prorata::simgpu {
namespace {

int Fail(const std::string& message) {
  std::cerr << "sim_exporter: " << message << "\n";
  return 1;
}

bool SendDescriptor(int socket, int fd) {
  char byte = 0;
  iovec piece = {&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(fd))] = {};
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(fd));
  std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  return sendmsg(socket, &message, MSG_NOSIGNAL) == 1;
}

int Main(int socket, uint64_t bytes) {
  const auto config = FindMachineConfig();
  if (!config) return Fail(config.error().message);
  const auto machine = Machine::Attach(*config, FindStateFolder());
  if (!machine) return Fail(machine.error().message);
  const auto process = (*machine)->RegisterProcess();
  if (!process) return Fail("the machine takes no more processes");
  const auto context = (*machine)->CreateContext(*process, 0);
  if (!context) return Fail("the device has no room for a context");
  const auto slabs = (*machine)->AllocSlabs(*context, bytes);
  if (!slabs) return Fail("the device has no room for " + std::to_string(bytes) + " bytes");
  for (const Extent& extent : *slabs) {
    void* const at = mmap(nullptr, extent.length_bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                          (*machine)->memory_fd(0), static_cast<off_t>(extent.offset_bytes));
    if (at == MAP_FAILED) return Fail("cannot map the memory");
    std::memset(at, 0x5a, extent.length_bytes);
    munmap(at, extent.length_bytes);
  }
  const auto shared = (*machine)->ShareSlabs(*context, *slabs);
  if (!shared) return Fail("cannot share the memory");
  const auto fd = (*machine)->ExportDescriptor(shared->share);
  if (!fd || !SendDescriptor(socket, *fd)) return Fail("cannot send the descriptor");
  close(*fd);
  const auto offset = static_cast<off_t>(slabs->front().offset_bytes);
  const void* const first =
      mmap(nullptr, sizeof(uint64_t), PROT_READ, MAP_SHARED, (*machine)->memory_fd(0), offset);
  if (first == MAP_FAILED) return Fail("cannot map the memory");
  for (char asked; read(socket, &asked, 1) == 1;) {
    uint64_t word;
    std::memcpy(&word, first, sizeof(word));
    if (write(socket, &word, sizeof(word)) != ssize_t{sizeof(word)}) break;
  }
  return 0;
}

}  // namespace
}  // namespace prorata::simgpu

int main(int argc, char** argv) {
  if (argc != 3) return prorata::simgpu::Fail("give a socket's descriptor and bytes");
  return prorata::simgpu::Main(std::atoi(argv[1]), std::strtoull(argv[2], nullptr, 10));
}
