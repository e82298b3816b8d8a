// `prorata debug trace`: what the GPUs did, from the agent's rings, into a file for Perfetto or
// Chrome.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "api/agent_api.h"
#include "api/chrome_trace.h"
#include "api/control_connection.h"
#include "base/clock.h"
#include "base/unique_fd.h"
#include "cli/agent_start.h"
#include "cli/commands.h"
#include "cli/text/version.h"

namespace prorata::cli {
namespace {

// Pages that are overtaken by the ring as they are read, again and again, are no trace any more: an
// agent that writes faster than it answers.
constexpr int kPagesMax = 4096;

std::string InSeconds(int64_t ns) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", static_cast<double>(ns) / 1e9);
  return text;
}

// All that the ring has of the last seconds, up to what was the last when it was first asked.
Result<api::TraceReply> ReadAll(ControlConnection& connection, const std::string& uuid,
                                double seconds) {
  api::TraceRequest request{.gpu = uuid, .seconds = seconds};
  auto all = GetTrace(&connection, request);
  for (int page = 1; all && all->next < all->last && page < kPagesMax; ++page) {
    request.after = all->next;
    auto more = GetTrace(&connection, request);
    if (!more) return more;
    if (more->entries.empty()) break;
    all->next = more->next;
    all->lost += more->lost;
    all->shares.merge(more->shares);
    all->entries.insert(all->entries.end(), more->entries.begin(), more->entries.end());
  }
  return all;
}

Result<std::vector<api::TracedDevice>> ReadDevices(ControlConnection& connection,
                                                   const DebugTraceOptions& options) {
  auto devices = ListDevices(&connection);
  if (!devices) return std::unexpected(devices.error());
  std::vector<api::TracedDevice> traced;
  for (const api::DeviceStatus& device : *devices) {
    const bool named = options.gpu == device.uuid || options.gpu == std::to_string(device.index);
    if (!options.gpu.empty() && !named) continue;
    auto trace = ReadAll(connection, device.uuid, options.seconds);
    if (!trace) return std::unexpected(trace.error());
    const int64_t asked_ns = trace->now_ns - static_cast<int64_t>(options.seconds * 1e9);
    traced.push_back({.index = device.index,
                      .uuid = device.uuid,
                      .name = device.name,
                      .begins_ns = std::max(asked_ns, trace->since_ns),
                      .trace = std::move(*trace)});
  }
  if (!traced.empty()) return traced;
  if (options.gpu.empty()) return Fail("unknown_gpu", "the agent has no GPU to trace");
  return Fail("unknown_gpu",
              "--gpu: the agent has no GPU '" + options.gpu + "'; `prorata gpus` lists them");
}

// What a reader must know of a trace that is shorter than was asked, or has holes.
void WarnOf(const api::TracedDevice& device, double seconds) {
  const std::string gpu = "GPU " + std::to_string(device.index) + ": ";
  const api::TraceReply& trace = device.trace;
  const int64_t has_ns = trace.now_ns - device.begins_ns;
  if (static_cast<double>(has_ns) < seconds * 1e9 - 1) {
    PrintError(gpu + "the trace has the last " + InSeconds(has_ns) + ", not " +
               InSeconds(static_cast<int64_t>(seconds * 1e9)) + ": " +
               (trace.since_start
                    ? "this agent started then"
                    : "the agent keeps its last 65536 changes, and has forgotten what "
                      "was before"));
  }
  if (trace.lost > 0) {
    PrintError(
        gpu + std::to_string(trace.lost) +
        " changes were overwritten while they were read, and are missing from the trace; ask "
        "for fewer seconds");
  }
}

struct Place {
  UniqueFd owned;
  int fd = -1;
  std::string name;
  bool is_file = false;  // and goes away if it cannot be written whole
};

std::unexpected<Error> CannotWrite(const std::string& name, int error, const std::string& then) {
  Error failed = FailErrno("output", "cannot write the trace to '" + name + "'", error).error();
  failed.message += "; " + then;
  return std::unexpected(std::move(failed));
}

std::string DefaultName() {
  const time_t now = ::time(nullptr);
  struct tm local = {};
  ::localtime_r(&now, &local);
  char text[64];
  std::strftime(text, sizeof text, "prorata-trace-%Y%m%d-%H%M%S.json", &local);
  return text;
}

Result<Place> OpenPlace(const std::optional<std::string>& output) {
  if (output ? *output == "-" : ::isatty(STDOUT_FILENO) == 0) {
    return Place{.owned = {}, .fd = STDOUT_FILENO, .name = "standard output"};
  }
  const std::string path = output.value_or(DefaultName());
  // A file that a person named may be there; one that we named is another trace.
  const int how = O_WRONLY | O_CREAT | O_CLOEXEC | (output ? O_TRUNC : O_EXCL);
  UniqueFd fd(::open(path.c_str(), how, 0666));
  if (!fd) return CannotWrite(path, errno, "name another file with --output");
  struct stat info = {};
  const bool is_file = ::fstat(fd.get(), &info) == 0 && S_ISREG(info.st_mode);
  const int number = fd.get();
  return Place{.owned = std::move(fd), .fd = number, .name = path, .is_file = is_file};
}

Status WriteAll(const Place& place, const std::string& text) {
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t some = ::write(place.fd, text.data() + written, text.size() - written);
    if (some < 0 && errno == EINTR) continue;
    if (some < 0) {
      const int error = errno;
      if (place.is_file) ::unlink(place.name.c_str());
      return CannotWrite(place.name, error,
                         std::to_string(written) + " of its " + std::to_string(text.size()) +
                             " bytes were written" +
                             (place.is_file ? ", and are removed again" : "") +
                             "; write it elsewhere with --output");
    }
    written += static_cast<size_t>(some);
  }
  return {};
}

Status Trace(const DebugTraceOptions& options, const AgentPlace& place) {
  auto connection = ConnectTo(place);
  if (!connection && connection.error().code == "no_agent") {
    return Fail("no_agent", NoAgentText(place,
                                        ", so there is nothing to trace; `prorata run` starts one, "
                                        "or `prorata agent`"));
  }
  if (!connection) return std::unexpected(connection.error());
  auto devices = ReadDevices(*connection, options);
  if (!devices) return std::unexpected(devices.error());
  const std::string text = api::ChromeTrace(*devices, std::string("prorata ") + kVersion);
  auto to = OpenPlace(options.output);
  if (!to) return std::unexpected(to.error());
  if (auto ok = WriteAll(*to, text); !ok) return ok;
  for (const api::TracedDevice& device : *devices) WarnOf(device, options.seconds);
  if (to->fd != STDOUT_FILENO) {
    PrintError("wrote " + to->name + "; open it at https://ui.perfetto.dev");
  }
  return {};
}

}  // namespace

int DebugTrace(const DebugTraceOptions& options, const AgentPlace& place) {
  const Status traced = Trace(options, place);
  if (traced) return kExitOk;
  PrintError(traced.error().message);
  return kExitRefused;
}

}  // namespace prorata::cli
