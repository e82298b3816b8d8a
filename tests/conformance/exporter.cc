#include "exporter.h"

#include <gtest/gtest.h>
#include <limits.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>

namespace prorata::conformance {
namespace {

// Beside the program that runs the tests.
std::string Program() {
  char path[PATH_MAX] = {};
  if (readlink("/proc/self/exe", path, sizeof(path) - 1) < 0) return "";
  const std::string self = path;
  return self.substr(0, self.rfind('/')) + "/sim_exporter";
}

int ReceiveDescriptor(int socket) {
  char byte = 0;
  iovec piece = {&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) return -1;
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return -1;
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
  return fd;
}

}  // namespace

Exporter::Exporter(uint64_t bytes) {
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    ADD_FAILURE() << "no sockets";
    return;
  }
  socket_ = ends[0];
  constexpr int kTheirs = 3;
  std::string program = Program(), number = std::to_string(kTheirs), size = std::to_string(bytes);
  char* const arguments[] = {program.data(), number.data(), size.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], kTheirs);  // also where the two are equal
  const int error = posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (error != 0) {
    pid_ = -1;
    ADD_FAILURE() << "cannot start " << program << ": " << std::strerror(error);
    return;
  }
  fd_ = ReceiveDescriptor(socket_);
  if (fd_ < 0) ADD_FAILURE() << program << " sent no descriptor";
}

Exporter::~Exporter() {
  if (socket_ >= 0) close(socket_);
  int status = 0;
  if (pid_ > 0) waitpid(pid_, &status, 0);
}

uint64_t Exporter::FirstWord() const {
  const char ask = 'r';
  uint64_t word = 0;
  if (write(socket_, &ask, 1) != 1 ||
      recv(socket_, &word, sizeof(word), MSG_WAITALL) != ssize_t{sizeof(word)}) {
    ADD_FAILURE() << "the exporter does not answer";
  }
  return word;
}

}  // namespace prorata::conformance
