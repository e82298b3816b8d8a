#include "bench/micro/fixture_share.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "wire/frame.h"

namespace prorata::bench {
namespace {

using wire::MessageType;

constexpr int kTickMs = 20;

void Need(bool held, const char* what) {
  if (held) return;
  std::perror(what);
  std::exit(2);
}

template <typename Message>
void Send(int fd, MessageType type, const Message& message) {
  const wire::Frame<Message> frame(type, message);
  Need(send(fd, &frame, sizeof frame, MSG_NOSIGNAL) == sizeof frame, "answer a member");
}

template <typename Message>
Message Read(const uint8_t* body) {
  Message message;
  std::memcpy(&message, body, sizeof message);
  return message;
}

}  // namespace

FixtureShare::FixtureShare(const std::string& folder, const char* uuid, uint64_t limit_bytes)
    : folder_(folder) {
  const std::string path = folder + "/limits";
  const UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  Need(static_cast<bool>(fd) && ftruncate(fd.get(), sizeof(shm::LimitsFile)) == 0, path.c_str());
  void* pages =
      mmap(nullptr, sizeof(shm::LimitsFile), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  Need(pages != MAP_FAILED, "map the limits file");
  limits_ = static_cast<shm::LimitsFile*>(pages);
  shm::LimitsHeader& header = limits_->header;
  header.magic = shm::kLimitsMagic;
  header.version = shm::kLimitsVersion;
  header.size_bytes = sizeof(shm::LimitsFile);
  header.device_count = 1;
  header.member_slots = shm::kMaxMembers;
  header.epoch = 1;
  shm::DeviceLimits& device = limits_->devices[0];
  std::snprintf(device.uuid, sizeof device.uuid, "%s", uuid);
  device.memory_limit_bytes = limit_bytes;
  device.compute_limit_ppm = 1'000'000;
  device.backlog_alone_us = 20'000;
  device.backlog_contended_us = 2'000;
  device.idle_report_us = 200;
  device.lease = shm::kLeaseOpen;

  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "%s/socket", folder.c_str());
  listener_ = UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  unlink(address.sun_path);
  Need(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
           listen(listener_.get(), 8) == 0,
       address.sun_path);
  server_ = std::thread([this] { Serve(); });
  heart_ = std::thread([this] { Beat(); });
}

FixtureShare::~FixtureShare() {
  stopping_ = true;
  server_.join();
  heart_.join();
  unlink((folder_ + "/limits").c_str());
  unlink((folder_ + "/socket").c_str());
}

void FixtureShare::Beat() {
  while (!stopping_) {
    limits_->header.heartbeat.fetch_add(1);
    std::this_thread::sleep_for(std::chrono::milliseconds(kTickMs));
  }
}

void FixtureShare::Serve() {
  while (!stopping_) {
    pollfd readable = {listener_.get(), POLLIN, 0};
    if (poll(&readable, 1, kTickMs) != 1) continue;
    const UniqueFd member(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (member) ServeMember(member.get());
  }
}

// Reads from a member, and maps the usage memory when that comes along.
ssize_t FixtureShare::Receive(int fd, uint8_t* space, size_t bytes) {
  iovec part = {space, bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t received = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  const cmsghdr* rights = received > 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (rights == nullptr || rights->cmsg_type != SCM_RIGHTS) return received;
  int memory;
  std::memcpy(&memory, CMSG_DATA(rights), sizeof memory);
  void* pages = mmap(nullptr, sizeof(shm::UsageFile), PROT_READ, MAP_SHARED, memory, 0);
  close(memory);
  Need(pages != MAP_FAILED, "map a member's usage memory");
  usage_ = static_cast<shm::UsageFile*>(pages);
  return received;
}

// One member at a time is all that the fixture is for.
void FixtureShare::ServeMember(int fd) {
  uint8_t buffer[1024];
  wire::FrameReader reader(buffer, sizeof buffer);
  while (!stopping_) {
    pollfd readable = {fd, POLLIN, 0};
    if (poll(&readable, 1, kTickMs) != 1) continue;
    const ssize_t bytes = Receive(fd, reader.Space(), reader.SpaceBytes());
    if (bytes <= 0) return;
    reader.Filled(static_cast<size_t>(bytes));
    wire::FrameHeader header;
    const uint8_t* body;
    while (reader.Next(&header, &body) == wire::FrameReader::State::kFrame) {
      Answer(fd, header.type, body);
    }
  }
}

void FixtureShare::Answer(int fd, uint16_t type, const uint8_t* body) {
  shm::DeviceLimits& device = limits_->devices[0];
  switch (static_cast<MessageType>(type)) {
    case MessageType::kJoin:
      std::this_thread::sleep_for(std::chrono::milliseconds(welcome_after_ms_));
      ++joins_;  // before the member can have gone on, and ended
      Send(fd, MessageType::kWelcome, wire::Welcome{0, 0, limits_->header.epoch.load()});
      return;
    case MessageType::kGrantRequest: {
      const auto request = Read<wire::GrantRequest>(body);
      const bool fits = request.needed_bytes <= device.memory_limit_bytes;
      // Room to spare, so that the benchmark measures charging and not asking.
      if (fits) device.granted_bytes = device.memory_limit_bytes.load();
      if (fits) limits_->grants[0].bytes[0] = device.memory_limit_bytes.load();
      const auto result = fits ? wire::GrantResult::kGranted : wire::GrantResult::kShareFull;
      Send(fd, MessageType::kGrantReply,
           wire::GrantReply{request.id, result, 0, limits_->grants[0].bytes[0].load()});
      return;
    }
    case MessageType::kContextMade: {
      const auto made = Read<wire::ContextMade>(body);
      Send(fd, MessageType::kContextSettled, wire::ContextSettled{made.id, made.device, 0, 0});
      return;
    }
    default:
      return;
  }
}

}  // namespace prorata::bench
