// What must be true of every random world.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <utility>

#include "base/units.h"
#include "client/compute/work.h"
#include "sim/node/random_world.h"

namespace prorata::simulation {
namespace {

constexpr int64_t kSliceNs = 13 * kMs;
// What a member may have queued: of a share without a limit, and with one.
constexpr int64_t kBacklogNs = 20 * kMs, kLimitedBacklogNs = 5 * kMs;
// Of which the audit knows nothing: a percentage of a second, and what came since the last one.
constexpr int64_t kAuditedNs = 15 * kMs;
constexpr int64_t kItemNs = 5 * kMs;  // longer ones are promised less
constexpr int64_t kLearnNs = 1 * kS;  // programs learn their kernels before that
// Entitlements below another priority follow what it had in about so much time.
constexpr int64_t kFollowNs = 1 * kS;
// What passes between the items of those above is charged to nobody and left to nobody: so much of
// the time at most, where they want all of it.
constexpr double kBetweenItems = 0.05;

std::string Ms(int64_t ns) { return std::to_string(static_cast<double>(ns) / 1e6) + " ms"; }
std::string Ms(double ns) { return std::to_string(ns / 1e6) + " ms"; }

// What a process may have put where no bound reaches it: behind a wait, or a host function.
int64_t BehindWaitsNs(const ProgramSpec& program) {
  int64_t launches = program.blocked;
  if (program.behind_wait || program.host_function_ns > 0) launches += program.per_sync;
  return launches * LongestItemNs(program);
}

// --- What holds in every world -------------------------------------------------------------------

std::string CheckFigures(const World& world) {
  for (const auto& process : world.processes()) {
    if (process->lied() || process->MeasuredNs() <= process->lived_ns()) continue;
    return "program " + std::to_string(process->id()) + " says it used " +
           Ms(process->MeasuredNs()) + " in a life of " + Ms(process->lived_ns());
  }
  return "";
}

std::string CheckLimits(const World& world) {
  struct Sum {
    int64_t busy_ns = 0, began_ns = INT64_MAX, ended_ns = 0, allowed_ns = 0;
    bool lied = false;
    bool meets = false;  // its kernels wait for each other, for as long as that takes
  };
  std::map<std::pair<const SimulatedShare*, int>, Sum> sums;
  for (const auto& process : world.processes()) {
    Sum& sum = sums[{process->share(), process->device()}];
    sum.busy_ns += process->BusyNs();
    sum.began_ns = std::min(sum.began_ns, process->began_ns());
    sum.ended_ns = std::max(sum.ended_ns, process->began_ns() + process->lived_ns());
    // Of kernels that take this or that two may be queued for one; and each thread launches one.
    const int items =
        (process->spec().kernel.choice_ns.empty() ? 1 : 2) * std::max(1, process->spec().threads);
    sum.allowed_ns +=
        kLimitedBacklogNs + items * LongestItemNs(process->spec()) + BehindWaitsNs(process->spec());
    sum.lied = sum.lied || process->lied();
    sum.meets = sum.meets || process->spec().collective_every > 0;
  }
  for (const auto& [of, sum] : sums) {
    const double limit = of.first->spec.compute.limit.value();
    if (limit >= 1 || sum.lied || sum.meets) continue;
    const auto life_ns = static_cast<double>(sum.ended_ns - sum.began_ns);
    const auto bound_ns =
        static_cast<int64_t>((limit + 0.01) * life_ns) + kSliceNs + sum.allowed_ns;
    if (sum.busy_ns <= bound_ns) continue;
    return "limit: share " + of.first->spec.name + " with a limit of " + std::to_string(limit) +
           " used " + Ms(sum.busy_ns) + " in " + Ms(life_ns) + ", allowed are " + Ms(bound_ns);
  }
  return "";
}

std::string CheckEmpty(World& world) {
  for (int device = 0; device < world.machine().device_count(); ++device) {
    const auto usage = world.machine().Usage(device);
    if (!usage->processes.empty()) return "a process is left on a device";
    if (usage->used_bytes != 0) return std::to_string(usage->used_bytes) + " bytes are left";
  }
  const std::string broken = world.machine().CheckInvariants();
  return broken.empty() ? "" : "the core: " + broken;
}

// --- What was used -------------------------------------------------------------------------------

// Of each share, at the beginning and the end of the time in which it is judged: when all its
// programs are there and have learned their kernels, until the first of them ends.
struct Use {
  int64_t from_ns = 0, to_ns = 0;
  double busy_ns = 0;   // device time of all its programs; of those with collectives ...
  double launches = 0;  // ... their launches: a kernel that waits for its peer is busy, too
  std::map<const ProgramSpec*, double> of_program;
  // What it is entitled to by its request, and until when that is known. Of its devices: what those
  // above it had by then.
  double entitled_ns = 0;
  int64_t entitled_until_ns = 0;
  std::vector<int64_t> above_ns;

  double Entitled() const { return entitled_ns / static_cast<double>(to_ns - from_ns); }
};

std::vector<Use> WindowsOf(const Scenario& scenario) {
  std::vector<Use> uses;
  for (const ShareSpec& share : scenario.shares) {
    Use& use = uses.emplace_back();
    use.above_ns.resize(share.devices.size());
    use.to_ns = scenario.duration_ns;
    for (const ProgramSpec& program : scenario.programs) {
      if (program.share != share.name) continue;
      use.from_ns = std::max(use.from_ns, program.start_ns + kLearnNs);
      use.to_ns = std::min(use.to_ns, program.stop_ns);
    }
    use.entitled_until_ns = use.from_ns;
  }
  return uses;
}

bool HasCollectives(const Scenario& scenario, const ShareSpec& share) {
  return std::any_of(scenario.programs.begin(), scenario.programs.end(), [&](const auto& program) {
    return program.share == share.name && program.collective_every > 0;
  });
}

void AddUse(const World& world, const Scenario& scenario, size_t share, int sign, Use* use) {
  for (size_t i = 0; i < scenario.programs.size(); ++i) {
    if (scenario.programs[i].share != scenario.shares[share].name) continue;
    const double busy_ns = sign * static_cast<double>(world.ProgramBusyNs(i));
    use->busy_ns += busy_ns;
    use->of_program[&scenario.programs[i]] += busy_ns;
  }
  for (const auto& process : world.processes()) {
    if (process->spec().share != scenario.shares[share].name) continue;
    use->launches += sign * static_cast<double>(process->launches());
  }
}

// The part of its request that is left to a share by those of a higher priority: requests of one
// priority come first, and are cut alike.
double LeftToRequest(const Scenario& scenario, const ShareSpec& share, int device, double left) {
  double requests = 0;
  for (const ShareSpec& other : scenario.shares) {
    if (other.compute.priority != share.compute.priority) continue;
    const bool there =
        std::find(other.devices.begin(), other.devices.end(), device) != other.devices.end();
    if (there) requests += other.compute.request.value();
  }
  return requests <= left ? 1 : std::max(0.0, left) / requests;
}

// From the last time that this was called, or the window's begin, to now.
void AddEntitled(World& world, const Scenario& scenario, const ShareSpec& share, Use* use) {
  const int64_t passed_ns = world.now_ns() - use->entitled_until_ns;
  double part = 1;
  for (size_t i = 0; i < share.devices.size(); ++i) {
    int64_t above_ns = 0;
    for (const ShareSpec& other : scenario.shares) {
      if (other.compute.priority <= share.compute.priority) continue;
      above_ns += world.agent()->ChargedNs(other.name, share.devices[i]);
    }
    const auto had_ns = static_cast<double>(above_ns - std::exchange(use->above_ns[i], above_ns));
    const double had = had_ns / static_cast<double>(std::max<int64_t>(1, passed_ns));
    const double left = had > 0 ? 1 - had - kBetweenItems : 1;
    part = std::min(part, LeftToRequest(scenario, share, share.devices[i], left));
  }
  use->entitled_until_ns = world.now_ns();
  use->entitled_ns += part * share.compute.request.value() * static_cast<double>(passed_ns);
}

// Runs to the scenario's end, and takes the uses down on the way.
std::vector<Use> RunAndMeasure(World& world, const Scenario& scenario) {
  std::vector<Use> uses = WindowsOf(scenario);
  std::multimap<int64_t, std::pair<size_t, int>> moments;
  for (size_t i = 0; i < uses.size(); ++i) {
    if (uses[i].to_ns <= uses[i].from_ns) continue;
    moments.insert({uses[i].from_ns, {i, -1}});
    for (int64_t ns = uses[i].from_ns + kFollowNs; ns < uses[i].to_ns; ns += kFollowNs) {
      moments.insert({ns, {i, 0}});
    }
    moments.insert({uses[i].to_ns, {i, +1}});
  }
  for (const auto& [when_ns, what] : moments) {
    world.RunUntil(when_ns);
    Use& use = uses[what.first];
    AddUse(world, scenario, what.first, what.second, &use);
    AddEntitled(world, scenario, scenario.shares[what.first], &use);
  }
  world.RunUntil(scenario.duration_ns);
  return uses;
}

// --- What holds in calm worlds -------------------------------------------------------------------

std::string CheckWallTime(const World& world, const Scenario& scenario) {
  World& mutable_world = const_cast<World&>(world);
  for (int device = 0; device < mutable_world.machine().device_count(); ++device) {
    int64_t charged_ns = 0;
    for (const ShareSpec& share : scenario.shares) {
      charged_ns += mutable_world.agent()->ChargedNs(share.name, device);
    }
    if (charged_ns > world.now_ns()) {
      return "charges: of device " + std::to_string(device) + " " + Ms(charged_ns) +
             " were charged in " + Ms(world.now_ns());
    }
  }
  return "";
}

bool IsEnough(int64_t charged_ns, int64_t busy_ns) {
  return static_cast<double>(charged_ns) >= 0.99 * static_cast<double>(busy_ns) - kAuditedNs;
}

// Whether this share and another may have the device free between them: nothing tells then which of
// them ran while both had work.
bool MayBeFree(const Scenario& scenario, const ShareSpec& share, int device) {
  const auto asks = [](const ShareSpec& s) {
    return s.compute.request > Fraction::Zero() || s.compute.limit < Fraction::One() ||
           (s.gang == ShareSpec::Gang::kAlways && s.devices.size() > 1);
  };
  if (asks(share) || scenario.elastic_ceiling < Fraction::One()) return false;
  return std::any_of(scenario.shares.begin(), scenario.shares.end(), [&](const ShareSpec& other) {
    const bool there =
        std::find(other.devices.begin(), other.devices.end(), device) != other.devices.end();
    return &other != &share && there && !asks(other) &&
           other.compute.weight == share.compute.weight &&
           other.compute.priority == share.compute.priority;
  });
}

// After all have ended: by then everything is charged.
std::string CheckCharges(World& world, const Scenario& scenario) {
  for (int device = 0; device < world.machine().device_count(); ++device) {
    int64_t all_charged_ns = 0, all_busy_ns = 0;
    for (const ShareSpec& share : scenario.shares) {
      int64_t busy_ns = 0;
      for (const auto& process : world.processes()) {
        const bool counts = process->spec().share == share.name && process->device() == device;
        if (counts) busy_ns += process->BusyNs();
      }
      const int64_t charged_ns = world.agent()->ChargedNs(share.name, device);
      all_charged_ns += charged_ns;
      all_busy_ns += busy_ns;
      if (MayBeFree(scenario, share, device) || IsEnough(charged_ns, busy_ns)) continue;
      return "charge: share " + share.name + " was charged " + Ms(charged_ns) + " and used " +
             Ms(busy_ns) + " of device " + std::to_string(device);
    }
    if (IsEnough(all_charged_ns, all_busy_ns)) continue;
    return "charge: all were charged " + Ms(all_charged_ns) + " and used " + Ms(all_busy_ns) +
           " of device " + std::to_string(device);
  }
  return "";
}

// For so long it stands behind a request's copies.
int64_t BehindCopiesNs(const ProgramSpec& program) {
  const uint64_t bytes = program.copy_ahead ? 0 : program.copy_in_bytes;
  if (bytes < client::kLongCopyBytes) return 0;
  return static_cast<int64_t>(static_cast<double>(bytes) * 1e9 /
                              static_cast<double>(simgpu::DeviceConfig{}.h2d_bytes_per_s));
}

// The part of its request of its speed alone that a program has at least, in a world of such items:
// one that sleeps pays for each waking.
double LeastPart(const ProgramSpec& program, int64_t others_ns) {
  const int64_t sleeps_ns = program.gap_ns + program.host_function_ns + BehindCopiesNs(program);
  if (sleeps_ns < 200 * kUs && program.every_ns == 0 && program.life_ns == 0) return 1;
  const KernelTime& kernel = program.kernel;
  int64_t mean_ns = (kernel.low_ns + kernel.high_ns) / 2;
  for (size_t i = 0; i < kernel.parts.size(); ++i) {
    if (i == 0) mean_ns = 0;
    mean_ns += static_cast<int64_t>(kernel.parts[i] * static_cast<double>(kernel.choice_ns[i]));
  }
  const int64_t own_ns = mean_ns * std::max(1, program.graph) * std::max(1, program.per_sync);
  int64_t round_ns = std::max(program.every_ns, own_ns + sleeps_ns);
  if (sleeps_ns < 200 * kUs && program.every_ns == 0) round_ns = program.life_ns;
  if (program.life_ns > 0) round_ns = std::min(round_ns, program.life_ns);
  const auto round = static_cast<double>(round_ns);
  return std::max(0.5, round / (round + static_cast<double>(1 * kMs + others_ns)));
}

std::string JudgeSpeed(const Scenario& scenario, size_t index, const Use& use, const Use& alone) {
  const ShareSpec& share = scenario.shares[index];
  int64_t own_ns = 0, others_ns = 0;
  for (const ProgramSpec& program : scenario.programs) {
    int64_t& longest_ns = program.share == share.name ? own_ns : others_ns;
    longest_ns = std::max({longest_ns, LongestItemNs(program), BehindWaitsNs(program)});
  }
  const double request = use.Entitled();
  const bool coarse = std::max(own_ns, others_ns) > kItemNs || share.devices.size() > 1;
  const double part = coarse ? 0.95 : 0.97;
  if (HasCollectives(scenario, share)) {
    const double least = part * request * alone.launches;
    // At the ends a slice's launches, and those of an item.
    const auto window_ns = static_cast<double>(use.to_ns - use.from_ns);
    const double ends =
        alone.launches * static_cast<double>(kSliceNs + own_ns + others_ns) / window_ns;
    if (use.launches + ends >= least) return "";
    return "speed: share " + share.name + " entitled to " + std::to_string(request) + " made " +
           std::to_string(use.launches / alone.launches) + " of its launches alone";
  }
  double least_ns = 0;
  for (const ProgramSpec& program : scenario.programs) {
    if (program.share != share.name) continue;
    for (const auto& [spec, busy_ns] : alone.of_program) {
      if (spec->name != program.name) continue;
      least_ns += part * request * busy_ns * LeastPart(program, others_ns);
    }
  }
  const auto ends_ns = static_cast<double>(kSliceNs + own_ns + others_ns);
  if (use.busy_ns + ends_ns >= least_ns) return "";
  return "speed: share " + share.name + " entitled to " + std::to_string(request) + " ran at " +
         std::to_string(use.busy_ns / alone.busy_ns / request) +
         " of that times its speed alone; " + Ms(use.busy_ns) + ", at least " + Ms(least_ns) +
         " but " + Ms(ends_ns);
}

std::string CheckSpeeds(const Scenario& scenario, const WorldOptions& options,
                        const std::vector<Use>& uses) {
  for (size_t i = 0; i < scenario.shares.size(); ++i) {
    const ShareSpec& share = scenario.shares[i];
    if (share.compute.request == Fraction::Zero() || uses[i].to_ns - uses[i].from_ns < kS) continue;
    Scenario alone = scenario;
    alone.prorata = false;
    alone.shares = {share};
    std::erase_if(alone.programs, [&](const auto& program) { return program.share != share.name; });
    World world(alone, options);
    const std::vector<Use> use = RunAndMeasure(world, alone);
    if (std::string wrong = JudgeSpeed(scenario, i, uses[i], use[0]); !wrong.empty()) return wrong;
  }
  return "";
}

// For people: in parts of the time that is judged, and of the world's.
void DescribeUse(World& world, const Scenario& scenario, const std::vector<Use>& uses,
                 std::ostream& out) {
  for (size_t i = 0; i < scenario.shares.size(); ++i) {
    const ShareSpec& share = scenario.shares[i];
    out << "share " << share.name << " request " << share.compute.request.value() << " judged from "
        << Ms(uses[i].from_ns) << " to " << Ms(uses[i].to_ns) << " ran "
        << uses[i].busy_ns / static_cast<double>(uses[i].to_ns - uses[i].from_ns) << " charged";
    for (const int device : share.devices) {
      const int64_t charged_ns =
          world.agent() == nullptr ? 0 : world.agent()->ChargedNs(share.name, device);
      out << " " << static_cast<double>(charged_ns) / static_cast<double>(world.now_ns());
    }
    out << "\n";
  }
}

bool AllAreEqual(const Scenario& scenario) {
  return scenario.elastic_ceiling == Fraction::One() &&
         std::all_of(scenario.shares.begin(), scenario.shares.end(), [&](const ShareSpec& share) {
           const auto& first = scenario.shares[0].compute;
           return share.compute.request == Fraction::Zero() &&
                  share.compute.limit == Fraction::One() && share.compute.weight == first.weight &&
                  share.compute.priority == first.priority &&
                  share.gang != ShareSpec::Gang::kAlways;
         });
}

std::string CheckFreeDevices(const Scenario& scenario, const WorldOptions& options,
                             double used_ns) {
  if (!AllAreEqual(scenario)) return "";
  Scenario bare = scenario;
  bare.prorata = false;
  World world(bare, options);
  world.RunUntil(bare.duration_ns);
  const auto bare_ns = static_cast<double>(world.DeviceBusyNs());
  if (used_ns >= 0.99 * bare_ns - 5 * kMs) return "";
  return "use: the devices ran for " + Ms(used_ns) + ", and for " + Ms(bare_ns) +
         " without prorata";
}

}  // namespace

std::string CheckRandomWorld(uint64_t seed, WorldKind kind, std::ostream* trace) {
  const Scenario scenario = RandomScenario(seed, kind);
  WorldOptions options = RandomOptions(seed);
  options.trace = trace;
  World world(scenario, options);
  const std::vector<Use> uses = RunAndMeasure(world, scenario);
  options.trace = nullptr;
  if (trace != nullptr) DescribeUse(world, scenario, uses, *trace);
  const bool calm = IsCalm(options);
  const auto used_ns = static_cast<double>(world.DeviceBusyNs());
  std::string wrong = calm ? CheckWallTime(world, scenario) : "";
  world.Finish();
  if (!world.failure().empty()) return world.failure();
  if (!wrong.empty()) return wrong;
  if (wrong = CheckFigures(world); !wrong.empty()) return wrong;
  if (wrong = CheckLimits(world); !wrong.empty()) return wrong;
  if (wrong = CheckEmpty(world); !wrong.empty()) return wrong;
  if (!calm) return "";
  wrong = CheckCharges(world, scenario);
  for (const std::string& more :
       {CheckFreeDevices(scenario, options, used_ns), CheckSpeeds(scenario, options, uses)}) {
    if (!more.empty()) wrong += (wrong.empty() ? "" : "; ") + more;
  }
  return wrong;
}

uint64_t FreshSeed() {
  const char* given = std::getenv("PRORATA_TEST_SEED");
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const uint64_t seed =
      given != nullptr
          ? std::strtoull(given, nullptr, 10)
          : static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(now).count());
  std::printf("seed: PRORATA_TEST_SEED=%llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

}  // namespace prorata::simulation
