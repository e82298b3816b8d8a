#include "agent/runtime/process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

namespace prorata::agent {
namespace {

// `error_number`, if not null, becomes that of opening it; 0: none.
std::string ReadSmallFile(const std::string& path, int* error_number = nullptr) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (error_number != nullptr) *error_number = fd ? 0 : errno;
  if (!fd) return "";
  char buffer[4096];
  const ssize_t got = ::read(fd.get(), buffer, sizeof buffer);
  return got > 0 ? std::string(buffer, static_cast<size_t>(got)) : "";
}

std::unexpected<Error> NoProcess(pid_t pid) {
  return Fail("no_process", "process " + std::to_string(pid) + " has ended");
}

std::unexpected<Error> CannotSee(pid_t pid, int error_number) {
  Error error =
      FailErrno("pidfd", "cannot watch process " + std::to_string(pid), error_number).error();
  error.message += DescriptorsRemedy(error_number);
  return std::unexpected(error);
}

// What a person may be shown of a program's name, which can hold anything.
std::string PrintableCommand(std::string_view name) {
  std::string shown(name);
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
  }
  return shown;
}

// `command`, if not null, becomes what CommandOf would answer.
Result<ProcessId> ReadStat(pid_t pid, std::string* command) {
  int error_number = 0;
  const std::string stat = ReadSmallFile("/proc/" + std::to_string(pid) + "/stat", &error_number);
  if (error_number != 0 && error_number != ENOENT && error_number != ESRCH) {
    return CannotSee(pid, error_number);
  }
  // The second field is the command in brackets and may hold anything: count from the last bracket.
  size_t at = stat.rfind(')');
  if (pid <= 0 || at == std::string::npos) return NoProcess(pid);
  for (int field = 2; field < 22; ++field) {
    at = stat.find(' ', at + 1);
    if (at == std::string::npos) return NoProcess(pid);
  }
  // A zombie has still a number and a start, and nothing else.
  const char state = stat[stat.rfind(')') + 2];
  if (state == 'Z' || state == 'X') return NoProcess(pid);
  if (command != nullptr) {
    const size_t begin = stat.find('(') + 1;
    *command = PrintableCommand(std::string_view(stat).substr(begin, stat.rfind(')') - begin));
  }
  return ProcessId{pid, std::strtoull(stat.c_str() + at + 1, nullptr, 10)};
}

// Linux has it from 6.5 on, the headers of Debian 12 do not.
constexpr int kSoPeerPidfd = 77;

UniqueFd OpenPidfd(int socket, pid_t pid) {
  int fd = -1;
  socklen_t length = sizeof fd;
  // Of the very process that connected, whoever has its number by now.
  if (::getsockopt(socket, SOL_SOCKET, kSoPeerPidfd, &fd, &length) == 0) return UniqueFd(fd);
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

}  // namespace

Result<ProcessId> IdentifyProcess(pid_t pid) { return ReadStat(pid, nullptr); }

Result<UniqueFd> WatchProcess(const ProcessId& process, std::string* command) {
  UniqueFd fd(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  if (!fd) {
    if (errno == ESRCH || errno == EINVAL) return NoProcess(process.pid);
    return CannotSee(process.pid, errno);
  }
  // The order matters: with the descriptor open the number cannot change hands any more.
  const auto now = ReadStat(process.pid, command);
  if (!now && now.error().code != "no_process") return std::unexpected(now.error());
  if (!now || *now != process) return NoProcess(process.pid);
  return fd;
}

std::string DescriptorsRemedy(int error_number) {
  if (error_number != EMFILE && error_number != ENFILE) return "";
  return "; the agent has no descriptors left: end some shares, or start it with a higher limit "
         "(`ulimit -n`, LimitNOFILE= of a systemd unit), and try again";
}

bool HasEnded(int pidfd) {
  pollfd poll_fd{pidfd, POLLIN, 0};
  return ::poll(&poll_fd, 1, 0) == 1;
}

bool HasHungUp(int socket) {
  pollfd poll_fd{socket, 0, 0};
  return ::poll(&poll_fd, 1, 0) == 1 && (poll_fd.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
}

std::string CommandOf(pid_t pid) {
  std::string name = ReadSmallFile("/proc/" + std::to_string(pid) + "/comm");
  while (!name.empty() && name.back() == '\n') name.pop_back();
  return PrintableCommand(name);
}

pid_t InnerPidOf(pid_t pid) {
  // As a rule it is in ours; to see that takes a quarter of the time.
  struct stat info;
  const std::string its = "/proc/" + std::to_string(pid) + "/ns/pid";
  static const uint64_t own = OwnPidNamespace();
  if (own != 0 && ::stat(its.c_str(), &info) == 0 && info.st_ino == own) return pid;
  const std::string status = ReadSmallFile("/proc/" + std::to_string(pid) + "/status");
  const size_t line = status.find("\nNSpid:");
  if (line == std::string::npos) return pid;
  const size_t end = status.find('\n', line + 1);
  if (end == std::string::npos) return pid;
  const size_t last = status.find_last_of("\t ", end);
  const long inner = std::strtol(status.c_str() + last + 1, nullptr, 10);
  return inner > 0 ? static_cast<pid_t>(inner) : pid;
}

uint64_t OwnPidNamespace() {
  struct stat info;
  return ::stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

Result<Peer> IdentifyPeer(int socket, PeerWatch* watch) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return FailErrno("peer", "cannot identify the process that connected", errno);
  }
  if (credentials.pid <= 0) {
    return Fail("peer",
                "the process that connected has no process id here; is the agent in a container?");
  }
  PeerWatch found;
  if (watch != nullptr) found.pidfd = OpenPidfd(socket, credentials.pid);
  auto process = ReadStat(credentials.pid, &found.command);
  // The order matters: it was this process that was read of if it lives after that.
  if (!process && process.error().code != "no_process") return std::unexpected(process.error());
  const bool watched = watch == nullptr || (found.pidfd && !HasEnded(found.pidfd.get()));
  if (!process || !watched) return Fail("peer", "the process that connected has ended");
  if (watch != nullptr) *watch = std::move(found);
  return Peer{*process, credentials.uid};
}

}  // namespace prorata::agent
