#include "agent/testing/testing_agent.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <thread>

#include "agent/runtime/process.h"
#include "base/clock.h"

namespace prorata::agent::testing {

using wire::MessageType;

namespace {

// A record lock: it ends with the process that holds it, however that dies, and is nobody's by
// fork.
class Locked {
 public:
  explicit Locked(int fd) : fd_(fd) { Set(F_WRLCK); }
  ~Locked() { Set(F_UNLCK); }

 private:
  void Set(short type) {
    struct flock lock{};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    while (::fcntl(fd_, F_SETLKW, &lock) != 0 && errno == EINTR) {
    }
  }
  int fd_;
};

}  // namespace

DevicePage* DevicePage::Make() {
  const int fd = ::memfd_create("device", 0);
  if (::ftruncate(fd, sizeof(DevicePage)) != 0) std::abort();
  void* page = ::mmap(nullptr, sizeof(DevicePage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  auto* made = new (page) DevicePage();
  made->lock_fd = fd;
  return made;
}

DevicePage::Entry* DevicePage::EntryOf(pid_t pid) {
  for (Entry& entry : entries) {
    int32_t none = 0;
    if (entry.pid == pid || entry.pid.compare_exchange_strong(none, pid)) return &entry;
  }
  std::abort();
}

void DevicePage::Change(int64_t bytes) {
  const Locked locked(lock_fd);
  EntryOf(::getpid())->bytes += static_cast<uint64_t>(bytes);
  most_bytes = std::max(most_bytes.load(), Sum());
}

uint64_t DevicePage::Total() {
  const Locked locked(lock_fd);
  return Sum();
}

uint64_t DevicePage::Sum() {
  uint64_t sum = 0;
  for (Entry& entry : entries) {
    const int32_t pid = entry.pid;
    if (pid != 0 && entry.bytes != 0 && IdentifyProcess(pid)) sum += entry.bytes;
  }
  return sum;
}

PageNvml::PageNvml(DevicePage* page, size_t count, uint64_t total_bytes) : page_(page) {
  for (size_t i = 0; i < count; ++i) {
    std::string uuid = kUuid;
    uuid[4] = static_cast<char>('1' + i);
    devices_.push_back({uuid, "Test Device", total_bytes, i == 0 ? page->Total() : 0, {}});
  }
}

void PageNvml::WaitWhileHung() {
  while (page_->hangs) ::usleep(1000);
}

Result<driver::NvmlMemory> PageNvml::Memory(size_t device) {
  WaitWhileHung();
  return driver::NvmlMemory{devices_[device].total_bytes, device == 0 ? page_->Total() : 0};
}

Result<std::vector<driver::NvmlProcess>> PageNvml::Processes(size_t device) {
  WaitWhileHung();
  if (page_->no_figures) return Fail("nvml", "no figures per process");
  std::vector<driver::NvmlProcess> processes;
  if (device != 0) return processes;
  for (DevicePage::Entry& entry : page_->entries) {
    const int32_t pid = entry.pid;
    if (pid == 0 || entry.bytes == 0 || !IdentifyProcess(pid)) continue;
    processes.push_back({pid, entry.bytes.load()});
  }
  return processes;
}

Result<std::vector<driver::NvmlTimeSample>> PageNvml::TimeSamples(size_t device, uint64_t) {
  WaitWhileHung();
  if (!page_->time_figures) return Fail("nvml", "no figures of time per process");
  std::vector<driver::NvmlTimeSample> samples;
  if (device != 0) return samples;
  const auto now_us = static_cast<uint64_t>(RealtimeNs() / kNsPerUs);
  for (DevicePage::Entry& entry : page_->entries) {
    if (entry.percent != 0) samples.push_back({entry.pid, now_us, entry.percent});
  }
  return samples;
}

namespace {

std::atomic<int>* g_stuck_ms = nullptr;

// On the loop's thread, for workers block all signals.
void BeStuck(int) {
  const timespec span{*g_stuck_ms / 1000, *g_stuck_ms % 1000 * 1'000'000L};
  ::nanosleep(&span, nullptr);
}

}  // namespace

void AgentProcess::StickLoop(int ms) {
  page_->stuck_ms = ms;
  ::kill(pid_, SIGUSR1);
}

std::string AgentProcess::Start(bool exit_when_idle, uint32_t dilation) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return "no pipe";
  pid_ = ::fork();
  if (pid_ == 0) {
    ::close(ends[0]);
    spdlog::set_level(spdlog::level::warn);
    PageNvml nvml(page_, devices_);
    AgentOptions options;
    options.runtime_dir = dir_;
    options.exit_when_idle = exit_when_idle;
    options.dilation = dilation;
    options.overcommit = overcommit;
    options.slow_disk_ms = slow_disk_ms;
    g_stuck_ms = &page_->stuck_ms;
    ::signal(SIGUSR1, BeStuck);
    auto agent = Agent::Start(options, nvml);
    const std::string line = agent ? "ready" : agent.error().code;
    if (::write(ends[1], line.data(), line.size()) < 0) ::_exit(3);
    ::close(ends[1]);
    if (!agent) ::_exit(1);
    (*agent)->Run();
    agent->reset();
    ::_exit(0);
  }
  ::close(ends[1]);
  char line[128];
  const ssize_t got = ::read(ends[0], line, sizeof line);
  ::close(ends[0]);
  return got > 0 ? std::string(line, static_cast<size_t>(got)) : "died";
}

void AgentProcess::Kill() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

bool AgentProcess::WaitForEnd(int64_t ms) {
  const bool ended = Eventually([this] { return ::waitpid(pid_, nullptr, WNOHANG) == pid_; },
                                static_cast<int>(ms));
  if (ended) pid_ = -1;
  return ended;
}

UniqueFd ConnectTo(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    fd.Reset();
  }
  return fd;
}

bool SendFrame(int fd, uint16_t type, const void* body, size_t bytes, int passed_fd) {
  const wire::FrameHeader header{static_cast<uint32_t>(bytes), type, wire::kWireVersion};
  std::string frame(reinterpret_cast<const char*>(&header), sizeof header);
  frame.append(static_cast<const char*>(body), bytes);
  iovec part{frame.data(), frame.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (passed_fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(c), &passed_fd, sizeof(int));
  }
  return ::sendmsg(fd, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(frame.size());
}

namespace {

bool ReadAll(int fd, char* out, size_t bytes, int64_t until_ns) {
  while (bytes > 0) {
    const int64_t left_ms = (until_ns - RealClock().NowNs()) / kNsPerMs;
    pollfd readable{fd, POLLIN, 0};
    if (left_ms < 0 || ::poll(&readable, 1, static_cast<int>(left_ms) + 1) <= 0) return false;
    const ssize_t got = ::recv(fd, out, bytes, 0);
    if (got <= 0) return false;
    out += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

}  // namespace

std::optional<Received> ReceiveFrame(int fd, int ms) {
  pollfd readable{fd, POLLIN, 0};
  if (::poll(&readable, 1, ms) <= 0) return std::nullopt;
  // A frame that has begun is read to its end: giving up inside it would lose the next one's place.
  const int64_t until_ns = RealClock().NowNs() + kPatienceMs * kNsPerMs;
  wire::FrameHeader header;
  if (!ReadAll(fd, reinterpret_cast<char*>(&header), sizeof header, until_ns)) return std::nullopt;
  Received received{header.type, std::string(header.body_bytes, '\0')};
  if (!ReadAll(fd, received.body.data(), header.body_bytes, until_ns)) return std::nullopt;
  return received;
}

nlohmann::json Call(const std::string& dir, const nlohmann::json& request) {
  const UniqueFd fd = ConnectTo(dir + "/control");
  const std::string text = request.dump();
  if (!fd || !SendFrame(fd.get(), 64, text.data(), text.size())) return nlohmann::json::object();
  const auto reply = ReceiveFrame(fd.get());
  return reply ? nlohmann::json::parse(reply->body) : nlohmann::json::object();
}

StandIn::StandIn() {
  int ends[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  UniqueFd child_end(ends[1]);
  socket_.Reset(ends[0]);
  pid_ = ::fork();
  if (pid_ != 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  socket_.Reset();
  char path[200] = {};
  for (ssize_t bytes; (bytes = ::recv(child_end.get(), path, sizeof path, 0)) > 0;) {
    const UniqueFd made = testing::ConnectTo(std::string(path, static_cast<size_t>(bytes)));
    SendFrame(child_end.get(), 0, "", 0, made.get());
  }
  ::_exit(0);
}

StandIn::~StandIn() {
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

UniqueFd StandIn::ConnectTo(const std::string& path) {
  if (::send(socket_.get(), path.data(), path.size(), MSG_NOSIGNAL) < 0) return {};
  char byte[wire::kFrameHeaderBytes];
  iovec part{byte, sizeof byte};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  if (::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC) <= 0) return {};
  const cmsghdr* rights = CMSG_FIRSTHDR(&message);
  if (rights == nullptr || rights->cmsg_type != SCM_RIGHTS) return {};
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(rights), sizeof fd);
  return UniqueFd(fd);
}

TestMember::~TestMember() {
  if (limits_ != nullptr) ::munmap(limits_, sizeof *limits_);
  if (usage_ != nullptr) ::munmap(usage_, sizeof *usage_);
}

bool TestMember::MapLimits() {
  if (limits_ != nullptr) return true;
  const UniqueFd fd(::open((folder_ + "/limits").c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return false;
  void* limits = ::mmap(nullptr, sizeof(shm::LimitsFile), PROT_READ, MAP_SHARED, fd.get(), 0);
  if (limits == MAP_FAILED) return false;
  limits_ = static_cast<shm::LimitsFile*>(limits);
  usage_fd_.Reset(::memfd_create("usage", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (::ftruncate(usage_fd_.get(), sizeof(shm::UsageFile)) != 0) return false;
  ::fcntl(usage_fd_.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  void* usage = ::mmap(nullptr, sizeof(shm::UsageFile), PROT_READ | PROT_WRITE, MAP_SHARED,
                       usage_fd_.get(), 0);
  usage_ = new (usage) shm::UsageFile();
  usage_->header.magic = shm::kUsageMagic;
  usage_->header.version = shm::kUsageVersion;
  usage_->header.size_bytes = sizeof(shm::UsageFile);
  return true;
}

uint16_t TestMember::Join(uint64_t previous_slot) {
  if (!MapLimits()) return 0;
  const std::string path = folder_ + "/socket";
  socket_ = as_ != nullptr ? as_->ConnectTo(path) : ConnectTo(path);
  if (!socket_) return 0;
  const wire::Join join{shm::kLimitsVersion, inner_pid, limits_->header.epoch, previous_slot};
  if (!SendFrame(socket_.get(), static_cast<uint16_t>(MessageType::kJoin), &join, sizeof join,
                 usage_fd_.get())) {
    return 0;
  }
  const auto answer = ReceiveFrame(socket_.get());
  if (!answer) return 0;
  if (answer->type == static_cast<uint16_t>(MessageType::kWelcome)) {
    wire::Welcome welcome;
    std::memcpy(&welcome, answer->body.data(), sizeof welcome);
    slot_ = welcome.slot;
  }
  return answer->type;
}

bool TestMember::Rejoin() {
  return Eventually([this] { return Join(slot_) == static_cast<uint16_t>(MessageType::kWelcome); });
}

std::optional<Received> TestMember::Await(MessageType type, int ms) {
  const int64_t until_ns = RealClock().NowNs() + ms * kNsPerMs;
  while (true) {
    const int64_t left_ms = (until_ns - RealClock().NowNs()) / kNsPerMs;
    auto frame =
        left_ms < 0 ? std::nullopt : ReceiveFrame(socket_.get(), static_cast<int>(left_ms));
    if (!frame || frame->type == static_cast<uint16_t>(type)) return frame;
  }
}

std::optional<wire::GrantReply> TestMember::Ask(uint64_t needed_bytes) {
  const wire::GrantRequest request{next_request_++, 0, 0, needed_bytes};
  if (!SendFrame(socket_.get(), static_cast<uint16_t>(MessageType::kGrantRequest), &request,
                 sizeof request)) {
    return std::nullopt;
  }
  const auto answer = Await(MessageType::kGrantReply);
  if (!answer) return std::nullopt;
  wire::GrantReply reply;
  std::memcpy(&reply, answer->body.data(), sizeof reply);
  return reply;
}

bool TestMember::Charge(uint64_t bytes) {
  std::atomic<uint64_t>& used = usage().used_bytes;
  for (int tries = 0; tries < 1000; ++tries) {
    uint64_t before = used;
    if (before + bytes <= grant()) {
      if (!used.compare_exchange_strong(before, before + bytes)) continue;  // M1
      if (before + bytes <= grant()) return true;                           // M2, M3
      used -= bytes;
    }
    const auto reply = Ask(used + bytes);
    if (!reply) {
      if (!Rejoin()) return false;
      continue;
    }
    if (reply->result != wire::GrantResult::kGranted) return false;
  }
  return false;
}

bool Eventually(const std::function<bool()>& condition, int ms) {
  const int64_t until_ns = RealClock().NowNs() + ms * kNsPerMs;
  while (!condition()) {
    if (RealClock().NowNs() > until_ns) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

TemporaryFolder::TemporaryFolder() {
  char name[] = "/tmp/prorata-test-XXXXXX";
  path_ = ::mkdtemp(name);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace prorata::agent::testing
