#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "agent/config/elastic_ceiling.h"
#include "agent/config/metrics_address.h"
#include "agent/config/overcommit.h"
#include "agent/config/resource_config.h"
#include "api/allowed_users.h"
#include "api/control.h"
#include "base/clock.h"
#include "base/fraction.h"
#include "cli/top/top_view.h"

namespace prorata::cli {

// Exit statuses of prorata itself. A program under `run` gives its own; a command that cannot be
// started gives the shell's numbers.
inline constexpr int kExitOk = 0;
inline constexpr int kExitRefused = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitAgentGone = 3;  // events: the agent ended
inline constexpr int kExitNotExecutable = 126;
inline constexpr int kExitNotFound = 127;

// A new share.
struct ShareOptions {
  std::optional<api::MemorySize> memory;          // nothing: all that the device has left
  std::optional<api::MemorySize> memory_request;  // nothing: all of it, if not overcommitted
  Fraction compute_request = Fraction::Zero();
  Fraction compute_limit = Fraction::One();
  uint32_t weight = api::kDefaultWeight;
  int32_t priority = 0;
  int64_t yield_within_ns = api::kDefaultYieldWithinNs;
  std::vector<std::string> gpus;      // indices or UUIDs; empty: the agent chooses
  std::optional<uint32_t> gpu_count;  // how many it chooses; nothing: one
  bool all_gpus = false;              // all that the agent has
  std::vector<api::TermsOnGpu> on;
  api::OnFull on_full;
  api::Gang gang = api::Gang::kAuto;
  bool guaranteed = false;
  std::vector<std::string> share_memory_with;
  api::AllowedUsers allow_users = {};
  std::string name;                 // empty: the agent makes one up
  bool any_container = false;       // of several at once
  bool exclusive = false;           // whole GPUs with the plain driver
  bool wait = false;                // in line, until it fits
  std::optional<uint64_t> wait_ms;  // for no longer; nothing: as long as it takes
};

struct RunOptions : ShareOptions {
  std::vector<std::string> command;
};

// inspect, rm, cdi: of shares by their names. container-hook: libraries.
struct NamedOptions {
  std::vector<std::string> names;
  bool ctr = false;      // cdi: as arguments of containerd's ctr
  bool volumes = false;  // cdi: as arguments of podman and Docker
  bool force = false;    // rm: also of shares that programs run on, which are killed
};

struct PsOptions {
  std::vector<std::string> names;  // empty: all
  bool quiet = false;              // the names alone
  bool waiting = false;            // those in line
};

struct AgentCommandOptions {
  std::string log_level = "info";
  bool exit_when_idle = false;
  std::vector<agent::Overcommit> overcommit;
  std::vector<agent::ElasticCeiling> elastic_ceilings;
  std::vector<agent::ResourceConfigFile> resource_configs;
  std::optional<agent::MetricsAddress> metrics;
  uint32_t dilation = 1;      // agent/server/agent.h
  uint32_t slow_disk_ms = 0;  // likewise
  std::string cdi_dir;        // empty: by default
  int ready_fd = -1;          // where `run`, who started this agent, waits to hear that it answers
};

struct UpdateOptions {
  std::string name;
  api::ShareChange change;
};

struct EventsOptions {
  std::optional<uint64_t> since;  // after this sequence; nothing: from now on
  std::string share;              // empty: all
  bool follow = true;
};

struct TopOptions {
  int64_t interval_ns = kNsPerS;
  TopSort sort = TopSort::kTime;
  bool reversed = false;
  bool plain = false;  // tables, also on a terminal
  bool once = false;
};

struct DebugTraceOptions {
  double seconds = 10;  // the last so many
  std::string gpu;      // an index or a UUID; empty: all
  std::optional<std::string> output;
  bool asked = false;
};

// As typed: sim/cluster reads them.
struct SimulateOptions {
  std::string nodes;
  std::string pods;
  std::vector<std::string> policies = {"prorata"};
  std::string arrivals = "sampled";
  std::string ties = "shuffled";
  std::string seeds = "42";
  double load_percent = 130;
  int64_t gpus = 0;
  int64_t look_ahead = 1;
  int64_t move_every = 0;
  bool cpu_nodes = false;
  bool plan = true;
  bool progress = true;
  std::string csv;
  std::string packing;
  std::string plot;
};

enum class Verb {
  kRun,
  kPs,
  kGpus,
  kUpdate,
  kEvents,
  kTop,
  kDebugTrace,
  kSimulate,
  kAgent,
  kCreate,
  kRemove,
  kInspect,
  kCdi,
  kContainerHook,
};

struct Options {
  Verb verb = Verb::kPs;
  bool json = false;
  RunOptions run;
  ShareOptions create;
  NamedOptions named;
  PsOptions ps;
  UpdateOptions update;
  EventsOptions events;
  TopOptions top;
  DebugTraceOptions debug_trace;
  SimulateOptions simulate;
  AgentCommandOptions agent;
};

// What a command line came to: options to act on, or a text to print and a status to exit with
// (help and version on stdout, a usage error as one line on stderr).
struct ParseOutcome {
  std::optional<Options> options;
  std::string out;
  std::string err;
  int status = kExitOk;
};

ParseOutcome ParseCommandLine(const std::vector<std::string>& arguments);

}  // namespace prorata::cli
