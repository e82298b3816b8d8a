#include "sim/node/scenario.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "sim/node/toml_reader.h"

namespace prorata::simulation {
namespace {

constexpr double kNsPerUs = 1e3;
constexpr double kNsPerMs = 1e6;
constexpr double kMaxMs = 3.6e6;  // an hour
constexpr double kMaxUs = 1e8;    // a kernel or a gap
constexpr int kMaxWeight = 10'000;
constexpr int kMaxPriority = 1000;

int64_t Scaled(double value, double scale) {
  return static_cast<int64_t>(std::llround(value * scale));
}

// False: it is not there, or no size.
bool ReadSize(TomlReader& reader, const char* key, uint64_t* out) {
  std::string text;
  if (!reader.Text(key, &text)) return false;
  const auto bytes = ParseBytes(text);
  if (!bytes) reader.RecordError(key, "a size such as \"1GiB\"");
  if (bytes) *out = *bytes;
  return bytes.has_value();
}

void ReadMs(TomlReader& reader, const char* key, int64_t* out) {
  double ms = 0;
  if (reader.Number(key, &ms, 0, kMaxMs)) *out = Scaled(ms, kNsPerMs);
}

void ReadKernel(TomlReader& reader, KernelTime* kernel) {
  constexpr const char* kKey = "kernel_us";
  const toml::node* node = reader.Take(kKey);
  if (node == nullptr) return;
  const auto read = [&](const toml::node& part, int64_t* out) {
    double us = 0;
    if (reader.NumberIn(kKey, part, &us, 1, kMaxUs)) *out = Scaled(us, kNsPerUs);
  };
  if (const toml::array* range = node->as_array(); range != nullptr && range->size() == 2) {
    read(*range->get(0), &kernel->low_ns);
    read(*range->get(1), &kernel->high_ns);
    if (kernel->low_ns > kernel->high_ns) reader.RecordError(kKey, "[least, most]");
    return;
  }
  if (const toml::table* table = node->as_table()) {
    const toml::array* choice = table->get_as<toml::array>("choice");
    const toml::array* parts = table->get_as<toml::array>("parts");
    const size_t keys = parts == nullptr ? 1 : 2;
    if (choice == nullptr || choice->empty() || choice->size() > 100 || table->size() != keys ||
        (parts != nullptr && parts->size() != choice->size())) {
      return reader.RecordError(kKey, "{ choice = [a, b, ...] }, and as many parts if any");
    }
    for (const toml::node& part : *choice) read(part, &kernel->choice_ns.emplace_back());
    if (parts == nullptr) return;
    for (const toml::node& part : *parts) {
      reader.NumberIn(kKey, part, &kernel->parts.emplace_back(), 0, 1);
    }
    return;
  }
  if (!node->is_number()) {
    return reader.RecordError(kKey, "a number, [least, most] or { choice = [...] }");
  }
  read(*node, &kernel->low_ns);
  kernel->high_ns = kernel->low_ns;
}

void ReadDevices(TomlReader& reader, std::vector<int>* devices) {
  constexpr const char* kKey = "devices";
  const toml::node* node = reader.Take(kKey);
  if (node == nullptr) return;
  const toml::array* array = node->as_array();
  if (array == nullptr || array->empty()) return reader.RecordError(kKey, "[0, 1, ...]");
  devices->clear();
  for (const toml::node& part : *array) {
    const auto device = part.value_exact<int64_t>();
    if (!device || *device < 0 || *device >= simgpu::kMaxDevices ||
        std::find(devices->begin(), devices->end(), *device) != devices->end()) {
      return reader.RecordError(kKey, "different numbers of devices, from 0 on");
    }
    devices->push_back(static_cast<int>(*device));
  }
}

// The terms as one [[programs]] table gives them; what it leaves out is empty.
struct Terms {
  std::optional<Fraction> compute;
  std::optional<Fraction> limit;
  std::optional<int> weight;
  std::optional<int> priority;
  std::optional<int64_t> yield_within_ns;
  std::optional<uint64_t> memory_bytes;
  std::optional<bool> gang;
};

template <typename T>
bool Merge(std::optional<T>& into, const std::optional<T>& from) {
  if (!from) return true;
  if (into && *into != *from) return false;
  into = from;
  return true;
}

void ReadFraction(TomlReader& reader, const char* key, std::optional<Fraction>* out) {
  std::string text;
  if (!reader.Text(key, &text)) return;
  const auto fraction = ParseFraction(text);
  if (!fraction) return reader.RecordError(key, "a fraction such as \"0.5\"");
  *out = *fraction;
}

Terms ReadTerms(TomlReader& reader) {
  Terms terms;
  ReadFraction(reader, "compute", &terms.compute);
  ReadFraction(reader, "compute_limit", &terms.limit);
  if (terms.limit == Fraction::Zero()) reader.RecordError("compute_limit", "more than 0");
  int weight = 0;
  if (reader.Integer("weight", &weight, 1, kMaxWeight)) terms.weight = weight;
  int priority = 0;
  if (reader.Integer("priority", &priority, -kMaxPriority, kMaxPriority)) {
    terms.priority = priority;
  }
  int64_t yield_within_ns = -1;
  ReadMs(reader, "yield_within_ms", &yield_within_ns);
  if (yield_within_ns >= 0) terms.yield_within_ns = yield_within_ns;
  bool gang = false;
  if (reader.Bool("gang", &gang)) terms.gang = gang;
  uint64_t memory_bytes = 0;
  if (ReadSize(reader, "memory", &memory_bytes)) terms.memory_bytes = memory_bytes;
  return terms;
}

struct Update {
  int64_t at_ns = -1;
  std::string share;
  Terms terms;
};

Update ReadUpdate(TomlReader& reader, int64_t duration_ns) {
  Update update;
  ReadMs(reader, "at_ms", &update.at_ns);
  if (update.at_ns < 0 || update.at_ns > duration_ns) {
    reader.RecordError("at_ms", "a time from 0 to duration_ms");
  }
  if (!reader.Text("share", &update.share)) reader.RecordError("share", "the share's name");
  if (reader.Has("memory")) reader.RecordError("memory", "nothing: the simulation has no memory");
  update.terms = ReadTerms(reader);
  return update;
}

// What makes its streams, threads and processes other than one of each for the whole time.
void ReadShape(TomlReader& reader, ProgramSpec* program) {
  reader.Integer("streams", &program->streams, 1, 64);
  reader.Integer("threads", &program->threads, 1, 64);
  reader.Bool("stream_per_request", &program->stream_per_request);
  reader.Integer("idle_streams", &program->idle_streams, 0, 4096);
  reader.Integer("blocked", &program->blocked, 0, 2048);
  reader.Bool("behind_wait", &program->behind_wait);
  double host_function_us = 0;
  if (reader.Number("host_function_us", &host_function_us, 0, kMaxUs)) {
    program->host_function_ns = Scaled(host_function_us, kNsPerUs);
  }
  ReadSize(reader, "copy_in", &program->copy_in_bytes);
  ReadSize(reader, "copy_out", &program->copy_out_bytes);
  reader.Integer("copy_every", &program->copy_every, 0, 1'000'000);
  reader.Bool("copy_ahead", &program->copy_ahead);
  if (program->copy_ahead && (program->copy_in_bytes == 0 || program->copy_every > 0)) {
    reader.RecordError("copy_ahead", "copy_in, and no copy_every: one copy for the next request");
  }
  ReadMs(reader, "life_ms", &program->life_ns);
  ReadMs(reader, "rest_ms", &program->rest_ns);
  const bool by_request = program->stream_per_request || program->copy_ahead ||
                          program->behind_wait || program->host_function_ns > 0;
  if (by_request && program->per_sync == 0) {
    reader.RecordError("per_sync", "above 0: a request ends with a synchronisation");
  }
  if (by_request && program->per_sync > 2000 && program->behind_wait) {
    reader.RecordError("per_sync", "2000 at most: they lie in the stream's queue, behind the wait");
  }
  if (program->life_ns > 0 && program->devices.size() > 1) {
    reader.RecordError("life_ms", "one device: who ends first is missed");
  }
}

ProgramSpec ReadProgram(TomlReader& reader, int64_t duration_ns) {
  ProgramSpec program;
  if (!reader.Text("name", &program.name)) reader.RecordError("name", "the program's name");
  program.share = program.name;
  reader.Text("share", &program.share);
  reader.Integer("count", &program.count, 1, 64);
  program.stop_ns = duration_ns;
  ReadMs(reader, "start_ms", &program.start_ns);
  ReadMs(reader, "stop_ms", &program.stop_ns);
  if (program.stop_ns < program.start_ns || program.stop_ns > duration_ns) {
    reader.RecordError("stop_ms", "a time from start_ms to duration_ms");
  }
  ReadKernel(reader, &program.kernel);
  reader.Integer("functions", &program.functions, 1, 1'000'000'000);
  reader.Integer("grows_over", &program.kernel.grows_over, 0, 1'000'000);
  if (program.kernel.grows_over > 0 &&
      (program.functions > 1 || !program.kernel.choice_ns.empty())) {
    reader.RecordError("grows_over", "kernel_us = [least, most], and one function");
  }
  double sm_fraction = 1;
  if (reader.Number("sm_fraction", &sm_fraction, 1e-6, 1)) {
    program.sm_ppm = static_cast<uint32_t>(std::llround(sm_fraction * 1e6));
  }
  reader.Integer("per_sync", &program.per_sync, 0, 1'000'000);
  double host_us = 0;
  if (reader.Number("host_us", &host_us, 0, kMaxUs)) program.host_ns = Scaled(host_us, kNsPerUs);
  double gap_us = 0;
  if (reader.Number("gap_us", &gap_us, 0, kMaxUs)) program.gap_ns = Scaled(gap_us, kNsPerUs);
  double first_gap_us = 0;
  if (reader.Number("first_gap_us", &first_gap_us, 0, kMaxUs)) {
    program.first_gap_ns = Scaled(first_gap_us, kNsPerUs);
  }
  if (program.gap_ns + program.first_gap_ns > 0 && program.per_sync == 0) {
    reader.RecordError(program.gap_ns > 0 ? "gap_us" : "first_gap_us",
                       "per_sync above 0: the gap comes after a synchronisation");
  }
  reader.Integer("steps", &program.steps, 1, 1'000'000);
  ReadMs(reader, "burst_ms", &program.burst_ns);
  ReadMs(reader, "quiet_ms", &program.quiet_ns);
  if (program.burst_ns > 0 && program.per_sync == 0) {
    reader.RecordError("burst_ms", "per_sync above 0: it rests after a synchronisation");
  }
  double every_us = 0;
  if (reader.Number("every_us", &every_us, 0, kMaxUs)) {
    program.every_ns = Scaled(every_us, kNsPerUs);
  }
  reader.Bool("poisson", &program.poisson);
  if (program.every_ns > 0 && (program.per_sync == 0 ||
                               (program.gap_ns + program.first_gap_ns > 0 && program.steps == 1))) {
    reader.RecordError(
        "every_us", "per_sync above 0, and no gap but between steps: requests come by themselves");
  }
  reader.Integer("graph", &program.graph, 0, 256);
  ReadDevices(reader, &program.devices);
  ReadShape(reader, &program);
  reader.Integer("collective_every", &program.collective_every, 0, 1'000'000);
  reader.Integer("first_more", &program.first_more, 0, 1'000'000);
  if (program.first_more > 0 && program.collective_every == 0) {
    reader.RecordError("first_more", "collective_every above 0: so many more between two of those");
  }
  if (program.collective_every > 0 &&
      (program.devices.size() < 2 || program.stop_ns < duration_ns)) {
    reader.RecordError("collective_every",
                       "several devices, and no stop_ms: who ends first is missed");
  }
  return program;
}

Expectation ReadExpectation(TomlReader& reader) {
  Expectation expect;
  bool device_use = false;
  const bool program = reader.Text("program", &expect.name);
  const bool share = reader.Text("share", &expect.name);
  const bool device = reader.Bool("device_use", &device_use) && device_use;
  if (program + share + device != 1) {
    reader.RecordError("program", "one of program, share and device_use = true");
  }
  if (share) expect.of = Expectation::Of::kShare;
  if (device) expect.of = Expectation::Of::kDeviceUse;
  if (!reader.Number("gpu_time", &expect.gpu_time, 0, 1))
    reader.RecordError("gpu_time", "a number");
  reader.Number("tolerance_points", &expect.tolerance_points, 0, 100);
  return expect;
}

// What concerns several tables.
std::string Inconsistency(const Scenario& scenario) {
  std::map<std::string, int> programs;
  int count = 0;
  for (const ProgramSpec& program : scenario.programs) {
    if (++programs[program.name] > 1) return "programs: two are named \"" + program.name + "\"";
    count += program.count * static_cast<int>(program.devices.size());
    for (const int device : program.devices) {
      if (device >= static_cast<int>(scenario.machine.devices.size())) {
        return "programs: \"" + program.name + "\" is on device " + std::to_string(device) +
               ", which the machine has not";
      }
    }
  }
  if (count < 1 || count > 64) return "programs: expected 1 to 64 in all";
  if (scenario.warmup_ns >= scenario.duration_ns) {
    return "warmup_ms: expected less than duration_ms";
  }
  for (const ShareSpec& share : scenario.shares) {
    if (share.compute.limit < share.compute.request) {
      return "share \"" + share.name + "\": compute_limit is below compute";
    }
  }
  for (const Expectation& expect : scenario.expect) {
    const auto is = [&](const auto& spec) { return spec.name == expect.name; };
    const bool known = expect.of == Expectation::Of::kDeviceUse ||
                       (expect.of == Expectation::Of::kProgram
                            ? std::any_of(scenario.programs.begin(), scenario.programs.end(), is)
                            : std::any_of(scenario.shares.begin(), scenario.shares.end(), is));
    if (!known) return "expect: there is no \"" + expect.name + "\"";
  }
  return "";
}

policy::ComputeTerms Changed(policy::ComputeTerms compute, const Terms& terms) {
  compute.request = terms.compute.value_or(compute.request);
  compute.limit = terms.limit.value_or(compute.limit);
  if (terms.weight) compute.weight = static_cast<uint32_t>(*terms.weight);
  compute.priority = terms.priority.value_or(compute.priority);
  compute.yield_within_ns = terms.yield_within_ns.value_or(compute.yield_within_ns);
  return compute;
}

std::vector<ShareSpec> SharesOf(const std::vector<std::pair<std::string, Terms>>& given,
                                std::string* error) {
  std::vector<std::pair<std::string, Terms>> merged;
  for (const auto& [name, terms] : given) {
    const auto same = [&](const auto& entry) { return entry.first == name; };
    auto found = std::find_if(merged.begin(), merged.end(), same);
    if (found == merged.end()) found = merged.insert(merged.end(), {name, {}});
    Terms& into = found->second;
    if (!Merge(into.compute, terms.compute) || !Merge(into.limit, terms.limit) ||
        !Merge(into.weight, terms.weight) || !Merge(into.priority, terms.priority) ||
        !Merge(into.yield_within_ns, terms.yield_within_ns) ||
        !Merge(into.memory_bytes, terms.memory_bytes) || !Merge(into.gang, terms.gang)) {
      *error = "share \"" + name + "\": its programs give it different terms";
    }
  }
  std::vector<ShareSpec> shares;
  for (const auto& [name, terms] : merged) {
    ShareSpec share;
    share.name = name;
    share.compute.weight = 1;
    share.compute = Changed(share.compute, terms);
    share.memory_bytes = terms.memory_bytes.value_or(kGiB);
    if (terms.gang.value_or(false)) share.gang = ShareSpec::Gang::kAlways;
    shares.push_back(share);
  }
  return shares;
}

// Each leaves the share with terms that the next one starts from.
std::vector<UpdateSpec> UpdatesOf(std::vector<Update> given, const std::vector<ShareSpec>& shares,
                                  std::string* error) {
  std::stable_sort(given.begin(), given.end(),
                   [](const Update& a, const Update& b) { return a.at_ns < b.at_ns; });
  std::map<std::string, policy::ComputeTerms> now;
  for (const ShareSpec& share : shares) now[share.name] = share.compute;
  std::vector<UpdateSpec> updates;
  for (const Update& update : given) {
    const auto share = now.find(update.share);
    if (share == now.end()) {
      *error = "updates: there is no share \"" + update.share + "\"";
      return {};
    }
    share->second = Changed(share->second, update.terms);
    if (share->second.limit < share->second.request) {
      *error = "updates: share \"" + update.share + "\": compute_limit is below compute";
    }
    updates.push_back({update.at_ns, update.share, share->second});
  }
  return updates;
}

void ReadMachine(TomlReader& reader, const std::string& file, simgpu::MachineConfig* machine) {
  const toml::node* node = reader.Take("machine");
  if (node == nullptr) return;
  if (!node->is_table()) return reader.RecordError("machine", "a table");
  toml::table table = *node->as_table();
  table.is_inline(false);  // a document is not
  std::ostringstream text;
  text << table;
  const auto parsed = simgpu::ParseMachineConfig(text.str(), file + "machine");
  if (!parsed) return reader.Adopt(parsed.error().message);
  *machine = *parsed;
}

}  // namespace

void FindDevices(Scenario* scenario) {
  for (ShareSpec& share : scenario->shares) {
    std::set<int> devices;
    for (const ProgramSpec& program : scenario->programs) {
      if (program.share == share.name)
        devices.insert(program.devices.begin(), program.devices.end());
    }
    if (!devices.empty()) share.devices.assign(devices.begin(), devices.end());
  }
}

Result<Scenario> ParseScenario(std::string_view text, std::string_view origin) {
  const std::string file = std::string(origin) + ": ";
  const toml::parse_result parsed = toml::parse(text, origin);
  if (!parsed) {
    std::ostringstream where;
    where << file << "line " << parsed.error().source().begin.line << ": "
          << parsed.error().description();
    return Fail("scenario", where.str());
  }
  Scenario scenario;
  TomlReader reader(parsed.table(), file);
  if (!reader.Text("name", &scenario.name)) reader.RecordError("name", "a line for people");
  ReadMs(reader, "duration_ms", &scenario.duration_ns);
  ReadMs(reader, "warmup_ms", &scenario.warmup_ns);
  reader.Bool("prorata", &scenario.prorata);
  std::optional<Fraction> ceiling;
  ReadFraction(reader, "elastic_ceiling", &ceiling);
  if (ceiling == Fraction::Zero()) reader.RecordError("elastic_ceiling", "more than 0");
  scenario.elastic_ceiling = ceiling.value_or(Fraction::One());
  ReadMachine(reader, file, &scenario.machine);
  std::vector<std::pair<std::string, Terms>> terms;
  reader.Tables("programs", [&](const toml::table& table, const std::string& where) {
    TomlReader part(table, where);
    scenario.programs.push_back(ReadProgram(part, scenario.duration_ns));
    terms.emplace_back(scenario.programs.back().share, ReadTerms(part));
    reader.Adopt(part.Finish());
  });
  std::vector<Update> updates;
  reader.Tables("updates", [&](const toml::table& table, const std::string& where) {
    TomlReader part(table, where);
    updates.push_back(ReadUpdate(part, scenario.duration_ns));
    reader.Adopt(part.Finish());
  });
  reader.Tables("expect", [&](const toml::table& table, const std::string& where) {
    TomlReader part(table, where);
    scenario.expect.push_back(ReadExpectation(part));
    reader.Adopt(part.Finish());
  });
  std::string error = reader.Finish();
  if (!error.empty()) return Fail("scenario", error);
  scenario.shares = SharesOf(terms, &error);
  FindDevices(&scenario);
  scenario.updates = UpdatesOf(std::move(updates), scenario.shares, &error);
  if (error.empty()) error = Inconsistency(scenario);
  if (!error.empty()) return Fail("scenario", file + error);
  return scenario;
}

Result<Scenario> ReadScenario(const std::string& path) {
  std::ifstream in(path);
  if (!in) return FailErrno("scenario", "cannot read the scenario " + path, errno);
  std::ostringstream text;
  text << in.rdbuf();
  return ParseScenario(text.str(), path);
}

}  // namespace prorata::simulation
