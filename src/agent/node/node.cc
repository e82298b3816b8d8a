#include "agent/node/node.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <filesystem>
#include <set>

#include "agent/node/recover_state.h"
#include "agent/share/share_events.h"
#include "base/clock.h"

namespace prorata::agent {
namespace {

constexpr int64_t kTickNs = 100 * kNsPerMs;
constexpr int64_t kContainersEveryNs = kNsPerS;

int64_t UnixMs() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

// What somebody should look at. The life of shares and members is logged where it happens.
void Log(const api::Event& event) {
  using enum api::EventKind;
  if (event.kind != kMemberRefused && event.kind != kBypassSuspected && event.kind != kFalseUsage &&
      event.kind != kOutsideProcess && event.kind != kUngovernedFunctions &&
      event.kind != kFiguresMissing && event.kind != kResourceConfigRefused &&
      event.kind != kDriverSlow && event.kind != kDriverSlowOver) {
    return;
  }
  spdlog::warn("{}{}", event.share.empty() ? "" : "share '" + event.share + "': ", Words(event));
}

// An agent that was killed while it made a share leaves its folder, of which no state knows: nobody
// was answered, so nobody relies on it. One that was killed while it took a share away may leave a
// folder without limits.
void RemoveUnknownFolders(const std::string& shares, const std::set<std::string>& known) {
  std::error_code none;
  std::vector<std::string> unknown;
  for (const auto& entry : std::filesystem::directory_iterator(shares, none)) {
    const bool whole = std::filesystem::exists(entry.path() / "limits", none);
    if (!whole || !known.contains(entry.path().filename())) unknown.push_back(entry.path());
  }
  for (const std::string& folder : unknown) RemoveShareFolder(folder);
}

}  // namespace

Node::Node(boost::asio::io_context& loop, std::string runtime_dir, driver::Nvml& nvml,
           uint32_t dilation, std::vector<Overcommit> overcommit,
           std::vector<ElasticCeiling> elastic_ceilings, uint32_t slow_disk_ms,
           std::optional<ContainerOptions> containers)
    : runtime_dir_(std::move(runtime_dir)),
      clock_(dilation),
      disk_(loop, size_t{2} * api::kMaxShares),
      specifications_(disk_, runtime_dir_, nvml.LibraryPath(), std::move(containers)),
      devices_(loop, nvml),
      events_(real_clock_, UnixMs),
      heartbeat_(loop, clock_),
      leases_(loop, devices_.count(), clock_, heartbeat_),
      terms_(devices_, leases_, std::move(overcommit), std::move(elastic_ceilings)),
      memory_(devices_, clock_, events_),
      sharing_([this](uint64_t id) { return shares_.Find(id); }),
      reaper_(loop, shares_, devices_, memory_, sharing_),
      memory_audit_(loop, shares_, devices_, events_),
      rechecks_(loop, shares_, devices_, memory_audit_),
      claims_(loop, shares_, events_),
      settling_(loop, shares_, devices_, memory_),
      time_audit_(loop, clock_, shares_, devices_, leases_),
      members_(loop, shares_, leases_, sharing_, reaper_, events_),
      state_(
          loop, runtime_dir_ + "/state.json", [this] { return State(); }, slow_disk_ms),
      containers_(loop, disk_, shares_, devices_, members_, events_, state_),
      descriptions_(shares_, devices_, terms_, leases_, memory_, time_audit_, containers_),
      lives_(loop, runtime_dir_ + "/shares",
             {clock_, shares_, devices_, heartbeat_, leases_, memory_, sharing_, members_, reaper_,
              specifications_, events_, state_}),
      changes_(shares_, devices_, leases_, memory_, reaper_, descriptions_, events_, state_),
      file_shares_(shares_, lives_, changes_, members_, descriptions_, events_, state_),
      maker_(loop,
             {shares_, devices_, memory_, reaper_, descriptions_, lives_, specifications_, state_}),
      starts_(loop, real_clock_, shares_, maker_, events_),
      tick_(loop) {
  Connect();
  events_.Add(
      {.kind = api::EventKind::kAgentStarted,
       .detail = std::to_string(devices_.count()) + (devices_.count() == 1 ? " GPU" : " GPUs")});
  Tick();
  memory_audit_.Start();
  claims_.Start();
  time_audit_.Start();
}

Node::~Node() {
  // A failure was logged where it happened, and nobody is left to be notified.
  if (!shares_.empty() || state_.pending() || !starts_.empty()) state_.Save({});
  for (const Share* share : shares_.All()) heartbeat_.Remove(share->limits());
}

// What components below ask of those above them.
void Node::Connect() {
  events_.on_kept = [this](const api::Event& event) {
    Log(event);
    leases_.TraceEvent(event);
    if (on_event) on_event();
  };
  leases_.on_gang = [this](Share& share, bool begun) { events_.Add(GangEvent(share, begun)); };
  memory_.notice_deaths = [this] {
    for (Share* share : shares_.All()) members_.SweepDead(*share);
  };
  rechecks_.ask = [this](Share& share, MemoryRequests::Request request) {
    if (memory_.Ask(share, std::move(request))) reaper_.ReapSoon();
  };
  reaper_.on_gone = [this](uint64_t id) { lives_.TakeAwayIfDone(id); };
  lives_.on_connection = [this](uint64_t id, UniqueFd socket) {
    on_connection(id, std::move(socket));
  };
  lives_.on_made = [this](const Share& share) {
    for (const DeviceOfShare& on : share.config().devices) memory_audit_.LearnIdle(on.device);
  };
  lives_.on_gone = [this] {
    starts_.ServeSoon();
    if (on_share_gone) on_share_gone();
  };
  changes_.on_changed = [this] { starts_.ServeSoon(); };
  starts_.on_change = [this] { state_.SaveSoon(); };
  starts_.on_refused = [this] {
    if (on_share_gone) on_share_gone();
  };
}

Status Node::Adopt() {
  const std::string path = runtime_dir_ + "/state.json";
  auto saved = LoadState(path);
  const bool damaged = !saved && saved.error().code == "state_damaged";
  if (damaged) {
    spdlog::error("{}; it is set aside, and the shares are as their own files say",
                  saved.error().message);
    saved = RecoverState(runtime_dir_);
    if (auto ok = SetAside(path); !ok) return ok;
  }
  if (!saved) return std::unexpected(saved.error());
  if (auto ok = terms_.Adopt(*saved); !ok) return ok;
  AdoptShares(std::move(saved->shares), damaged);
  starts_.AwaitReturn(saved->waiting);
  return SaveNow();
}

void Node::AdoptShares(std::vector<SavedShare> saved, bool damaged) {
  std::set<std::string> known;
  for (SavedShare& one : saved) {
    const std::string name = one.config.name;
    known.insert(api::ShareFolder(name));
    if (auto ok = lives_.Adopt(std::move(one)); !ok) {
      spdlog::error("share '{}' is lost: {}", name, ok.error().message);
    } else if (damaged) {
      api::Event event{.kind = api::EventKind::kShareChanged, .share = name};
      event.detail = "the agent's state was damaged and is in '" + runtime_dir_ +
                     "/state.json.damaged': this share keeps its memory, request, limit and "
                     "weight, all else is as if it had not been asked for";
      events_.Add(std::move(event));
    }
  }
  RemoveUnknownFolders(runtime_dir_ + "/shares", known);
  std::vector<const ShareConfig*> held;
  for (const Share* share : shares_.All()) {
    if (share->config().life.token() != nullptr && !share->ended())
      held.push_back(&share->config());
  }
  specifications_.Restore(held);
}

void Node::AskMemory(Share& share, MemoryRequests::Request request) {
  if (!rechecks_.Hold(share, request)) rechecks_.ask(share, std::move(request));
}

SavedState Node::State() const {
  SavedState state;
  terms_.Save(&state);
  state.waiting = starts_.CountWaiting();
  for (const Share* share : shares_.All()) {
    state.shares.push_back({share->config(), share->ended(), share->container});
  }
  return state;
}

void Node::WatchDriver() {
  const int64_t heartbeat_lost_ns = devices_.UnansweredNs();
  if ((heartbeat_lost_ns > 0) == driver_slow_) return;
  driver_slow_ = heartbeat_lost_ns > 0;
  events_.Add(
      {.kind = driver_slow_ ? api::EventKind::kDriverSlow : api::EventKind::kDriverSlowOver});
}

void Node::Tick() {
  leases_.Tick();
  const int64_t now_ns = clock_.NowNs();
  memory_.Sample();
  for (Share* share : shares_.All()) {
    for (uint32_t i = 0; i < share->device_count(); ++i) share->RecallOverLimit(i);
    lives_.WatchAgain(*share);
    for (Member* member : share->Members()) ReportCounters(events_, *share, *member);
    if (last_tick_ns_ >= 0) share->PublishUtilization(now_ns - last_tick_ns_);
    sharing_.Tick(*share);
  }
  if (RealClock().NowNs() >= next_containers_ns_) {
    containers_.Poll();
    next_containers_ns_ = RealClock().NowNs() + kContainersEveryNs;
  }
  WatchDriver();
  starts_.ServeSoon();
  events_.Tick();
  last_tick_ns_ = now_ns;
  tick_.expires_after(std::chrono::nanoseconds(clock_.RealNs(kTickNs)));
  tick_.async_wait([this](const boost::system::error_code& stopped) {
    if (!stopped) Tick();
  });
}

}  // namespace prorata::agent
