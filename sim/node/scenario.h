#pragma once

// A scenario: which programs run on a machine, on what terms, and what each is to get. The same
// file drives the one-process simulation (layer V) and real processes (layer M).
//
//     name = "two busy programs"          # one line, for people
//     duration_ms = 5000                  # programs run from 0 to here
//     warmup_ms = 500                     # judged window: [warmup_ms, duration_ms]
//     prorata = true                      # false: no agent, no client library
//     elastic_ceiling = "1.0"             # as `prorata agent --elastic-ceiling` sets it
//     machine = { devices = [{ time_slice_us = 2000 }] }   # optional; keys of the machine's file
//
//     [[programs]]
//     name = "a"
//     count = 1                           # so many equal programs: a-0, a-1, ... (one: just a)
//     share = "a"                         # default: its own name; those that name one share are
//                                         # members of it
//     compute = "0.5"                     # as in `prorata run --compute`; the terms of a share are
//                                         # given once, or agree
//     compute_limit = "1.0"
//     weight = 1
//     priority = 0                        # as in `prorata run --priority`
//     yield_within_ms = 2
//     memory = "1GiB"
//     gang = false                        # runs on all its devices at once (policy/gangs.h)
//     start_ms = 0
//     stop_ms = 5000                      # default: duration
//     kernel_us = 1000                    # or [20, 5000]: uniform; or { choice = [20, 200, 5000] }
//                                         # with `parts = [0.9, 0.05, 0.05]` so often each
//     functions = 1                       # so many are launched, at random, and each always takes
//                                         # the same time; 1: each launch takes its own
//     grows_over = 0                      # not 0: from the least to the most time in so many
//                                         # launches, and from the least again
//     sm_fraction = 1.0
//     streams = 1                         # used in turn
//     threads = 1                         # each launches into its own streams, and waits for those
//     stream_per_request = false          # its launches between two synchronisations have a stream
//                                         # of their own: made, synchronised and destroyed
//     idle_streams = 0                    # so many others exist: used once, when it begins
//     blocked = 0                         # so many launches lie behind a wait in a stream of their
//                                         # own from the beginning; it is released at the end
//     behind_wait = false                 # before each request comes a wait into its stream, which
//                                         # the same thread releases after the last launch of it
//     host_function_us = 0                # before each request comes a host function that takes so
//                                         # long into its stream
//     copy_in = "32MiB"                   # before each request comes a copy of so much from the
//                                         # host into its stream (default: none), ...
//     copy_out = "1MiB"                   # ... and after it one to the host
//     copy_every = 0                      # not 0: they come with every so manieth launch, not
//                                         # with each request
//     copy_ahead = false                  # copies from the host are made a request ahead, in a
//                                         # stream of their own, which its launches wait for
//     life_ms = 0                         # not 0: its process ends after so long, and another one
//     rest_ms = 0                         # begins so long after it
//     per_sync = 16                       # launches between two synchronisations; 0: never
//                                         # synchronises, and queues what it may
//     host_us = 0                         # computes so long on the host before each launch
//     gap_us = 0                          # asleep on the host after each synchronisation
//     first_gap_us = 0                    # and the first of its processes for so much longer: it
//                                         # evaluates, or saves what was learned
//     steps = 1                           # a request is so many times per_sync launches and a
//                                         # synchronisation, with gap_us between them
//     burst_ms = 0                        # not 0: after so long at work it rests, when its request
//                                         # is done, ...
//     quiet_ms = 0                        # ... for so long
//     every_us = 0                        # not 0: open loop; a request of per_sync launches and a
//                                         # synchronisation comes every so often, whether the last
//                                         # is done or not; its latency is counted from then
//     poisson = false                     # with every_us: at random, so often in the mean
//     graph = 0                           # kernels in a captured graph; one launch is one replay
//     devices = [0]                       # several: a process for each of them, all of one share
//     collective_every = 0                # not 0: every so manieth launch of such a process ends
//                                         # together with that of the others, and holds its device
//                                         # until then
//     first_more = 0                      # with that: the first of its processes makes so many
//                                         # launches more between two of them
//
//     [[updates]]                         # optional: `prorata update` while programs run; changes
//     at_ms = 2500                        # the terms that it names, of
//     share = "a"
//     compute_limit = "0.6"               # compute, compute_limit, weight, priority,
//     yield_within_ms
//
//     [[expect]]                          # over the judged window
//     program = "a"                       # all of the table's `count`; or share = "a"; or
//                                         # device_use = true: all programs together
//     gpu_time = 0.5                      # of the device time of all programs in the window; for
//                                         # device_use: of the window itself
//     tolerance_points = 1.0              # layer V's; layer M takes three times as many
//
// Every program has a context: context_memory of the device's memory.
//
// Device time is the device's own account: time in which a kernel of the program ran. Times in the
// file are simulated time. Without prorata the terms mean nothing, and are allowed, so that two
// files may differ in one line. An unknown key is an error. `devices`, `collective_every`, `gang`,
// `first_gap_us`, `first_more`, `grows_over`, `host_us`, `steps`, `burst_ms`, `quiet_ms` and all
// from `threads` to `rest_ms` are of the one-process simulation only.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/gang.h"
#include "base/result.h"
#include "policy/compute/entitlement.h"
#include "sim/core/config.h"

namespace prorata::simulation {

// How long kernels take: uniform from low to high, or one of `choice`.
struct KernelTime {
  int64_t low_ns = 1'000'000;
  int64_t high_ns = 1'000'000;
  std::vector<int64_t> choice_ns;
  std::vector<double> parts = {};  // of all, of each choice; empty: all are equally likely
  int grows_over = 0;              // launches, from low to high; 0: at random
};

struct ProgramSpec {
  std::string name;
  int count = 1;
  std::string share;
  int64_t start_ns = 0;
  int64_t stop_ns = 0;
  KernelTime kernel;
  int functions = 1;
  uint32_t sm_ppm = 1'000'000;
  int streams = 1;
  int threads = 1;
  bool stream_per_request = false;
  int idle_streams = 0;
  int blocked = 0;
  bool behind_wait = false;
  int64_t host_function_ns = 0;  // 0: none
  uint64_t copy_in_bytes = 0;
  uint64_t copy_out_bytes = 0;
  int copy_every = 0;  // launches; 0: with each request
  bool copy_ahead = false;
  int64_t life_ns = 0;  // 0: until stop_ns
  int64_t rest_ns = 0;
  int per_sync = 16;
  int64_t host_ns = 0;
  int64_t gap_ns = 0;
  int steps = 1;         // of a request
  int64_t burst_ns = 0;  // 0: works all the time
  int64_t quiet_ns = 0;
  int64_t first_gap_ns = 0;  // more, of the process on the first of its devices
  int64_t every_ns = 0;      // 0: no open loop
  bool poisson = false;
  int graph = 0;
  std::vector<int> devices = {0};
  int collective_every = 0;
  int first_more = 0;  // launches between two of those, of the process on the first device
};

struct ShareSpec {
  std::string name;
  policy::ComputeTerms compute;
  uint64_t memory_bytes = 0;
  std::vector<int> devices = {0};  // of its programs, lowest first
  // Not in the file but for `gang = true`; kNever is to compare with.
  using Gang = api::Gang;
  Gang gang = Gang::kAuto;
};

// From then on the share has these terms: those it had, and what the update names.
struct UpdateSpec {
  int64_t at_ns = 0;
  std::string share;
  policy::ComputeTerms compute;
};

struct Expectation {
  enum class Of : uint8_t { kProgram, kShare, kDeviceUse } of = Of::kProgram;
  std::string name;
  double gpu_time = 0;
  double tolerance_points = 1;
};

struct Scenario {
  std::string name;
  int64_t duration_ns = 0;
  int64_t warmup_ns = 0;
  bool prorata = true;
  Fraction elastic_ceiling = Fraction::One();
  simgpu::MachineConfig machine = simgpu::DefaultMachineConfig();
  std::vector<ProgramSpec> programs;
  std::vector<ShareSpec> shares;
  std::vector<UpdateSpec> updates;  // in the order of their times
  std::vector<Expectation> expect;
};

// Gives every share the devices of its programs; for scenarios that are not read from a file.
void FindDevices(Scenario* scenario);

// `origin` names the text in errors ("FILE: programs[1].kernel_us: expected ...").
Result<Scenario> ParseScenario(std::string_view text, std::string_view origin);
Result<Scenario> ReadScenario(const std::string& path);

}  // namespace prorata::simulation
