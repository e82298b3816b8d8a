#include "exchange.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace prorata::stress {
namespace {

void Need(bool held, const char* what) {
  if (held) return;
  std::perror(what);
  std::exit(2);
}

union Ancillary {
  cmsghdr header;
  char space[CMSG_SPACE(sizeof(int))];
};

}  // namespace

Exchange::Exchange(uint32_t processes) : processes_(processes) {
  void* pages = ::mmap(nullptr, kSlots * sizeof(Slot), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  Need(pages != MAP_FAILED, "memory_stress: map the exchange");
  slots_ = static_cast<Slot*>(pages);
  for (uint32_t i = 0; i < processes; ++i) {
    int ends[2];
    Need(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0,
         "memory_stress: make sockets");
    inbox_[i] = ends[0];
    outbox_[i] = ends[1];
  }
}

void Exchange::Post(const CUipcMemHandle& handle, std::mt19937_64* random) {
  Slot& slot = slots_[(*random)() % kSlots];
  uint32_t free = 0;
  if (!slot.busy.compare_exchange_strong(free, 1, std::memory_order_acquire)) return;
  slot.handle = handle;
  slot.process = process_ + 1;
  slot.busy.store(0, std::memory_order_release);
}

bool Exchange::Find(std::mt19937_64* random, CUipcMemHandle* handle) {
  Slot& slot = slots_[(*random)() % kSlots];
  uint32_t free = 0;
  if (!slot.busy.compare_exchange_strong(free, 1, std::memory_order_acquire)) return false;
  const bool found = slot.process != 0 && slot.process != process_ + 1;
  if (found) *handle = slot.handle;
  slot.busy.store(0, std::memory_order_release);
  return found;
}

bool Exchange::SendDescriptor(int fd, uint64_t bytes, std::mt19937_64* random) {
  if (processes_ < 2) return false;
  const uint32_t other = (process_ + 1 + (*random)() % (processes_ - 1)) % processes_;
  iovec part = {&bytes, sizeof bytes};
  Ancillary ancillary = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = ancillary.space;
  message.msg_controllen = sizeof ancillary.space;
  ancillary.header = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
  std::memcpy(CMSG_DATA(&ancillary.header), &fd, sizeof fd);
  return ::sendmsg(outbox_[other], &message, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof bytes;
}

void Exchange::CloseUnread() {
  uint64_t bytes = 0;
  for (process_ = 0; process_ < processes_; ++process_) {
    for (int fd; (fd = ReceiveDescriptor(&bytes)) >= 0;) ::close(fd);
  }
}

int Exchange::ReceiveDescriptor(uint64_t* bytes) {
  iovec part = {bytes, sizeof *bytes};
  Ancillary ancillary = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = ancillary.space;
  message.msg_controllen = sizeof ancillary.space;
  if (::recvmsg(inbox_[process_], &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != sizeof *bytes) {
    return -1;
  }
  const cmsghdr* rights = CMSG_FIRSTHDR(&message);
  if (rights == nullptr || rights->cmsg_type != SCM_RIGHTS) return -1;
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(rights), sizeof fd);
  return fd;
}

}  // namespace prorata::stress
