// `prorata top`: devices and shares, live. On a terminal a screen by ncurses; elsewhere tables.
//
// One loop waits for everything at once: the agent's answer, keys, signals (as a descriptor, so
// that none ends us in the middle of a screen) and the next look. So an agent that is stopped, gone
// or back is shown, and never waited for.

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/duration.h"
#include "base/unique_fd.h"
#include "cli/commands.h"
#include "cli/top/terminal.h"
#include "cli/top/top_feed.h"
#include "cli/top/top_screen.h"

namespace prorata::cli {
namespace {

constexpr int64_t kHeartbeatLostAfterNs = 2 * kNsPerS;  // an answer takes a millisecond

// ncurses would stop us by itself, but ignores Ctrl-Z while it writes to the terminal: one that
// came then was lost. It leaves a signal alone that has a handler, and a blocked one comes by the
// descriptor.
void Nothing(int) {}

// Until somebody continues us; at once where nobody could (an orphaned process group).
void StopHere() {
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTSTP);
  ::signal(SIGTSTP, SIG_DFL);
  ::raise(SIGTSTP);
  ::sigprocmask(SIG_UNBLOCK, &stop, nullptr);  // stopped here
  ::sigprocmask(SIG_BLOCK, &stop, nullptr);
  ::signal(SIGTSTP, Nothing);
}

UniqueFd Signals() {
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t ours;
  sigemptyset(&ours);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGWINCH}) sigaddset(&ours, number);
  struct sigaction stop = {};
  if (::sigaction(SIGTSTP, nullptr, &stop) == 0 && stop.sa_handler == SIG_DFL) {
    ::signal(SIGTSTP, Nothing);
    sigaddset(&ours, SIGTSTP);
  }
  ::sigprocmask(SIG_BLOCK, &ours, nullptr);
  return UniqueFd(::signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK));
}

int64_t UnixMs() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

// "12:03:04", local time.
std::string ClockTime(int64_t unix_ms) {
  const time_t seconds = static_cast<time_t>(unix_ms / 1'000);
  struct tm local = {};
  ::localtime_r(&seconds, &local);
  char text[16];
  std::strftime(text, sizeof text, "%H:%M:%S", &local);
  return text;
}

bool Nobody(const Error& error) { return error.code == "no_agent" || error.code == "agent_gone"; }

class Top {
 public:
  Top(const TopOptions& options, bool json, const std::string& socket_path)
      : options_(options), json_(json), socket_path_(socket_path), feed_(socket_path) {
    scene_.view.sort = options.sort;
    scene_.view.reversed = options.reversed;
    scene_.interval = FormatDuration(options.interval_ns);
  }

  int Run() {
    OpenTerminal();
    Ask();
    while (!over_) {
      if (terminal_) Draw();
      Wait();
      if (!over_ && clock_.NowNs() >= next_ask_ns_) Ask();
    }
    terminal_.reset();
    if (!last_words_.empty()) PrintError(last_words_);
    return status_;
  }

 private:
  void OpenTerminal() {
    if (options_.plain || options_.once || json_) return;
    if (::isatty(STDIN_FILENO) == 0 || ::isatty(STDOUT_FILENO) == 0) return;
    terminal_ = Terminal::Open();
    if (terminal_) {
      scene_.utf8 = terminal_->utf8();
      return;
    }
    const char* term = std::getenv("TERM");
    PrintError("TERM is '" + std::string(term != nullptr ? term : "") +
               "', on which no screen can be drawn: tables follow");
  }

  void End(int status, std::string last_words = {}) {
    over_ = true;
    status_ = status;
    last_words_ = std::move(last_words);
  }

  void Ask() {
    const int64_t now_ns = clock_.NowNs();
    next_ask_ns_ = now_ns + options_.interval_ns;
    if (feed_.asked()) {
      const int64_t heartbeat_lost_ns = now_ns - asked_ns_;
      if (heartbeat_lost_ns >= kHeartbeatLostAfterNs)
        InTrouble("the agent does not answer; is it stopped?");
      return;
    }
    asked_ns_ = now_ns;
    if (auto ok = feed_.Ask(); !ok) Failed(ok.error());
  }

  void Failed(const Error& error) {
    if (!Nobody(error) && (options_.once || !answered_)) return End(kExitRefused, error.message);
    InTrouble(Nobody(error) ? "no agent runs at '" + socket_path_ + "'" : error.message);
    if (!options_.once) return;
    Show({});  // as `ps`: without an agent there are no shares
    if (!over_) End(kExitOk);
  }

  void InTrouble(const std::string& message) {
    if (!terminal_ && trouble_ != message) {
      PrintError(message + (options_.once ? "" : "; asking again until there is an answer"));
    }
    if (trouble_.empty()) trouble_ns_ = clock_.NowNs();
    trouble_ = message;
  }

  void TakeAnswer() {
    auto answer = feed_.Take();
    if (!answer) return Failed(answer.error());
    if (!*answer) return;
    if (!trouble_.empty() && !terminal_) PrintError("the agent answers again");
    trouble_.clear();
    answered_ = true;
    Show(std::move(**answer));
    if (options_.once && !over_) End(kExitOk);
  }

  void Show(TopSnapshot snapshot) {
    const int64_t unix_ms = UnixMs();
    scene_.snapshot = std::move(snapshot);
    scene_.time = ClockTime(unix_ms);
    if (terminal_) return;
    std::string text = std::exchange(printed_, true) && !json_ ? "\n" : "";
    text += json_ ? TopJson(scene_.snapshot, scene_.view, unix_ms)
                  : TopTable(scene_.snapshot, scene_.view, scene_.time);
    const Status written = WriteOut(text);
    if (written) return;
    if (written.error().code == "closed") return End(kExitOk);
    End(kExitRefused, written.error().message);
  }

  void Draw() {
    scene_.trouble.clear();
    if (!trouble_.empty()) {
      const int64_t since_s = (clock_.NowNs() - trouble_ns_) / kNsPerS;
      scene_.trouble = trouble_ + " (since " + std::to_string(since_s) + " s)";
      if (answered_) {
        scene_.trouble +=
            ". The figures are of " + scene_.time + "; programs go on within the limits they had";
      }
    }
    screen_ = LayOut(scene_, terminal_->width(), terminal_->height());
    if (!scene_.view.help) scene_.view.scroll = screen_.scroll;
    terminal_->Draw(screen_);
  }

  // For an answer, a key, a signal, or the time to ask again.
  void Wait() {
    int64_t wait_ns = std::max<int64_t>(0, next_ask_ns_ - clock_.NowNs());
    if (!trouble_.empty()) wait_ns = std::min(wait_ns, kNsPerS);  // the seconds are shown
    const int wait_ms = static_cast<int>((wait_ns + kNsPerMs - 1) / kNsPerMs);
    // Without a screen: poll says of standard output whether its reader is gone.
    pollfd fds[] = {{signals_.get(), POLLIN, 0},
                    {feed_.fd(), POLLIN, 0},
                    terminal_ ? pollfd{STDIN_FILENO, POLLIN, 0} : pollfd{STDOUT_FILENO, 0, 0}};
    if (::poll(fds, std::size(fds), wait_ms) < 0) return;  // EINTR: stopped and continued
    if (fds[0].revents != 0) TakeSignals();
    if ((fds[2].revents & (POLLERR | POLLHUP)) != 0) return End(kExitOk);
    if (fds[1].revents != 0 && !over_) TakeAnswer();
    if (terminal_ && fds[2].revents != 0) TakeKeys();
  }

  void TakeSignals() {
    signalfd_siginfo info = {};
    while (::read(signals_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
      if (info.ssi_signo == SIGTSTP) {
        if (terminal_) terminal_->Leave();  // the next Draw is on a screen of its own again
        StopHere();
      } else if (info.ssi_signo != SIGWINCH) {
        return End(kExitOk);
      }
      if (terminal_) terminal_->Resized();
    }
  }

  void TakeKeys() {
    while (const auto key = terminal_->NextKey()) {
      switch (PressKey(*key, screen_.rows, screen_.page, &scene_.view)) {
        case KeyEffect::kQuit:
          return End(kExitOk);
        case KeyEffect::kRefresh:
          next_ask_ns_ = clock_.NowNs();
          break;
        case KeyEffect::kRedraw:
        case KeyEffect::kNone:
          break;
      }
    }
  }

  const TopOptions options_;
  const bool json_;
  const std::string socket_path_;
  const RealClock clock_;
  const UniqueFd signals_ = Signals();
  TopFeed feed_;
  std::unique_ptr<Terminal> terminal_;  // null: tables
  TopScene scene_;
  Screen screen_;
  int64_t next_ask_ns_ = 0;
  int64_t asked_ns_ = 0;
  bool answered_ = false;
  std::string trouble_;  // with the agent; "": none
  int64_t trouble_ns_ = 0;
  bool printed_ = false;
  bool over_ = false;
  int status_ = kExitOk;
  std::string last_words_;
};

}  // namespace

int ShowTop(const TopOptions& options, bool json, const AgentPlace& place) {
  return Top(options, json, place.socket_path).Run();
}

}  // namespace prorata::cli
