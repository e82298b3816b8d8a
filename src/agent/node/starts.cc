#include "agent/node/starts.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "agent/share/choose_devices.h"
#include "agent/share/memory_fit.h"
#include "agent/share/validate_share.h"
#include "base/bytes.h"
#include "base/duration.h"

namespace prorata::agent {
namespace {

using api::DeviceStatus;
using api::ShareSpec;
using policy::StartAmounts;

// The resources of policy::StartLine, of a device: agent/share/memory_fit.h says what of memory
// must be left. What a share may borrow counts as borrowed (kFreeNow). kRoom is the table of
// shares, too.
enum Kind { kSetAside, kFreeNow, kLimits, kRequest, kRoom };
constexpr StartAmounts kOneRow = {0, 0, 0, 0, 1};

// Those in line under the agent before come back within this time, or lose their place. Their
// clients try twice a second and more often (cli/start_wait.cc).
constexpr int64_t kReturnNs = 2 * kNsPerS;

uint64_t NowMs() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1000 + static_cast<uint64_t>(now.tv_nsec) / 1'000'000;
}

uint64_t Times(double ratio, uint64_t bytes) {
  return ratio > 1 ? static_cast<uint64_t>(ratio * static_cast<double>(bytes)) : bytes;
}

const api::TermsOnGpu* TermsOn(const ShareSpec& spec, const DeviceStatus& device) {
  for (const api::TermsOnGpu& terms : spec.on) {
    if (terms.gpu == device.uuid || terms.gpu == std::to_string(device.index)) return &terms;
  }
  return nullptr;
}

// What one share takes of a device, by what it asks for.
policy::StartClaim ClaimOn(const ShareSpec& spec, const DeviceStatus& device) {
  if (spec.exclusive) {
    const StartAmounts all = {device.total_bytes, device.total_bytes, device.total_bytes,
                              Fraction::kOne, api::kMaxShares};
    return {{0, 0, 0, 0, api::kMaxShares}, all};
  }
  const api::TermsOnGpu* own = TermsOn(spec, device);
  const api::TermsOnGpu none;
  const MemoryTerms memory = NewMemory(spec, own != nullptr ? *own : none, device);
  const auto request =
      own != nullptr && own->compute_request ? *own->compute_request : spec.compute_request;
  const uint64_t limit = memory.limit_bytes;
  policy::StartClaim claim;
  claim.needs = {limit, memory.request_bytes, memory.by_ratio ? limit : 0, request.ppm, 1};
  claim.takes = {memory.request_bytes, limit, limit, request.ppm, 1};
  return claim;
}

bool MayBeOn(const ShareSpec& spec, const DeviceStatus& device) {
  return spec.gpus.empty() ||
         std::any_of(spec.gpus.begin(), spec.gpus.end(), [&](const std::string& gpu) {
           return gpu == device.uuid || gpu == std::to_string(device.index);
         });
}

// Its claim on each device where it may be made, and on the table of shares.
policy::StartClaims ClaimsOf(const ShareSpec& spec, const std::vector<DeviceStatus>& devices) {
  policy::StartClaims claims;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (MayBeOn(spec, devices[i])) claims[i] = ClaimOn(spec, devices[i]);
  }
  claims[devices.size()] = {kOneRow, kOneRow};
  return claims;
}

StartAmounts HeldOf(const ShareConfig& config, const DeviceOfShare& on) {
  return {on.memory_request_bytes, on.memory_bytes, on.memory_bytes, on.compute.request.ppm,
          config.exclusive ? api::kMaxShares : 1};
}

// What it asks of each GPU; absent: GPUs differ, or it is a share of whole ones.
std::optional<uint64_t> BytesAsked(const ShareSpec& spec,
                                   const std::vector<DeviceStatus>& devices) {
  std::optional<uint64_t> bytes;
  if (!spec.memory || spec.exclusive) return bytes;
  for (const DeviceStatus& device : devices) {
    if (!MayBeOn(spec, device)) continue;
    const uint64_t here = spec.memory->Of(device.total_bytes);
    if (bytes && *bytes != here) return std::nullopt;
    bytes = here;
  }
  return bytes;
}

}  // namespace

std::string Starts::NameOf(const Start& start) {
  return start.spec.name ? "share '" + *start.spec.name + "'"
                         : "the share of process " + std::to_string(start.owner.process.pid);
}

uint64_t Starts::Create(const ShareSpec& spec, const Peer& owner, OnShare then,
                        const std::optional<api::StartWait>& wait, OnPlace on_place) {
  const uint64_t ticket = next_ticket_++;
  Start& start = starts_[ticket];
  start.spec = spec;
  start.owner = owner;
  start.wait = wait;
  start.then = std::move(then);
  start.on_place = std::move(on_place);
  start.asked_ns = clock_.NowNs();
  const uint64_t now_ms = NowMs();
  start.since_ms = wait ? std::min(wait->since_ms.value_or(now_ms), now_ms) : now_ms;
  start.waited_before_ms = now_ms - start.since_ms;
  if (wait && wait->within_ms && *wait->within_ms < uint64_t{1} << 42) {
    start.until_ns = start.asked_ns + static_cast<int64_t>(*wait->within_ms) * kNsPerMs;
  }
  // Never answered from here: the caller does not know the ticket yet.
  boost::asio::post(loop_, [this, ticket, name = spec.name] {
    host_.AwaitName(name, [this, ticket] { Enter(ticket); });
  });
  return ticket;
}

std::vector<policy::StartPlace> Starts::Places(const std::vector<DeviceStatus>& devices) const {
  std::vector<policy::StartPlace> places(devices.size() + 1);
  for (size_t i = 0; i < devices.size(); ++i) {
    const DeviceStatus& device = devices[i];
    const double ratio = device.overcommit;
    const uint64_t foreign = device.foreign_bytes;
    places[i].capacity = {device.total_bytes, device.total_bytes, Times(ratio, device.total_bytes),
                          Fraction::kOne, api::kMaxShares};
    // All that is no share's counts as one that may end.
    places[i].held.push_back({foreign, foreign, Times(ratio, foreign), 0, 0});
  }
  for (const Share* share : shares_.All()) {
    for (const DeviceOfShare& on : share->config().devices) {
      places[on.device].held.push_back(HeldOf(share->config(), on));
    }
    places.back().held.push_back(kOneRow);
  }
  places.back().capacity[kRoom] = api::kMaxShares;
  return places;
}

// As ValidateShare, of this machine without any share and program; "memory_missing".
Status Starts::CouldEverFit(const ShareSpec& spec) {
  const std::vector<DeviceStatus> devices = host_.DescribeDevices();
  std::vector<DeviceStatus> empty;
  for (const DeviceStatus& device : devices) empty.push_back(Emptied(device));
  auto fits = ValidateShare(spec, empty, {});
  if (!fits && !MayPass(fits.error())) return std::unexpected(fits.error());
  if (!fits) {
    return Fail(fits.error().code,
                "the share can never fit, so it does not wait: without any "
                "other share and program here, " +
                    fits.error().message);
  }
  for (const auto& on : fits->devices) {
    const api::TermsOnGpu* own = TermsOn(spec, devices[on.device]);
    if (spec.exclusive || spec.memory || (own != nullptr && own->memory)) continue;
    return Fail(
        "memory_missing",
        "a share that waits must say for how much memory; give it --memory, or leave --wait "
        "out to have what is free now");
  }
  return {};
}

Status Starts::MayEnter(const Start& start) {
  for (const auto& [ticket, other] : starts_) {
    if (&other == &start || other.stage != Stage::kInLine) continue;
    if (start.spec.name && other.spec.name == start.spec.name) {
      return Fail("name_in_use", "a share named '" + *start.spec.name +
                                     "' waits in line to be made; choose another name");
    }
  }
  if (!start.wait) return {};
  if (line_.size() >= api::kMaxWaiting) {
    return Fail("line_full",
                std::to_string(line_.size()) +
                    " shares wait in line already, the most that may; try again later");
  }
  return CouldEverFit(start.spec);
}

void Starts::Enter(uint64_t ticket) {
  const auto found = starts_.find(ticket);
  if (found == starts_.end()) return;  // given up
  Start& start = found->second;
  if (const auto there = host_.FindMade(start.spec, start.owner)) {
    const bool mine = *there && (start.spec.token || !(**there)->config().life.OutlivesPrograms());
    return mine ? Keep(ticket, ***there) : Finish(ticket, *there);
  }
  Status ok = MayEnter(start);
  if (ok) ok = host_.MayName(start.spec);
  if (!ok) return Finish(ticket, std::unexpected(ok.error()));
  start.stage = Stage::kInLine;
  if (start.waited_before_ms > 0 && returning_ > 0) --returning_;
  const auto order = [&](uint64_t one) { return std::pair(starts_.at(one).since_ms, one); };
  const auto after =
      std::upper_bound(line_.begin(), line_.end(), ticket,
                       [&](uint64_t one, uint64_t other) { return order(one) < order(other); });
  line_.insert(after, ticket);
  ServeEntered();
}

void Starts::Leave(uint64_t ticket) {
  if (std::erase(line_, ticket) > 0 && starts_.at(ticket).place > 0) on_change();
}

void Starts::Keep(uint64_t ticket, Share& made) {
  starts_.at(ticket).stage = Stage::kMaking;
  Leave(ticket);
  host_.Keep(made, [this, ticket](Result<Share*> share) {
    if (share && starts_.at(ticket).given_up) {
      host_.Abandon(**share);
      share = Fail("given_up", "its client ended");
    }
    Finish(ticket, std::move(share));
  });
}

void Starts::Finish(uint64_t ticket, Result<Share*> share) {
  Leave(ticket);
  const Start start = std::move(starts_.extract(ticket).mapped());
  if (start.reported) {
    api::Event event{.kind = api::EventKind::kShareWaitEnded,
                     .share = start.spec.name.value_or("")};
    event.outcome = share                               ? "made"
                    : share.error().code == "given_up"  ? "given_up"
                    : share.error().code == "timed_out" ? "timed_out"
                                                        : "refused";
    if (share) event.share = (*share)->config().name;
    if (event.outcome == "refused") event.detail = share.error().message;
    AddEvent(std::move(event), start);
  }
  const bool failed = !share;
  if (start.then) start.then(std::move(share));
  if (failed) on_refused();
}

void Starts::AddEvent(api::Event event, const Start& start) {
  event.pid = start.owner.process.pid;
  event.asked_bytes = BytesAsked(start.spec, host_.DescribeDevices());
  event.waited_ms = static_cast<int64_t>(WaitedMs(start));
  events_.Add(std::move(event));
}

void Starts::GiveUp(uint64_t ticket) {
  const auto found = starts_.find(ticket);
  if (found == starts_.end() || !found->second.wait) return;
  found->second.then = nullptr;
  found->second.on_place = nullptr;
  if (found->second.stage == Stage::kMaking) {
    found->second.given_up = true;  // Keep takes it away
    return;
  }
  Finish(ticket, Fail("given_up", "its client ended"));
  ServeSoon();
}

void Starts::AwaitReturn(uint32_t count) {
  returning_ = std::min<uint32_t>(count, api::kMaxWaiting);
  returning_until_ns_ = clock_.NowNs() + kReturnNs;
}

bool Starts::AwaitsReturn() const { return returning_ > 0 && clock_.NowNs() < returning_until_ns_; }

uint32_t Starts::CountWaiting() const {
  const auto in_line = std::ranges::count_if(
      line_, [this](uint64_t ticket) { return starts_.at(ticket).place > 0; });
  return static_cast<uint32_t>(in_line) + (AwaitsReturn() ? returning_ : 0);
}

void Starts::ServeSoon() {
  if (line_.empty() || serving_) return;
  serving_ = true;
  boost::asio::post(loop_, [this] {
    host_.RefreshFigures([this] {
      serving_ = false;
      Serve();
    });
  });
}

void Starts::ServeEntered() {
  if (serving_) return;
  serving_ = true;
  boost::asio::post(loop_, [this] {
    serving_ = false;
    Serve();
  });
}

void Starts::Serve() {
  if (line_.empty() || AwaitsReturn()) return;
  host_.GatherMemory();
  std::vector<DeviceStatus> devices = host_.DescribeDevices();
  policy::StartLine walk(Places(devices));
  std::string first;  // of those that go on waiting
  uint32_t place = 0;
  std::vector<Refused> refused;
  std::vector<uint64_t> moved;
  for (const uint64_t ticket : std::vector(line_)) {
    Start& start = starts_.at(ticket);
    for (size_t i = 0; i < devices.size(); ++i) {
      const bool mine = MayBeOn(start.spec, devices[i]);
      const bool free = mine && walk.MayTake(i, ClaimOn(start.spec, devices[i]).takes) &&
                        walk.MayTake(devices.size(), kOneRow);
      devices[i].kept_for = free ? "" : first;
    }
    const auto made = host_.Make(start.spec, start.owner, devices);
    if (made) {
      const ShareConfig& config = (*made)->config();
      for (const DeviceOfShare& on : config.devices) walk.Make(on.device, HeldOf(config, on));
      walk.Make(devices.size(), kOneRow);
      devices = host_.DescribeDevices();
      Keep(ticket, **made);
      continue;
    }
    if (auto ok = MayWait(start, made.error(), &place); !ok) {
      refused.push_back({ticket, ok.error()});
      continue;
    }
    walk.PassBy(ClaimsOf(start.spec, devices));
    if (first.empty()) first = NameOf(start);
    if (std::exchange(start.place, place) != place) moved.push_back(ticket);
  }
  // Only now: whoever is gone leaves the line when something is sent to it.
  for (const auto& [ticket, error] : refused) {
    if (starts_.contains(ticket)) Finish(ticket, std::unexpected(error));
  }
  for (const uint64_t ticket : moved) NotifyPlace(ticket);
}

Status Starts::MayWait(Start& start, const Error& why, uint32_t* place) const {
  // What to do about it, which follows, is for those that do not wait.
  start.why = why.message.substr(0, why.message.find("; "));
  if (!start.wait || !MayPass(why)) {
    const bool others = why.code == "others_wait";
    return Fail(why.code, why.message + (others ? "; stand in line behind it with --wait, or ask "
                                                  "for less"
                                                : ""));
  }
  ++*place;
  if (clock_.NowNs() >= start.until_ns) return std::unexpected(TimedOut(start, *place));
  return {};
}

uint64_t Starts::WaitedMs(const Start& start) const {
  return start.waited_before_ms +
         static_cast<uint64_t>(clock_.NowNs() - start.asked_ns) / uint64_t{kNsPerMs};
}

Error Starts::TimedOut(const Start& start, uint32_t place) const {
  const int64_t waited_ns = static_cast<int64_t>(WaitedMs(start)) * kNsPerMs;
  return {"timed_out", NameOf(start) + " was not made: it waited " +
                           FormatDuration(waited_ns / kNsPerS * kNsPerS) + " and is " +
                           api::PlaceInWords(place) + " in line: " + start.why +
                           "; give it more time, or ask for less"};
}

void Starts::NotifyPlace(uint64_t ticket) {
  const auto found = starts_.find(ticket);
  if (found == starts_.end()) return;
  Start& start = found->second;
  if (!std::exchange(start.reported, true)) {
    api::Event event{.kind = api::EventKind::kShareWaits, .share = start.spec.name.value_or("")};
    event.detail = api::PlaceInWords(start.place) + "; " + start.why;
    AddEvent(std::move(event), start);
    spdlog::info("{} waits in line: {}", NameOf(start), start.why);
    on_change();
  }
  if (start.on_place) start.on_place(DescribeStart(start));
}

api::WaitingShare Starts::DescribeStart(const Start& start) const {
  api::WaitingShare waiting;
  waiting.place = start.place;
  waiting.since_ms = start.since_ms;
  waiting.waited_ms = WaitedMs(start);
  waiting.pid = start.owner.process.pid;
  waiting.owner_uid = start.owner.uid;
  waiting.name = start.spec.name.value_or("");
  waiting.gpus = start.spec.gpus;
  waiting.gpu_count = start.spec.gpus.empty() ? start.spec.gpu_count.value_or(1)
                                              : static_cast<uint32_t>(start.spec.gpus.size());
  waiting.memory_bytes = BytesAsked(start.spec, host_.DescribeDevices());
  waiting.compute_request = start.spec.compute_request;
  waiting.exclusive = start.spec.exclusive;
  waiting.why = start.why;
  return waiting;
}

std::vector<api::WaitingShare> Starts::Describe() {
  std::vector<api::WaitingShare> all;
  for (const uint64_t ticket : line_) {
    const Start& start = starts_.at(ticket);
    if (start.place > 0) all.push_back(DescribeStart(start));
  }
  return all;
}

}  // namespace prorata::agent
