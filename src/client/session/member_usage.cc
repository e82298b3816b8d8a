#include "client/session/member_usage.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "client/platform/os.h"
#include "client/session/agent_socket.h"
#include "wire/frame.h"
#include "wire/messages.h"

namespace prorata::client {
namespace {

using shm::kMaxMembers;
using shm::UsageFile;
using wire::Frame;
using wire::MessageType;
using wire::UsageShown;
using wire::UsageWanted;

constexpr size_t kSlotBytes = 8192;  // whole pages
static_assert(sizeof(UsageFile) <= kSlotBytes);
// How long an agent is waited for: while its heart beats (a thread that does only that), it will
// come to us; when that stands still it may be gone.
constexpr int64_t kStoodStillNs = 200'000'000;
constexpr int64_t kWaitNs = 2'000'000'000;
constexpr int64_t kPollEveryNs = 20'000'000;
constexpr int64_t kAgainAfterNs = 1'000'000'000;

std::atomic<char*> g_window{nullptr};          // kMaxMembers times kSlotBytes of addresses
std::atomic<uint64_t> g_serials[kMaxMembers];  // whose memory is mapped there; 0: nobody's
std::atomic<int> g_fetching{0};                // the process that is at it: a forked child's copy
                                               // may hold its parent's number for ever
std::atomic<int64_t> g_not_before_ns{0};       // after a failure

char* Window() {
  char* window = g_window.load(std::memory_order_acquire);
  if (window != nullptr) return window;
  void* made = mmap(nullptr, kMaxMembers * kSlotBytes, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED) return nullptr;
  g_window.store(static_cast<char*>(made), std::memory_order_release);
  return static_cast<char*>(made);
}

void Map(uint32_t slot, uint64_t serial, int fd) {
  char* window = Window();
  const off_t size = lseek(fd, 0, SEEK_END);
  if (window == nullptr || slot >= kMaxMembers || size < static_cast<off_t>(sizeof(UsageFile))) {
    return;
  }
  g_serials[slot].store(0);
  void* at = window + slot * kSlotBytes;
  if (mmap(at, sizeof(UsageFile), PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0) == at) {
    g_serials[slot].store(serial, std::memory_order_release);
  }
}

// Until when it is worth waiting.
class Patience {
 public:
  explicit Patience(const shm::LimitsFile& limits)
      : heartbeat_(limits.header.heartbeat),
        beat_(heartbeat_.load()),
        end_ns_(NowNs() + kWaitNs),
        still_ns_(NowNs() + kStoodStillNs) {}

  bool Over() {
    const int64_t now_ns = NowNs();
    if (const uint64_t beat = heartbeat_.load(); beat != beat_) {
      beat_ = beat;
      still_ns_ = now_ns + kStoodStillNs;
    }
    return now_ns >= end_ns_ || now_ns >= still_ns_;
  }

 private:
  const std::atomic<uint64_t>& heartbeat_;
  uint64_t beat_;
  int64_t end_ns_;
  int64_t still_ns_;
};

// One frame of UsageShown, with its descriptor in *fd (-1: none). The agent sends each with a
// sendmsg of its own, and the kernel does not join what has descriptors.
bool ReceiveShown(int socket, Patience& patience, Frame<UsageShown>* frame, int* fd) {
  auto* at = reinterpret_cast<char*>(frame);
  size_t got = 0;
  *fd = -1;
  while (got < sizeof *frame) {
    iovec part = {at + got, sizeof *frame - got};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t bytes = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (bytes == 0 || (bytes < 0 && errno != EAGAIN && errno != EINTR)) return false;
    const cmsghdr* rights = bytes > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
    if (rights != nullptr && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS &&
        *fd < 0) {
      std::memcpy(fd, CMSG_DATA(rights), sizeof(int));
    }
    if (bytes > 0) {
      got += static_cast<size_t>(bytes);
      continue;
    }
    if (patience.Over()) return false;
    AwaitReadable(socket, kPollEveryNs);
  }
  return frame->header.type == static_cast<uint16_t>(MessageType::kUsageShown) &&
         frame->header.body_bytes == sizeof(UsageShown);
}

// Everything, in as many questions as it takes. False: no agent answered in time.
bool FetchAll(int socket, Patience& patience) {
  uint32_t next = 0;
  while (next < kMaxMembers) {
    const Frame<UsageWanted> asked(MessageType::kUsageWanted, {shm::kLimitsVersion, next});
    if (send(socket, &asked, sizeof asked, MSG_NOSIGNAL | MSG_DONTWAIT) !=
        static_cast<ssize_t>(sizeof asked)) {
      return false;
    }
    for (bool more = true; more;) {
      Frame<UsageShown> shown(MessageType::kUsageShown, {});
      int fd = -1;
      const bool received = ReceiveShown(socket, patience, &shown, &fd);
      more = received && shown.message.has_usage != 0;
      if (more && fd >= 0) Map(shown.message.slot, shown.message.serial, fd);
      if (fd >= 0) close(fd);
      if (!received || (!more && shown.message.slot < next)) return false;
      if (!more) next = shown.message.slot;
    }
  }
  return true;
}

// It does what this thread would do. It waits for the agent no longer than kWaitNs, nor do we.
void AwaitOtherThread(int self) {
  constexpr int64_t kStepNs = 1'000'000;
  for (int64_t waited_ns = 0; waited_ns < kWaitNs && g_fetching.load() == self;
       waited_ns += kStepNs) {
    AwaitReadable(-1, kStepNs);
  }
}

}  // namespace

void FetchMemberUsage(const char* folder, const shm::LimitsFile& limits) {
  if (limits.header.ended.load() != 0 && limits.header.members_end.load() == 0) return;
  const int self = getpid();
  int at_it = g_fetching.load();
  if (at_it == self) return AwaitOtherThread(self);
  if (!g_fetching.compare_exchange_strong(at_it, self)) return;
  if (NowNs() >= g_not_before_ns.load()) {
    Patience patience(limits);
    const int socket = ConnectToAgent(folder);
    const bool fetched = socket >= 0 && FetchAll(socket, patience);
    if (socket >= 0) close(socket);
    if (!fetched) g_not_before_ns.store(NowNs() + kAgainAfterNs);
  }
  g_fetching.store(0);
}

bool UsedBySlot(const shm::LimitsFile& limits, uint32_t slot, uint32_t device, const OwnUsage& own,
                uint64_t* used) {
  const shm::MemberRow& row = limits.members[slot];
  *used = 0;
  if (row.host_pid.load(std::memory_order_relaxed) == 0 && slot != own.slot) return true;  // free
  const uint64_t grant = limits.grants[slot].bytes[device].load(std::memory_order_relaxed);
  const uint64_t overhead = row.overhead_bytes[device].load(std::memory_order_relaxed);
  const uint64_t serial = row.usage_serial.load(std::memory_order_acquire);
  const UsageFile* usage = nullptr;
  if (own.usage != nullptr && own.slot == slot) {
    usage = own.usage;
  } else if (serial != 0 && g_serials[slot].load(std::memory_order_acquire) == serial) {
    usage = reinterpret_cast<const UsageFile*>(g_window.load() + slot * kSlotBytes);
  }
  // Never more than the grant: a charge that stands above it is about to be taken back.
  *used =
      overhead + (usage != nullptr ? Min(usage->devices[device].used_bytes.load(), grant) : grant);
  return usage != nullptr || serial == 0;
}

uint64_t UsedByShare(const char* folder, const shm::LimitsFile& limits, uint32_t device,
                     const OwnUsage& own) {
  uint64_t sum = 0;
  for (bool again = false;; again = true) {
    sum = limits.devices[device].overhead_bytes.load(std::memory_order_relaxed);
    bool all_seen = true;
    bool own_seen = own.usage == nullptr;
    const uint32_t end = Min(limits.header.members_end.load(), kMaxMembers);
    for (uint32_t slot = 0; slot < end; ++slot) {
      uint64_t used = 0;
      all_seen &= UsedBySlot(limits, slot, device, own, &used);
      own_seen |= slot == own.slot;
      sum += used;
    }
    // A member whose row the agent has not written is there all the same.
    if (!own_seen) sum += own.usage->devices[device].used_bytes.load();
    if (all_seen || again) return sum;
    FetchMemberUsage(folder, limits);
  }
}

}  // namespace prorata::client
