#include "sim/node/random_world.h"
#include "base/bytes.h"
#include "base/units.h"

#include <algorithm>
#include <cmath>
#include <sstream>

namespace prorata::simulation {
namespace {

// Uniform in its logarithm.
int64_t LogBetween(Random& random, int64_t low, int64_t high) {
  const double ratio = static_cast<double>(high) / static_cast<double>(low);
  return static_cast<int64_t>(static_cast<double>(low) * std::pow(ratio, random.Unit()));
}

// How its launches come, and from how many threads, streams and processes.
void DrawShape(Random& random, ProgramSpec& program, int64_t duration_ns) {
  switch (random.Between(0, 12)) {
    case 0:
      program.stream_per_request = true;
      program.per_sync = static_cast<int>(random.Between(1, 20));
      break;
    case 1:
      program.idle_streams = static_cast<int>(random.Between(10, 1'100));
      program.per_sync = static_cast<int>(random.Between(1, 20));
      break;
    case 2:
      program.blocked = static_cast<int>(random.Between(10, 400));
      program.per_sync = static_cast<int>(random.Between(1, 20));
      break;
    case 3:
      program.behind_wait = true;
      program.per_sync = static_cast<int>(random.Between(1, 200));
      break;
    case 4:
      program.host_function_ns = LogBetween(random, 100 * kUs, 20 * kMs);
      program.per_sync = static_cast<int>(random.Between(1, 100));
      break;
    case 5:
    case 6:
      program.kernel.choice_ns = {20 * kUs, 20 * kMs};
      program.kernel.parts = {0.5, 0.5};
      if (random.Chance(0.7)) program.kernel.parts = {0.99, 0.01};
      break;
    case 7:
      program.threads = static_cast<int>(random.Between(2, 4));
      program.per_sync = static_cast<int>(random.Between(1, 20));
      break;
    case 8:
      program.life_ns = random.Between(50, 500) * kMs;
      program.rest_ns = random.Between(0, 100) * kMs;
      program.stop_ns = duration_ns;
      program.per_sync = static_cast<int>(random.Between(1, 20));
      break;
    case 9:
      program.per_sync = static_cast<int>(random.Between(1, 4));
      program.every_ns = program.kernel.high_ns * program.per_sync * random.Between(2, 20);
      program.poisson = random.Chance(0.7);
      break;
    default:
      break;
  }
}

ProgramSpec RandomProgram(Random& random, size_t number, int64_t duration_ns) {
  ProgramSpec program;
  program.name = "p" + std::to_string(number);
  program.share = program.name;
  program.stop_ns = duration_ns;
  if (random.Chance(0.3)) program.start_ns = random.Between(0, duration_ns / 3);
  if (random.Chance(0.3)) {
    program.stop_ns = random.Between(program.start_ns + duration_ns / 3, duration_ns);
  }
  const int64_t low_ns = LogBetween(random, 20 * kUs, 5 * kMs);
  program.kernel = {low_ns, low_ns, {}};
  if (random.Chance(0.3)) program.kernel.high_ns = random.Between(low_ns, 5 * kMs);
  if (random.Chance(0.2)) program.sm_ppm = static_cast<uint32_t>(random.Between(10'000, 1'000'000));
  if (random.Chance(0.3)) program.streams = static_cast<int>(random.Between(2, 6));
  program.per_sync = random.Chance(0.2) ? 0 : static_cast<int>(LogBetween(random, 1, 64));
  if (random.Chance(0.15)) program.graph = static_cast<int>(random.Between(1, 20));
  DrawShape(random, program, duration_ns);
  // A stream takes about a thousand entries: who puts more behind a wait waits for ever, bare too.
  if (program.graph > 0) program.blocked = std::min(program.blocked, 900 / program.graph);
  if (program.graph > 0 && program.behind_wait) {
    program.per_sync = std::min(program.per_sync, 900 / program.graph);
  }
  // Without prorata it queues seconds of work, and ends when that is done.
  if (program.per_sync == 0) program.stop_ns = duration_ns;
  const bool closed = program.per_sync > 0 && program.every_ns == 0;
  if (closed && random.Chance(0.3)) program.gap_ns = LogBetween(random, 20 * kUs, 20 * kMs);
  return program;
}

// Kernels of a tenth of a second to three.
void MakeLong(Random& random, ProgramSpec& program) {
  const int64_t kernel_ns = LogBetween(random, 100 * kMs, 3 * kS);
  program.kernel = {kernel_ns, kernel_ns, {}};
  program.per_sync = 1;
  program.graph = program.blocked = 0;
  program.every_ns = program.life_ns = 0;
}

// No work that holds the device for long. Shares of a higher priority would have to wait for it,
// and the judge would take the time that they lost for time that they left.
void KeepShort(ProgramSpec& program) {
  program.graph = program.blocked = 0;
  program.behind_wait = false;
  program.host_function_ns = 0;
  for (int64_t& choice_ns : program.kernel.choice_ns) choice_ns = std::min(choice_ns, 5 * kMs);
}

struct Terms {
  bool plain;                // no share differs from another
  std::vector<double> room;  // of each device, for requests
};

ShareSpec RandomShare(Random& random, const ProgramSpec& program, Terms& terms) {
  ShareSpec share;
  share.name = program.share;
  share.compute.weight = 1;
  double room = 1;
  for (const int device : program.devices) {
    room = std::min(room, terms.room[static_cast<size_t>(device)]);
  }
  // Whoever asks for nothing is entitled to half a point, too.
  double request = 0.005;
  if (!terms.plain && random.Chance(0.7) && room > 0.05) {
    request = std::floor(1000 * room * (0.2 + 0.8 * random.Unit())) / 1000;
    share.compute.request.ppm = static_cast<uint32_t>(std::lround(request * 1e6));
  }
  for (const int device : program.devices) terms.room[static_cast<size_t>(device)] -= request;
  if (terms.plain) return share;
  if (random.Chance(0.25)) {
    const auto least = std::max<int64_t>(share.compute.request.ppm, 50'000);
    share.compute.limit.ppm = static_cast<uint32_t>(random.Between(least, 999'999));
  }
  if (random.Chance(0.5)) share.compute.weight = static_cast<uint32_t>(random.Between(1, 10));
  if (random.Chance(0.1)) share.compute.priority = static_cast<int32_t>(random.Between(-1, 1));
  return share;
}

// Another program of the last share, on another of the machine's devices only where its request
// still has room: an agent refuses what cannot be kept.
void JoinLastShare(const Scenario& scenario, ProgramSpec& program, Terms& terms) {
  const ShareSpec& share = scenario.shares.back();
  program.share = share.name;
  double& room = terms.room[static_cast<size_t>(program.devices[0])];
  const double request = std::max(0.005, share.compute.request.value());
  int its_device = -1;
  for (const ProgramSpec& other : scenario.programs) {
    if (other.share != share.name) continue;
    if (other.devices[0] == program.devices[0] || other.devices.size() > 1) return;
    its_device = other.devices[0];
  }
  if (room >= request) {
    room -= request;
  } else {
    program.devices = {its_device};
  }
}

// A process for each device, with collectives perhaps: it runs on all of them at once.
void MakeGang(Random& random, ProgramSpec& program, int devices, int64_t duration_ns) {
  program.devices.clear();
  for (int device = 0; device < devices; ++device) program.devices.push_back(device);
  program.stop_ns = duration_ns;
  program.life_ns = 0;
  program.threads = 1;
  program.idle_streams = program.blocked = 0;
  program.kernel.choice_ns.clear();
  program.kernel.parts.clear();
  program.kernel.high_ns = program.kernel.low_ns;
  if (random.Chance(0.7)) program.collective_every = static_cast<int>(random.Between(1, 4));
}

// Its first rank adds something up for all, or writes down what was learned.
void MakeUnlike(Random& random, ProgramSpec& program) {
  if (program.collective_every == 0) program.collective_every = 1;
  const bool waits = program.per_sync > 0 && program.every_ns == 0;
  if (random.Chance(0.5)) program.first_more = static_cast<int>(random.Between(1, 4));
  if (random.Chance(0.5) && waits) program.first_gap_ns = random.Between(1, 30) * kMs;
}

// As models are trained and served: of many functions, each of its own length, launched by a host
// that takes as long as they do; in requests of several steps, in bursts, with data that grows.
void MakeModel(Random& random, ProgramSpec& program) {
  if (program.kernel.choice_ns.empty() && random.Chance(0.7)) {
    program.functions = static_cast<int>(LogBetween(random, 2, 5'000));
    if (random.Chance(0.3)) program.functions = 1'000'000'000;  // never the same again
    program.kernel.low_ns = std::max<int64_t>(5 * kUs, program.kernel.low_ns / 4);
    program.kernel.high_ns = std::min<int64_t>(5 * kMs, 4 * program.kernel.high_ns);
  } else if (program.kernel.choice_ns.empty() && random.Chance(0.5)) {
    program.kernel.low_ns = std::max<int64_t>(5 * kUs, program.kernel.low_ns / 4);
    program.kernel.grows_over = static_cast<int>(LogBetween(random, 10, 10'000));
  }
  if (random.Chance(0.5)) program.host_ns = LogBetween(random, 2 * kUs, 100 * kUs);
  if (program.per_sync == 0) return;
  if (program.every_ns > 0 && random.Chance(0.5)) {
    program.steps = static_cast<int>(random.Between(2, 20));
    program.every_ns *= program.steps;
    program.gap_ns = LogBetween(random, 20 * kUs, 2 * kMs);
  }
  if (random.Chance(0.3)) {
    program.burst_ns = random.Between(50, 1'000) * kMs;
    program.quiet_ns = random.Between(50, 1'000) * kMs;
  }
  if (random.Chance(0.3)) {
    program.copy_in_bytes = static_cast<uint64_t>(LogBetween(random, 64 << 10, 256 << 20));
    program.copy_ahead = random.Chance(0.3);
    if (random.Chance(0.3)) program.copy_out_bytes = program.copy_in_bytes / 4;
  }
}

}  // namespace

int64_t LongestItemNs(const ProgramSpec& program) {
  int64_t longest_ns = program.kernel.choice_ns.empty() ? program.kernel.high_ns : 0;
  for (const int64_t choice_ns : program.kernel.choice_ns) {
    longest_ns = std::max(longest_ns, choice_ns);
  }
  return longest_ns * std::max(1, program.graph);
}

bool IsCalm(const WorldOptions& options) {
  const Mishaps& mishaps = options.mishaps;
  return mishaps.kills_per_s == 0 && mishaps.program_stops_per_s == 0 &&
         mishaps.agent_stops_per_s == 0 && mishaps.agent_kills_per_s == 0 &&
         mishaps.lies_per_s == 0 && options.delays.preempted < 0.01 &&
         options.delays.wake_late < 0.01;
}

Scenario RandomScenario(uint64_t seed, WorldKind kind) {
  Random random(seed ^ 0x5ce4a10);
  const bool calm = IsCalm(RandomOptions(seed));
  Scenario scenario;
  scenario.name = "random " + std::to_string(seed);
  scenario.duration_ns = (calm ? random.Between(5'000, 7'000) : random.Between(200, 1'500)) * kMs;
  const bool crowd = kind == WorldKind::kCrowd, ranks = kind == WorldKind::kRanks;
  const bool has_long = random.Chance(0.03) && !crowd;
  if (has_long) scenario.duration_ns = calm ? 61 * kS : 10 * kS;
  const int devices = ranks || random.Chance(0.2) ? static_cast<int>(random.Between(2, 3)) : 1;
  scenario.machine.devices.resize(static_cast<size_t>(devices), scenario.machine.devices[0]);
  for (simgpu::DeviceConfig& device : scenario.machine.devices) {
    device.time_slice_ns = random.Between(200, 4'000) * kUs;
    device.switch_cost_ns = random.Between(0, 150) * kUs;
    if (crowd) device.memory_bytes = 80 * kGiB;  // a context for each program
  }
  if (random.Chance(0.1)) scenario.elastic_ceiling.ppm = 900'000;
  const double room = crowd ? 0.98 : 1;  // the rest is of all those without a request
  Terms terms = {random.Chance(0.2), std::vector<double>(static_cast<size_t>(devices), room)};
  if (terms.plain) scenario.elastic_ceiling = Fraction::One();
  const auto count = static_cast<size_t>(crowd ? random.Between(8, 40) : random.Between(1, 6));
  const int64_t priorities = crowd && !terms.plain ? random.Between(1, 8) : 1;
  for (size_t i = 0; i < count; ++i) {
    ProgramSpec program = RandomProgram(random, i, scenario.duration_ns);
    if (has_long && i == 0) MakeLong(random, program);
    program.devices = {static_cast<int>(random.Between(0, devices - 1))};
    const bool gang = !crowd && devices > 1 && ((ranks && i == 0) || random.Chance(0.25));
    if (crowd) KeepShort(program);
    if (gang) MakeGang(random, program, devices, scenario.duration_ns);
    if (gang && ranks) MakeUnlike(random, program);
    if (kind == WorldKind::kModels && !gang && !(has_long && i == 0)) MakeModel(random, program);
    if (i > 0 && !gang && random.Chance(0.15)) {
      JoinLastShare(scenario, program, terms);
      scenario.programs.push_back(program);
      continue;
    }
    ShareSpec share = RandomShare(random, program, terms);
    if (gang && random.Chance(0.5)) share.gang = ShareSpec::Gang::kAlways;
    if (crowd) share.compute.priority = static_cast<int32_t>(random.Between(1, priorities));
    scenario.shares.push_back(share);
    scenario.programs.push_back(program);
  }
  FindDevices(&scenario);
  return scenario;
}

std::string Describe(const Scenario& scenario) {
  std::ostringstream text;
  const auto& device = scenario.machine.devices[0];
  text << "  " << scenario.duration_ns / kMs << " ms, " << scenario.machine.devices.size()
       << " devices, slices " << device.time_slice_ns / kUs << " us, switches "
       << device.switch_cost_ns / kUs << " us, ceiling " << scenario.elastic_ceiling.value()
       << "\n";
  for (const ProgramSpec& p : scenario.programs) {
    const auto is_its = [&](const ShareSpec& share) { return share.name == p.share; };
    const auto share = std::find_if(scenario.shares.begin(), scenario.shares.end(), is_its);
    text << "  " << p.name << " of " << p.share << ": request " << share->compute.request.value()
         << " limit " << share->compute.limit.value() << " weight " << share->compute.weight
         << " priority " << share->compute.priority << ", from " << p.start_ns / kMs << " to "
         << p.stop_ns / kMs << " ms on " << p.devices.size() << " from " << p.devices[0]
         << "; kernel " << p.kernel.low_ns / kUs << ".." << p.kernel.high_ns / kUs << " us";
    for (const int64_t ns : p.kernel.choice_ns) text << " or " << ns / kUs;
    if (!p.kernel.parts.empty()) text << " (first " << p.kernel.parts[0] << ")";
    text << ", sm " << p.sm_ppm << ", graph " << p.graph << ", per_sync " << p.per_sync << ", gap "
         << p.gap_ns / kUs << " us, every " << p.every_ns / kUs << ", streams " << p.streams
         << ", threads " << p.threads;
    if (p.stream_per_request) text << ", stream per request";
    if (p.idle_streams > 0) text << ", idle streams " << p.idle_streams;
    if (p.blocked > 0) text << ", blocked " << p.blocked;
    if (p.behind_wait) text << ", behind a wait";
    if (p.host_function_ns > 0) text << ", host function " << p.host_function_ns / kUs << " us";
    if (p.life_ns > 0) text << ", life " << p.life_ns / kMs << " ms, rest " << p.rest_ns / kMs;
    if (p.collective_every > 0) text << ", collective every " << p.collective_every;
    if (p.first_more > 0) text << ", the first " << p.first_more << " more";
    if (p.functions > 1) text << ", " << p.functions << " functions";
    if (p.kernel.grows_over > 0) text << ", growing over " << p.kernel.grows_over;
    if (p.host_ns > 0) text << ", host " << p.host_ns / kUs << " us";
    if (p.steps > 1) text << ", " << p.steps << " steps";
    if (p.copy_in_bytes > 0) {
      text << ", copies " << p.copy_in_bytes / kKiB << " KiB in" << (p.copy_ahead ? " ahead" : "")
           << " and " << p.copy_out_bytes / kKiB << " KiB out";
    }
    if (p.burst_ns > 0) {
      text << ", bursts of " << p.burst_ns / kMs << " ms every " << p.quiet_ns / kMs << " more";
    }
    if (p.first_gap_ns > 0) text << ", its gap " << p.first_gap_ns / kUs << " us more";
    text << "\n";
  }
  return text.str();
}

WorldOptions RandomOptions(uint64_t seed) {
  Random random(seed ^ 0x0b71045);
  WorldOptions options;
  options.seed = seed;
  options.keep_shares = true;
  if (random.Chance(0.4)) return options;
  if (random.Chance(0.5)) options.delays.preempted = 0.02;
  if (random.Chance(0.3)) options.delays.wake_late = 0.1;
  options.agent_delays = options.delays;
  if (random.Chance(0.4)) options.mishaps.kills_per_s = 5;
  if (random.Chance(0.4)) options.mishaps.program_stops_per_s = 3;
  if (random.Chance(0.2)) options.mishaps.agent_stops_per_s = 2;
  if (random.Chance(0.2)) options.mishaps.agent_kills_per_s = 2;
  if (random.Chance(0.3)) options.mishaps.lies_per_s = random.Chance(0.5) ? 20 : 1'000;
  options.mishaps.long_stops = random.Chance(0.3);
  options.keep_shares = IsCalm(options);  // else its charges would be gone with it
  return options;
}

}  // namespace prorata::simulation
