// `prorata events`: what happens, as it happens.

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "api/control.h"
#include "api/control_connection.h"
#include "api/event.h"
#include "base/unique_fd.h"
#include "cli/agent_start.h"
#include "cli/commands.h"

namespace prorata::cli {
namespace {

using api::Event;

// "2026-11-20 17:30:00.123", local time.
std::string LocalTime(int64_t unix_ms) {
  const time_t seconds = static_cast<time_t>(unix_ms / 1'000);
  struct tm local = {};
  ::localtime_r(&seconds, &local);
  char text[48];
  const size_t length = std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &local);
  std::snprintf(text + length, sizeof text - length, ".%03d", static_cast<int>(unix_ms % 1'000));
  return text;
}

std::string EventLine(const Event& event, bool json) {
  if (json) {
    return ToJson(event).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }
  return LocalTime(event.time_unix_ms) + "  " + (event.share.empty() ? "-" : event.share) + "  " +
         Words(event) + "\n";
}

class Printer {
 public:
  explicit Printer(bool json) : json_(json) {}

  // "closed": nobody reads standard output any more; "write": it cannot be written.
  Status Print(const api::EventsReply& reply) {
    std::string text;
    if (reply.lost > 0 && json_) {
      text = nlohmann::json({{"event", "lost"}, {"count", reply.lost}}).dump() + "\n";
    } else if (reply.lost > 0) {
      PrintError(std::to_string(reply.lost) + " events are lost: the agent keeps the last 1000");
    }
    for (const Event& event : reply.events) text += EventLine(event, json_);
    return WriteOut(text);
  }

 private:
  bool json_;
};

// SIGINT, SIGTERM and SIGHUP as a descriptor: they end us between two lines, never in one.
UniqueFd OpenEndingSignals() {
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t ending;
  sigemptyset(&ending);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&ending, number);
  ::sigprocmask(SIG_BLOCK, &ending, nullptr);
  return UniqueFd(::signalfd(-1, &ending, SFD_CLOEXEC));
}

// Until the agent has said something. False: there is nobody to tell it to, by a signal or because
// the reader of our output is gone (poll says so without our writing anything).
bool Await(int agent, int signals) {
  for (;;) {
    pollfd fds[] = {{agent, POLLIN, 0}, {signals, POLLIN, 0}, {STDOUT_FILENO, 0, 0}};
    if (::poll(fds, 3, -1) < 0 && errno == EINTR) continue;
    return fds[1].revents == 0 && (fds[2].revents & (POLLERR | POLLHUP)) == 0;
  }
}

// The next that the agent says; nothing: we are to end.
Result<std::optional<api::EventsReply>> Next(ControlConnection& connection, int signals) {
  for (;;) {
    auto next = TakeEvents(connection);
    if (!next && next.error().code == "agent_gone") {
      return Fail("agent_gone", "the agent ended, and its events with it");
    }
    if (!next || *next) return next;
    if (!Await(connection.fd(), signals)) return std::nullopt;
  }
}

// Tells what comes until `options` are fulfilled or nobody wants to know.
Status NotifyAll(const EventsOptions& options, ControlConnection& connection, int signals,
                 Printer printer) {
  api::ControlRequest request;
  request.op = api::ControlOp::kEvents;
  request.events = {options.since, options.follow, options.share};
  if (auto ok = connection.Send(api::EncodeRequest(request)); !ok) return ok;
  pollfd first[] = {{connection.fd(), POLLIN, 0}, {signals, POLLIN, 0}};
  constexpr auto kWithin = std::chrono::milliseconds(kAnswerWithin);
  if (::poll(first, 2, static_cast<int>(kWithin.count())) == 0) {
    PrintError(connection.Unanswered());
  }
  std::optional<uint64_t> last;
  for (;;) {
    auto reply = Next(connection, signals);
    if (!reply) return std::unexpected(reply.error());
    if (!*reply) return {};
    if (auto ok = printer.Print(**reply); !ok) {
      return ok.error().code == "closed" ? Status{} : ok;
    }
    if (options.follow) continue;
    // A reply holds only so many: asked again, up to the last there was at first.
    if (!last) last = (*reply)->last;
    if ((*reply)->next >= *last) return {};
    request.events.since = (*reply)->next;
    if (auto ok = connection.Send(api::EncodeRequest(request)); !ok) return ok;
  }
}

}  // namespace

int ShowEvents(const EventsOptions& options, bool json, const AgentPlace& place) {
  const UniqueFd signals = OpenEndingSignals();
  auto connection = ControlConnection::Connect(place.socket_path);
  Status reported;
  if (connection) {
    reported = NotifyAll(options, *connection, signals.get(), Printer(json));
  } else if (connection.error().code == "no_agent") {
    reported =
        Fail("no_agent",
             NoAgentText(place,
                         ", so there are no events; `prorata run` starts one, or `prorata agent`"));
  } else {
    reported = std::unexpected(connection.error());
  }
  if (reported) return kExitOk;
  PrintError(reported.error().message);
  return reported.error().code == "agent_gone" ? kExitAgentGone : kExitRefused;
}

}  // namespace prorata::cli
