#include <sys/socket.h>
#include <unistd.h>

#include <cstring>

#include "sim/core/chaos.h"

// What a process of a chaos test does with the others: memory, descriptors and events.

namespace prorata::simgpu {

namespace {

constexpr size_t kMost = 4;  // things of a kind that outlive a context: others want some, too

// One byte with a descriptor. False when the buffer is full.
bool SendDescriptor(int socket, char what, int fd) {
  iovec data{&what, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
  return sendmsg(socket, &message, MSG_DONTWAIT) == 1;
}

}  // namespace

int ReceiveDescriptor(int socket, char* what) {
  iovec data{what, 1};
  int fd = -1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof fd)] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != 1) return -1;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr) std::memcpy(&fd, CMSG_DATA(header), sizeof fd);
  return fd;
}

void Chaos::ActWithOthers() {
  switch (random_() % 8) {
    case 0:
      return Move();
    case 1:
      return Share();
    case 2:
      return Import();
    case 3:
      return Drop();
    case 4:
      return Send();
    case 5:
      return Receive();
    default:
      return ActOnEvents();
  }
}

// Memory outlives its context, as that of pools does.
void Chaos::Move() {
  if (held_.empty()) return;
  const auto heir = machine_->CreateContext(process_, device_);
  if (!heir) return;  // full
  const std::vector<Extent> extents = std::move(held_.back());
  held_.pop_back();
  MUST(machine_->MoveSlabs(context_, *heir, extents) == Code::kOk);
  if (!shares_.empty()) {
    MUST(machine_->PassShare(shares_.back(), *heir) == Code::kOk);
    shares_.pop_back();
  }
  MUST(machine_->FreeSlabs(context_, extents) == Code::kInvalidValue);
  if (random_() % 2 == 0) {
    MUST(machine_->FreeSlabs(*heir, extents) == Code::kOk);
  }
  MUST(machine_->DestroyContext(*heir) == Code::kOk);
  ++exchange_.moved;
}

void Chaos::Share() {
  if (held_.empty()) return;
  const auto made = machine_->ShareSlabs(context_, held_.back());
  MUST(made);
  held_.pop_back();
  shares_.push_back(made->share);
  const auto name = machine_->ExportAddress(made->share, 0, made->length_bytes);
  MUST(name);
  Exchange::Offer& stall = AnyStall(exchange_.memory);
  stall.handle = name->handle;
  stall.cookie = name->cookie;
  if (random_() % 8 == 0) {
    MUST(machine_->WithdrawExport(*name) == Code::kOk);
  }
}

// Whoever holds it sees what its maker wrote, whatever became of the maker.
void Chaos::Hold(const SharedMemory& memory, std::vector<Handle>* shares) {
  const Extent& extent = memory.extents.back();
  const off_t last = static_cast<off_t>(extent.offset_bytes + extent.length_bytes - 1);
  char byte = 0;
  MUST(pread(machine_->memory_fd(memory.device), &byte, 1, last) == 1 && byte == 'x');
  shares->push_back(memory.share);
  if (process_shares_.size() > kMost) {
    MUST(machine_->DropShare(process_shares_.front()) == Code::kOk);
    process_shares_.erase(process_shares_.begin());
  }
}

void Chaos::Import() {
  const Exchange::Offer& stall = AnyStall(exchange_.memory);
  const ShareName name = {stall.handle, stall.cookie};
  const bool with_context = random_() % 4 != 0;
  const auto got = machine_->Import(name, process_, with_context ? context_ : Handle{0});
  MUST(got || got.error() == Code::kInvalidValue || got.error() == Code::kOwn);
  if (!got) return;
  Hold(*got, with_context ? &shares_ : &process_shares_);
  ++exchange_.imported;
}

void Chaos::Drop() {
  std::vector<Handle>& shares = shares_.empty() ? process_shares_ : shares_;
  if (shares.empty()) return;
  const size_t which = random_() % shares.size();
  MUST(machine_->DropShare(shares[which]) == Code::kOk);
  shares.erase(shares.begin() + static_cast<ptrdiff_t>(which));
}

void Chaos::Send() {
  if (random_() % 4 == 0) {
    const auto pool = machine_->ExportPool(process_, device_);
    MUST(pool);
    SendDescriptor(exchange_.sending, 'p', pool->fd);
    close(pool->fd);
    pools_.push_back(pool->name);
    if (pools_.size() > kMost) {
      MUST(machine_->WithdrawExport(pools_.front()) == Code::kOk);
      pools_.erase(pools_.begin());
    }
    return;
  }
  const std::vector<Handle>& shares = shares_.empty() ? process_shares_ : shares_;
  if (shares.empty()) return;
  const auto fd = machine_->ExportDescriptor(shares[random_() % shares.size()]);
  MUST(fd);
  SendDescriptor(exchange_.sending, 'm', *fd);
  close(*fd);
}

// What is in the buffer holds its memory, whoever died meanwhile.
void Chaos::Receive() {
  char what = 0;
  const int fd = ReceiveDescriptor(exchange_.receiving, &what);
  if (fd < 0) return;
  if (what == 'm') {
    const auto got = machine_->ImportDescriptor(fd, process_);
    MUST(got);
    close(fd);
    Hold(*got, &process_shares_);
    ++exchange_.received;
    return;
  }
  const auto pool = machine_->ImportPool(fd, process_);
  MUST(pool || pool.error() == Code::kInvalidValue || pool.error() == Code::kOwn);
  close(fd);
}

void Chaos::ActOnEvents() {
  Exchange::Offer& stall = AnyStall(exchange_.events);
  switch (random_() % 4) {
    case 0: {
      const auto name = machine_->ExportEvent(event_);
      MUST(name);
      stall.handle = name->handle;
      stall.cookie = name->cookie;
      break;
    }
    case 1: {
      const ShareName name = {stall.handle, stall.cookie};
      const auto share = machine_->OpenEvent(name, context_);
      MUST(share || share.error() == Code::kInvalidValue || share.error() == Code::kOwn);
      if (!share) break;
      opened_.emplace_back(name.handle, *share);
      ++exchange_.opened;
      break;
    }
    case 2: {
      if (opened_.empty()) break;
      const Handle event = opened_[random_() % opened_.size()].first;
      const Work work[] = {Work::WaitFor(event), Work::Kernel(1000, 300'000, random_() % 2),
                           Work::Record(event)};
      const auto sequence = machine_->Submit(AnyStream(), work);
      MUST(sequence || sequence.error() == Code::kFull ||
           sequence.error() == Code::kOutOfResources);
      MUST(machine_->QueryEvent(event) != Code::kInvalidHandle);
      break;
    }
    default:
      if (opened_.empty()) break;
      MUST(machine_->CloseEvent(opened_.front().first, opened_.front().second) == Code::kOk);
      opened_.erase(opened_.begin());
  }
}

}  // namespace prorata::simgpu
