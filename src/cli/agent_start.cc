#include "cli/agent_start.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "base/life_lock.h"
#include "base/unique_fd.h"
#include "cli/output.h"

// Two `run`s at once: the lock on RUNTIME_DIR/start.lock lets one start the agent; the other asks
// until that answers. The agent itself holds RUNTIME_DIR/lock for as long as it lives, so that no
// two serve one folder however they were started; we look at that lock to see an agent that
// does not listen yet, or no more.

namespace prorata::cli {
namespace {

constexpr std::chrono::seconds kWordAfter{2};  // who waits for longer is told why

// Whether some agent holds the folder (agent/runtime/runtime_dir.h).
bool AgentLives(const AgentPlace& place) { return IsLifeLocked(place.runtime_dir + "/lock"); }

std::unexpected<Error> CannotUse(const std::string& what, int error_number) {
  Error error = FailErrno("agent_start", "cannot " + what, error_number).error();
  error.message += "; set PRORATA_DIR to a folder of yours";
  return std::unexpected(error);
}

Result<UniqueFd> OpenStartLock(const AgentPlace& place) {
  if (::mkdir(place.runtime_dir.c_str(), 0755) != 0 && errno != EEXIST) {
    return CannotUse("make the agent's folder '" + place.runtime_dir + "'", errno);
  }
  const std::string path = place.runtime_dir + "/start.lock";
  UniqueFd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) return CannotUse("open '" + path + "'", errno);
  return lock;
}

std::unexpected<Error> OthersAreStarting(const AgentPlace& place) {
  return Fail("agent_start",
              "no agent answered at '" + place.socket_path + "' within " +
                  std::to_string(place.patience.count()) +
                  " s, and another prorata that is to start one has not ended either: it waits for "
                  "the driver, or is stopped. See '" +
                  place.runtime_dir + "/agent.log', and who holds '" + place.runtime_dir +
                  "/start.lock' (fuser)");
}

// A mask and ignored signals outlive exec: whoever waits with `--wait` reads the ending signals
// from a descriptor (start_wait.cc), and an agent that had them blocked could only be killed.
void ResetSignals() {
  for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

// `ours`: no other prorata is about to start one.
std::string StillWaiting(const AgentPlace& place, bool ours) {
  return "no agent answers at '" + place.socket_path + "' yet; still waiting, for " +
         std::to_string(place.patience.count()) + " s at most: " +
         (ours ? "one is there that begins or ends" : "another prorata starts one") +
         ", which takes as long as the driver needs (see '" + place.runtime_dir +
         "/agent.log'); Ctrl-C ends this command";
}

// In the second child: becomes the agent. Whatever fails is reported through the ready pipe.
[[noreturn]] void BecomeAgent(const AgentPlace& place, int log, int ready) {
  ::setsid();
  ResetSignals();
  const int null = ::open("/dev/null", O_RDONLY);
  ::dup2(null, 0);
  ::dup2(log, 1);
  ::dup2(log, 2);
  // A `prorata run` inside a share starts an agent that is no member of it.
  ::unsetenv("PRORATA_SHARE");
  ::unsetenv("LD_PRELOAD");
  // Nothing of the caller's stays open in a daemon: a pipe's end held here would never end for who
  // reads it. dup() clears the close-on-exec mark again, for the one that the agent keeps.
  ::close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
  const int kept = ::dup(ready);
  const std::string descriptor = std::to_string(kept);
  ::execl(place.executable.c_str(), "prorata", "agent", "--exit-when-idle", "--ready-fd",
          descriptor.c_str(), static_cast<char*>(nullptr));
  const std::string message = "cannot execute '" + place.executable + "' as the agent\n";
  [[maybe_unused]] const ssize_t reported = ::write(ready, message.data(), message.size());
  ::_exit(127);
}

std::string ReadAll(int fd) {
  std::string text;
  char buffer[512];
  while (true) {
    const ssize_t got = ::read(fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0 || text.size() > 4096) return text;
    text.append(buffer, static_cast<size_t>(got));
    if (text.find('\n') != std::string::npos) return text;
  }
}

// Starts an agent and waits for the line it writes when it answers: "ready", or what is wrong.
Status StartAgent(const AgentPlace& place) {
  const std::string log_path = place.runtime_dir + "/agent.log";
  UniqueFd log(
      ::open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!log)
    return FailErrno("agent_start", "cannot open the agent's log '" + log_path + "'", errno);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return FailErrno("agent_start", "cannot make a pipe", errno);
  UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  // Twice, so that the agent is nobody's child and the program's waitpid never meets it.
  const pid_t child = ::fork();
  if (child < 0) return FailErrno("agent_start", "cannot start a process", errno);
  if (child == 0) {
    if (::fork() == 0) BecomeAgent(place, log.get(), writer.get());
    ::_exit(0);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  writer.Reset();
  pollfd ready = {reader.get(), POLLIN, 0};
  constexpr auto kWithin = std::chrono::milliseconds(kWordAfter);
  if (::poll(&ready, 1, static_cast<int>(kWithin.count())) == 0) {
    PrintError("the agent at '" + place.socket_path +
               "' is starting and not ready yet; still waiting: the driver of a GPU that nobody "
               "uses takes seconds to begin (the agent's log: " +
               log_path + "); Ctrl-C ends this command");
  }
  std::string said = ReadAll(reader.get());
  while (!said.empty() && said.back() == '\n') said.pop_back();
  if (said == "ready") return {};
  if (said.empty()) said = "it ended without a word";
  return Fail("agent_start", "no agent answered at '" + place.socket_path +
                                 "', and starting one failed: " + said + " (its log: " + log_path +
                                 ")");
}

}  // namespace

Result<ControlConnection> ConnectTo(const AgentPlace& place) {
  auto connection = ControlConnection::Connect(place.socket_path);
  if (connection) connection->on_unanswered = PrintError;
  return connection;
}

Result<ControlConnection> ConnectOrStart(const AgentPlace& place) {
  const auto begin = std::chrono::steady_clock::now();
  const auto deadline = begin + place.patience;
  UniqueFd lock;
  bool ours = false;
  bool said = false;
  while (true) {
    auto connection = ConnectTo(place);
    if (connection || connection.error().code != "no_agent") return connection;
    if (!lock) {
      auto opened = OpenStartLock(place);
      if (!opened) return std::unexpected(opened.error());
      lock = std::move(*opened);
    }
    if (!ours && ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) {
      ours = true;
      continue;  // who held it may have started one in between
    }
    if (!ours && errno != EWOULDBLOCK && errno != EINTR) {
      return CannotUse("lock '" + place.runtime_dir + "/start.lock'", errno);
    }
    const auto now = std::chrono::steady_clock::now();
    const bool late = now > deadline;
    if (!said && now > begin + kWordAfter) {
      said = true;
      PrintError(StillWaiting(place, ours));
    }
    if (!ours && late) return OthersAreStarting(place);
    // An agent that lives and does not answer is about to begin or to end.
    if (!ours || (AgentLives(place) && !late)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      continue;
    }
    const Status started = StartAgent(place);
    if (!started && (late || !AgentLives(place))) return std::unexpected(started.error());
  }
}

std::string NoAgentText(const AgentPlace& place, const std::string& then) {
  if (!AgentLives(place)) return "no agent runs at '" + place.socket_path + "'" + then;
  return "the agent at '" + place.socket_path +
         "' does not listen: it is starting, which takes as long as the driver needs, or ending; "
         "try again in a moment. If it goes on so, end the process that holds '" +
         place.runtime_dir +
         "/lock' (fuser shows it) and start the agent again: programs keep their shares meanwhile";
}

}  // namespace prorata::cli
