#include "agent/runtime/device_lock.h"

#include <pwd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <optional>

#include "agent/runtime/process.h"

namespace prorata::agent {
namespace {

// The same for all programs and builds, unlike std::hash. (FNV-1a)
uint64_t HashOf(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

struct Address {
  sockaddr_un address{};
  socklen_t length = 0;
};

Address AddressOf(const std::string& uuid, const std::string& machine) {
  std::string name = "prorata-device-" + uuid;
  if (!machine.empty()) {
    char which[20];
    std::snprintf(which, sizeof which, "@%016llx",
                  static_cast<unsigned long long>(HashOf(machine)));
    name += which;
  }
  Address out;
  out.address.sun_family = AF_UNIX;
  // A first byte of zero makes it abstract.
  const size_t copied = name.copy(out.address.sun_path + 1, sizeof out.address.sun_path - 1);
  out.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + copied);
  return out;
}

UniqueFd NewSocket() {
  return UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

// Who listens there, as the kernel says.
std::optional<ucred> HolderOf(const Address& at) {
  const UniqueFd fd = NewSocket();
  ucred holder{};
  socklen_t length = sizeof holder;
  if (!fd || ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&at.address), at.length) != 0 ||
      ::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &holder, &length) != 0) {
    return std::nullopt;
  }
  return holder;
}

std::string UserName(uid_t uid) {
  char buffer[1024];
  passwd entry{};
  passwd* found = nullptr;
  if (::getpwuid_r(uid, &entry, buffer, sizeof buffer, &found) != 0 || found == nullptr) {
    return std::to_string(uid);
  }
  return std::string(found->pw_name) + " (" + std::to_string(uid) + ")";
}

Error Taken(size_t device, const std::string& uuid, const std::optional<ucred>& holder) {
  std::string who = "another process; `ss -xlp` as root shows which";
  std::string remedy = "; end that one first";
  if (holder && holder->pid > 0) {
    const std::string command = CommandOf(holder->pid);
    who = "process " + std::to_string(holder->pid) +
          (command.empty() ? "" : " ('" + command + "')") + " of user " + UserName(holder->uid);
    remedy = "; use the shares of that agent, or end it first (`kill " +
             std::to_string(holder->pid) + "`, as that user or root)";
  } else if (holder) {
    who = "a process of user " + UserName(holder->uid) + " in another container";
  }
  return {"device_taken", "GPU " + std::to_string(device) + " (" + uuid +
                              ") is shared out by another agent already: " + who + remedy};
}

Result<UniqueFd> Take(size_t device, const std::string& uuid, const std::string& machine) {
  const Address at = AddressOf(uuid, machine);
  constexpr int kLockAttempts = 3;
  for (int attempt = 0; attempt < kLockAttempts; ++attempt) {
    UniqueFd fd = NewSocket();
    if (!fd) return FailErrno("device_lock", "cannot make a socket", errno);
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&at.address), at.length) == 0 &&
        ::listen(fd.get(), 16) == 0) {
      return fd;
    }
    if (errno != EADDRINUSE) {
      return FailErrno("device_lock", "cannot take GPU " + std::to_string(device), errno);
    }
    const auto holder = HolderOf(at);
    // One that has ended between the two calls holds nothing any more.
    if (holder || attempt + 1 == kLockAttempts) return std::unexpected(Taken(device, uuid, holder));
  }
  return std::unexpected(Taken(device, uuid, std::nullopt));
}

}  // namespace

Result<DeviceLocks> DeviceLocks::Take(boost::asio::io_context& loop, const driver::Nvml& nvml) {
  DeviceLocks locks;
  const std::optional<std::string> machine = nvml.Machine();
  if (!machine) return locks;
  for (size_t device = 0; device < nvml.Devices().size(); ++device) {
    auto socket = agent::Take(device, nvml.Devices()[device].uuid, *machine);
    if (!socket) return std::unexpected(socket.error());
    locks.held_.push_back(std::make_unique<Acceptor>(loop, std::move(*socket), [](UniqueFd) {}));
  }
  return locks;
}

}  // namespace prorata::agent
