#include "cli/end_share.h"

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <map>
#include <vector>

#include "api/agent_api.h"
#include "base/unique_fd.h"
#include "cli/output.h"

namespace prorata::cli {
namespace {

using Clock = std::chrono::steady_clock;

// A killed process ends at once, but one that the driver holds in the kernel.
constexpr std::chrono::seconds kEndsWithin{10};
constexpr std::chrono::milliseconds kNoticedWithin{1000};  // that a process or container ended
constexpr int kPauseMs = 20;

std::string Processes(size_t count) {
  return std::to_string(count) + (count == 1 ? " process" : " processes");
}

std::string InContainer(const api::ShareStatus& share) {
  return share.container ? " in container " + share.container->name : "";
}

// A process by a descriptor, so that its number cannot be another's by the time that it is killed.
UniqueFd OpenProcess(int64_t pid) {
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, static_cast<pid_t>(pid), 0)));
}

// Not where it has ended, which the agent is about to notice. One of another pid namespace's
// numbers does not exist for us; the agent's word counts then.
bool IsRunning(const api::MemberStatus& member) {
  const UniqueFd fd = OpenProcess(member.pid);
  if (!fd) return errno != ESRCH;
  pollfd ended = {fd.get(), POLLIN, 0};
  return ::poll(&ended, 1, 0) == 0;
}

// "share_in_use": a program runs on it, or a container has it.
Status CheckUnused(const api::ShareStatus& share) {
  const std::string force = "`prorata rm -f " + share.name + "` ";
  std::vector<api::MemberStatus> running;
  std::ranges::copy_if(share.members, std::back_inserter(running), IsRunning);
  if (!running.empty()) {
    const api::MemberStatus& first = running.front();
    return Fail("share_in_use", "share '" + share.name + "' is in use by " +
                                    Processes(running.size()) + InContainer(share) + " (" +
                                    (first.command.empty() ? "" : first.command + ", ") +
                                    std::to_string(first.pid) +
                                    (running.size() > 1 ? " and more" : "") +
                                    "); end what runs on it first, or let " + force + "kill it");
  }
  if (share.members.empty() && !share.container) return {};
  return Fail("share_in_use",
              "share '" + share.name + "' is in use" +
                  (share.container ? " by container " + share.container->name : "") +
                  "; end that first, or let " + force + "take the share from it");
}

// The same, when those that have ended are gone for the agent too.
Status AwaitUnused(ControlConnection* connection, const std::string& name) {
  const auto until = Clock::now() + kNoticedWithin;
  for (;;) {
    const auto found = InspectShare(connection, name);
    if (!found) return std::unexpected(found.error());
    const Status unused = CheckUnused(found->share);
    const bool runs = std::ranges::any_of(found->share.members, IsRunning);
    if (unused || runs || Clock::now() > until) return unused;
    ::poll(nullptr, 0, kPauseMs);
  }
}

// Kills those that are members by the agent's word after each was opened: a number that is still a
// member's then was a member's when it was opened. Answers why one cannot be killed.
Status KillMembers(ControlConnection* connection, const api::ShareStatus& share) {
  std::map<int64_t, UniqueFd> opened;
  for (const auto& member : share.members) {
    UniqueFd fd = OpenProcess(member.pid);
    if (fd) opened[member.pid] = std::move(fd);
  }
  auto now = InspectShare(connection, share.name);
  if (!now) return now.error().code == "no_share" ? Status{} : std::unexpected(now.error());
  Status killed;
  for (const auto& member : now->share.members) {
    const auto found = opened.find(member.pid);
    if (found == opened.end()) continue;  // a new one: the next round opens it
    if (::syscall(SYS_pidfd_send_signal, found->second.get(), SIGKILL, nullptr, 0) == 0) continue;
    if (errno == ESRCH) continue;
    killed =
        FailErrno("not_killed",
                  "share '" + share.name + "' goes on with process " + std::to_string(member.pid) +
                      InContainer(share) +
                      ", which cannot be killed; ask its user or root to end it, and the share "
                      "ends with it",
                  errno);
  }
  return killed;
}

}  // namespace

Status EndShare(ControlConnection* connection, const std::string& name, bool force) {
  if (auto ok = force ? Status{} : AwaitUnused(connection, name); !ok) return ok;
  auto left = RemoveShare(connection, name);
  if (!left) return std::unexpected(left.error());
  const auto until = Clock::now() + kEndsWithin;
  while (*left && !(*left)->members.empty()) {
    if (!force) {
      PrintError("share '" + name + "' ends with the last of its " +
                 Processes((*left)->members.size()) + ", which came just now");
      return {};
    }
    if (auto ok = KillMembers(connection, **left); !ok) return ok;
    if (Clock::now() > until) {
      return Fail("not_killed", "share '" + name + "' still has " +
                                    Processes((*left)->members.size()) +
                                    " that cannot be killed or does not end; the share ends with "
                                    "the last of them");
    }
    ::poll(nullptr, 0, kPauseMs);
    auto now = InspectShare(connection, name);
    if (!now && now.error().code == "no_share") return {};
    if (!now) return std::unexpected(now.error());
    left->emplace(std::move(now->share));
  }
  return {};
}

}  // namespace prorata::cli
