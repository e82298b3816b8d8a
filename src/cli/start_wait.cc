#include "cli/start_wait.h"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "api/control_connection.h"
#include "base/unique_fd.h"
#include "cli/commands.h"

namespace prorata::cli {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

// An agent that was restarted serves nobody for two seconds, so that those who waited come back in
// their order (agent/node/starts.cc): the longest pause is far below.
constexpr Milliseconds kFirstPause{20};
constexpr Milliseconds kLongestPause{400};
constexpr std::chrono::seconds kAgentBackWithin{60};
// One that ends when idle may be just about to when we come.
constexpr int kWaitAttemptsMax = 20;
// The agent says when the time is over; one that does not answer is waited for so much longer.
constexpr std::chrono::seconds kLateAnswer{5};

// What is said on standard error.
class PlaceNotices {
 public:
  PlaceNotices() : terminal_(::isatty(STDERR_FILENO) == 1) {}
  ~PlaceNotices() { Finish(); }

  void Notify(const std::string& plain, const std::string& drawn) {
    if (!terminal_) return PrintError(plain);
    std::fprintf(stderr, "\r\033[K%s", drawn.c_str());
    drawn_ = true;
  }
  void Notify(const api::WaitingShare& waiting) {
    if (terminal_) return Notify("", WaitingLine(waiting, Columns()));
    Notify(WaitingLine(waiting, 0), "");
  }
  // Whatever comes next begins on a line of its own.
  void Finish() {
    if (std::exchange(drawn_, false)) std::fputs("\r\033[K", stderr);
  }

 private:
  static size_t Columns() {
    winsize window = {};
    const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0;
    return known ? window.ws_col : 80;
  }

  bool terminal_;
  bool drawn_ = false;
};

// SIGINT, SIGTERM and SIGHUP as a descriptor, so that what is drawn can be left in order; the mask
// is as it was afterwards, for a program that this process may become.
class EndingSignals {
 public:
  EndingSignals() {
    sigemptyset(&ending_);
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&ending_, number);
    ::sigprocmask(SIG_BLOCK, &ending_, &before_);
    fd_ = UniqueFd(::signalfd(-1, &ending_, SFD_CLOEXEC));
  }
  ~EndingSignals() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }
  EndingSignals(const EndingSignals&) = delete;
  EndingSignals& operator=(const EndingSignals&) = delete;

  int fd() const { return fd_.get(); }
  // Does what the signal would have done.
  void Raise() {
    signalfd_siginfo got = {};
    if (::read(fd_.get(), &got, sizeof got) != sizeof got) return;
    ::sigprocmask(SIG_SETMASK, &before_, nullptr);
    ::raise(static_cast<int>(got.ssi_signo));
    ::sigprocmask(SIG_BLOCK, &ending_, nullptr);  // ignored, as `nohup` has it
  }

 private:
  sigset_t ending_ = {};
  sigset_t before_ = {};
  UniqueFd fd_;
};

class Waiter {
 public:
  Waiter(const api::ShareSpec& spec, const AgentPlace& place, std::optional<uint64_t> within_ms)
      : place_(place) {
    request_.op = api::ControlOp::kCreateShare;
    request_.share = spec;
    if (within_ms) until_ = Clock::now() + Milliseconds(*within_ms);
  }

  Result<api::ShareStatus> Wait() {
    for (int unheard = 0;;) {
      auto connection = Connect();
      if (!connection) return std::unexpected(connection.error());
      auto made = WaitOn(*connection);
      if (made || made.error().code != "agent_gone") return made;
      if (last_) {
        lost_ = Clock::now();
      } else if (++unheard == kWaitAttemptsMax) {
        return made;
      }
    }
  }

 private:
  Milliseconds Left() const {
    if (!until_) return Milliseconds::max();
    return std::max(Milliseconds(1),
                    std::chrono::duration_cast<Milliseconds>(*until_ - Clock::now()));
  }
  bool Over() const { return until_ && Clock::now() >= *until_; }

  std::string Where() const {
    return last_ ? " It was " + api::PlaceInWords(last_->place) + " in line: " + last_->why : "";
  }

  // The first time an agent is started where none answers. One that was lost is somebody's to start
  // again, with the options that it had.
  Result<ControlConnection> Connect() {
    if (!lost_) return ConnectOrStart(place_);
    Milliseconds pause = kFirstPause;
    for (;;) {
      auto connection = ControlConnection::Connect(place_.socket_path);
      if (connection || connection.error().code != "no_agent") return connection;
      if (Over()) {
        return Fail("timed_out", "the share was not made in time, and no agent runs at '" +
                                     place_.socket_path + "' any more." + Where());
      }
      if (Clock::now() > *lost_ + kAgentBackWithin) {
        return Fail("no_agent",
                    "the agent ended while the share waited in line, and none has come "
                    "back at '" +
                        place_.socket_path +
                        "' for a minute; start one and "
                        "try again." +
                        Where());
      }
      Sleep(pause);
      pause = std::min(2 * pause, kLongestPause);
    }
  }

  void Sleep(Milliseconds pause) {
    pollfd ending = {signals_.fd(), POLLIN, 0};
    if (::poll(&ending, 1, static_cast<int>(pause.count())) > 0) EndBySignal();
  }

  void EndBySignal() {
    notices_.Finish();
    signals_.Raise();
  }

  // "agent_gone": it ended meanwhile.
  Result<api::ShareStatus> WaitOn(ControlConnection& connection) {
    request_.wait.emplace();
    if (until_) request_.wait->within_ms = static_cast<uint64_t>(Left().count());
    if (last_) request_.wait->since_ms = last_->since_ms;
    if (auto ok = connection.Send(api::EncodeRequest(request_)); !ok) {
      return std::unexpected(ok.error());
    }
    NoticeIfUnanswered(connection);
    for (;;) {
      auto next = connection.TakeNext();
      if (!next && next.error().code == "agent_gone" && last_) {
        notices_.Notify("the agent ended; the share waits for the next one",
                        "prorata: the agent ended; the share waits for the next one");
      }
      if (!next) return std::unexpected(next.error());
      if (!*next) {
        if (auto ok = Await(connection.fd()); !ok) return std::unexpected(ok.error());
        continue;
      }
      const nlohmann::json& reply = **next;
      if (auto error = api::ErrorOfReply(reply)) return std::unexpected(*error);
      if (!reply.contains("waiting")) {
        return api::ShareFromJson(reply.value("share", nlohmann::json()));
      }
      auto waiting = api::WaitingShareFromJson(reply["waiting"]);
      if (!waiting) return std::unexpected(waiting.error());
      last_ = std::move(*waiting);
      notices_.Notify(*last_);
    }
  }

  // It says at once that the share is made, or in which place it waits.
  void NoticeIfUnanswered(const ControlConnection& connection) {
    pollfd fds[] = {{connection.fd(), POLLIN, 0}, {signals_.fd(), POLLIN, 0}};
    const Milliseconds within = std::min(Left(), Milliseconds(kAnswerWithin));
    if (::poll(fds, 2, static_cast<int>(within.count())) != 0 || Over()) return;
    notices_.Finish();
    PrintError(connection.Unanswered());
  }

  // Until the agent has said something.
  Status Await(int agent) {
    pollfd fds[] = {{agent, POLLIN, 0}, {signals_.fd(), POLLIN, 0}};
    int timeout_ms = -1;
    if (until_) {
      const auto left = Left() + kLateAnswer;
      timeout_ms = static_cast<int>(std::min(left, Milliseconds(std::chrono::hours(1))).count());
    }
    const int ready = ::poll(fds, 2, timeout_ms);
    if (fds[1].revents != 0 && ready > 0) EndBySignal();
    if (ready == 0 && Over()) {
      return Fail("timed_out", "the share was not made in time, and the agent at '" +
                                   place_.socket_path + "' does not answer." + Where());
    }
    return {};
  }

  const AgentPlace& place_;
  api::ControlRequest request_;
  std::optional<Clock::time_point> until_;
  std::optional<Clock::time_point> lost_;       // when an agent last ended
  std::optional<api::WaitingShare> last_ = {};  // as an agent said it
  PlaceNotices notices_;
  EndingSignals signals_;
};

}  // namespace

std::string WaitingLine(const api::WaitingShare& waiting, size_t columns) {
  std::string line = (waiting.name.empty() ? "the share" : "share '" + waiting.name + "'") +
                     " waits, " + api::PlaceInWords(waiting.place) + " in line: " + waiting.why;
  if (columns == 0) return line;
  line = "prorata: " + line;
  // The last column stays empty: a terminal that wraps would not draw in place.
  if (line.size() >= columns) line = line.substr(0, columns < 5 ? 0 : columns - 4) + "...";
  return line;
}

Result<api::ShareStatus> CreateShareInLine(const api::ShareSpec& spec, const AgentPlace& place,
                                           std::optional<uint64_t> within_ms) {
  return Waiter(spec, place, within_ms).Wait();
}

}  // namespace prorata::cli
