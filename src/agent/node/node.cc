#include "agent/node/node.h"
#include "agent/share/validate_share.h"

#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <ctime>

#include "agent/node/recover_state.h"
#include "agent/share/share_events.h"
#include "base/bytes.h"
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

// How long `prorata gpus` or a new share waits for NVML's figures; then those of before are
// reported.
constexpr auto kFiguresWithin = std::chrono::milliseconds(200);
constexpr auto kSaveWithin = std::chrono::milliseconds(50);

std::unexpected<Error> NoShare(const std::string& name) {
  return Fail("no_share", "there is no share named '" + name + "'; `prorata ps` lists them");
}

}  // namespace

Node::Node(boost::asio::io_context& loop, std::string runtime_dir, driver::Nvml& nvml,
           uint32_t dilation, std::vector<agent::Overcommit> overcommit,
           std::vector<agent::ElasticCeiling> elastic_ceilings, uint32_t slow_disk_ms,
           std::optional<ContainerOptions> containers)
    : loop_(loop),
      runtime_dir_(std::move(runtime_dir)),
      disk_(loop, size_t{2} * api::kMaxShares),
      containers_(disk_),
      specifications_(disk_, runtime_dir_, nvml.LibraryPath(), std::move(containers)),
      clock_(dilation),
      devices_(loop, nvml),
      events_(real_clock_, UnixMs),
      outside_(loop, devices_),
      heartbeat_(loop, clock_),
      leases_(loop, devices_.count(), clock_, heartbeat_),
      overcommit_(std::move(overcommit)),
      elastic_ceilings_(std::move(elastic_ceilings)),
      ratios_(devices_.count(), 1),
      memory_(devices_, clock_, events_),
      sharing_([this](uint64_t id) { return Find(id); }),
      tick_(loop),
      save_(loop),
      reap_(loop),
      audit_(loop),
      claims_(loop),
      time_audit_(loop),
      times_(devices_.count()),
      baselines_(devices_.count()),
      missing_polls_(devices_.count()),
      auditing_(devices_.count()),
      reaping_(devices_.count()),
      rechecks_(devices_.count()),
      recheck_timer_(loop),
      state_(loop, StatePath(), slow_disk_ms) {
  events_.on_kept = [this](const api::Event& event) {
    Log(event);
    leases_.TraceEvent(event);
    if (on_event) on_event();
  };
  leases_.on_gang = [this](Share& share, bool begun) { events_.Add(GangEvent(share, begun)); };
  memory_.notice_deaths = [this] {
    for (const auto& [id, share] : shares_) SweepDead(*share);
  };
  events_.Add({.kind = api::EventKind::kAgentStarted,
               .detail = std::to_string(devices_.count()) + " GPU(s)"});
  WatchOutside();
  Tick();
  Audit();
  JudgeClaims();
  AuditTime();
}

Node::~Node() {
  // A failure was logged where it happened, and nobody is left to be notified.
  if (!shares_.empty() || save_armed_ || !line_.empty()) Save({});
  for (const auto& [id, share] : shares_) heartbeat_.Remove(share->limits());
}

Share* Node::Find(uint64_t id) {
  const auto found = shares_.find(id);
  return found == shares_.end() ? nullptr : found->second.get();
}

std::vector<uint64_t> Node::ContextOverheads(const Share& share) const {
  std::vector<uint64_t> bytes;
  for (const DeviceOfShare& on : share.config().devices) {
    bytes.push_back(devices_.ContextOverhead(on.device));
  }
  return bytes;
}

Status Node::Begin(Share& share) {
  share.limits()->header.dilation = static_cast<uint32_t>(clock_.dilation());
  auto socket = Listen(share.config().folder + "/socket", 0666);
  if (!socket) return std::unexpected(socket.error());
  share.acceptor = std::make_unique<Acceptor>(
      loop_, std::move(*socket),
      [this, id = share.id()](UniqueFd fd) { on_connection(id, std::move(fd)); });
  heartbeat_.Add(share.limits());
  leases_.Add(share);
  WatchOwner(share);
  return {};
}

void Node::WatchOwner(Share& share) {
  const ProcessId* owner = share.config().life.process();
  if (owner == nullptr) return;
  auto pidfd = WatchProcess(*owner);
  if (!pidfd) {
    // It ended already. As if it ended in a moment: nobody should find the share gone at once.
    share.LetGo();
    boost::asio::post(loop_, [this, id = share.id()] { TakeAwayIfDone(id); });
    return;
  }
  share.owner_watch =
      std::make_unique<ProcessWatch>(loop_, std::move(*pidfd), [this, id = share.id()] {
        Share* ended = Find(id);
        if (ended != nullptr) OwnerEnded(*ended);
      });
}

void Node::OwnerEnded(Share& share) {
  share.LetGo();
  SweepDead(share);
  TakeAwayIfDone(share.id());
}

Share* Node::FindByName(const std::string& name) {
  for (const auto& [id, share] : shares_) {
    if (share->config().name == name) return share.get();
  }
  return nullptr;
}

void Node::Update(const std::string& name, const api::ShareChange& change, OnShare then) {
  RefreshFigures([this, name, change, then = std::move(then)] {
    auto changed = UpdateNow(name, change);
    if (!changed) return then(std::unexpected(changed.error()));
    ServeLineSoon();
    Save([this, id = (*changed)->id(), then](const Status& saved) {
      Share* share = Find(id);
      if (share == nullptr) return then(Fail("share_ended", "the share has ended"));
      saved ? then(share) : then(std::unexpected(saved.error()));
    });
  });
}

Result<Share*> Node::UpdateNow(const std::string& name, const api::ShareChange& change) {
  Share* share = FindByName(name);
  if (share == nullptr || share->ended()) return NoShare(name);
  if (share->config().exclusive) {
    return Fail("exclusive",
                "share '" + name +
                    "' is whole GPUs with the plain driver (--mode exclusive), in which "
                    "nothing keeps a limit on memory, time or users; end it and make a "
                    "shared one with `prorata create`");
  }
  if (auto ok = MayChange(*share, change); !ok) return std::unexpected(ok.error());
  memory_.Gather();
  const std::vector<api::DeviceStatus> devices = DescribeDevices();
  const std::vector<api::ShareTerms> now = share->Terms();
  std::vector<api::DeviceStatus> own;
  for (const DeviceOfShare& on : share->config().devices) own.push_back(devices[on.device]);
  // All devices are judged before the first is touched.
  const auto valid = ValidateChange(change, now, own);
  if (!valid) return std::unexpected(valid.error());
  if (auto ok = ChangeTo(*share, *valid, change); !ok) {
    return std::unexpected(ok.error());
  }
  return share;
}

Status Node::ChangeTo(Share& share, const std::vector<api::ShareTerms>& terms,
                      const api::ShareChange& also) {
  const std::vector<api::ShareTerms> now = share.Terms();
  const api::OnFull on_full = also.on_full.value_or(share.config().on_full);
  if (auto ok = memory_.SetTerms(share, terms, on_full); !ok) return ok;
  if (on_full != share.config().on_full) {
    api::Event event = EventOf(api::EventKind::kShareChanged, share);
    event.detail =
        "on-full " + FormatOnFull(share.config().on_full) + " to " + FormatOnFull(on_full);
    events_.Add(std::move(event));
    share.SetOnFull(on_full);
  }
  if (also.gang) ChangeGang(share, *also.gang);
  if (also.allow_users) ChangeUsers(share, *also.allow_users);
  if (memory_.anybody_waits()) ReapSoon();
  for (uint32_t i = 0; i < share.device_count(); ++i) {
    // A change of its other GPUs, or of none.
    const bool other = share.device_count() > 1 || also.on_full || also.gang || also.allow_users;
    if (terms[i] == now[i] && other) continue;
    events_.Add(ChangedEvent(share, i, terms[i]));
    share.SetTerms(i, terms[i]);
    leases_.SetTerms(share, i);
    spdlog::info(
        "share '{}' changed: {} of GPU {}, memory request {}, compute request {}, limit {}, weight "
        "{}, priority "
        "{}",
        share.config().name, FormatBytes(terms[i].memory_bytes), share.config().devices[i].device,
        FormatBytes(terms[i].memory_request_bytes), FormatFraction(terms[i].compute_request),
        FormatFraction(terms[i].compute_limit), terms[i].weight, terms[i].priority);
  }
  return {};
}

void Node::ChangeGang(Share& share, api::Gang gang) {
  const api::Gang before = share.config().gang;
  if (gang == before) return;
  api::Event event = EventOf(api::EventKind::kShareChanged, share);
  event.detail = "gang " + FormatGang(before) + " to " + FormatGang(gang);
  spdlog::info("share '{}' changed: {}", share.config().name, event.detail);
  events_.Add(std::move(event));
  share.SetGang(gang);
  leases_.SetGang(share);
}

// Who runs on it stays: a process that joined is a member until it ends.
void Node::ChangeUsers(Share& share, api::AllowedUsers users) {
  if (users == share.config().allow_users) return;
  const auto text = [](const api::AllowedUsers& allowed) {
    return allowed.Nobody() ? std::string("none") : FormatAllowedUsers(allowed);
  };
  api::Event event = EventOf(api::EventKind::kShareChanged, share);
  event.detail = "allow-users " + text(share.config().allow_users) + " to " + text(users);
  spdlog::info("share '{}' changed: {}", share.config().name, event.detail);
  events_.Add(std::move(event));
  share.SetAllowedUsers(std::move(users));
}

Status Node::Remove(const std::string& name) {
  Share* share = FindByName(name);
  if (share == nullptr) return NoShare(name);
  if (const std::string* file = share->config().life.file()) {
    return Fail("resource_config",
                "share '" + name + "' is kept by '" + *file + "'; take its line out of that file");
  }
  share->End();
  share->LetGo();
  specifications_.Remove(name);
  SaveSoon();
  TakeAwayIfDone(share->id());
  return {};
}

// What its members held comes back when the device shows it gone; its request is free now.
void Node::EndIfOver(Share& share) {
  if (!share.kept() && share.CountLiving() == 0) share.End();
}

void Node::TakeAwayIfDone(uint64_t id) {
  Share* share = Find(id);
  if (share == nullptr || share->kept()) return;
  EndIfOver(*share);
  if (share->HasMembers()) return;
  spdlog::info("share '{}' ended", share->config().name);
  events_.Add(EventOf(api::EventKind::kShareEnded, *share));
  const std::string folder = share->config().folder;
  specifications_.Remove(share->config().name);
  if (share->acceptor != nullptr) leases_.Remove(*share);
  heartbeat_.Remove(share->limits());
  memory_.Remove(*share);
  shares_.erase(id);
  if (memory_.anybody_waits()) ReapSoon();
  sharing_.Forget(id);
  RemoveShareFolder(folder);
  SaveSoon();
  ServeLineSoon();
  if (on_share_gone) on_share_gone();
}

Member* Node::AdmitMember(Share& share, const ProcessId& process) {
  Member* member = share.Admit(process);
  if (member == nullptr) return nullptr;
  WatchMember(share, *member);
  events_.Add(EventOf(api::EventKind::kMemberJoined, share, member));
  return member;
}

void Node::WatchMember(Share& share, Member& member) {
  auto pidfd = WatchProcess(member.process, &member.command);
  if (!pidfd) {
    // Dead already; not from here, for the caller still holds it.
    boost::asio::post(loop_, [this, id = share.id(), process = member.process] {
      Share* owner = Find(id);
      Member* dead = owner != nullptr ? owner->FindLiving(process) : nullptr;
      if (dead != nullptr) DepartMember(*owner, *dead);
    });
    return;
  }
  member.watch = std::make_unique<ProcessWatch>(
      loop_, std::move(*pidfd), [this, id = share.id(), process = member.process] {
        Share* owner = Find(id);
        Member* dead = owner != nullptr ? owner->FindLiving(process) : nullptr;
        if (dead != nullptr) DepartMember(*owner, *dead);
      });
}

void Node::DepartMember(Share& share, Member& member) {
  spdlog::debug("share '{}': member {} departed", share.config().name, member.process.pid);
  ReportCounters(events_, share, member);
  ReportWhatEnded(events_, share, member);
  events_.Add(EventOf(api::EventKind::kMemberGone, share, &member));
  share.Depart(member, RealClock().NowNs());
  sharing_.Departed(share, member);
  leases_.RescheduleAll(share);
  EndIfOver(share);
  ReapSoon();
}

bool Node::LeavesOthers(const Share& share, const ProcessId& process) {
  for (const auto& [id, other] : shares_) {
    Member* member = id == share.id() ? nullptr : other->FindLiving(process);
    if (member == nullptr) continue;
    if (member->connection != nullptr && !HasHungUp(member->connection->fd())) return false;
    DepartMember(*other, *member);
  }
  return true;
}

void Node::SweepDead(Share& share) {
  for (Member* member : share.Members()) {
    if (member->departed || member->watch == nullptr) continue;
    if (HasEnded(member->watch->pidfd())) DepartMember(share, *member);
  }
}

// The member of a slot, if it still is the one that it was: for answers that came later.
Member* Node::FindAgain(uint64_t share_id, uint32_t slot, const ProcessId& process) {
  Share* share = Find(share_id);
  Member* member = share != nullptr ? share->FindMember(slot) : nullptr;
  return member != nullptr && member->process == process ? member : nullptr;
}

void Node::AskMemory(Share& share, MemoryRequests::Request request) {
  if (RecheckedFirst(share, request)) return;
  if (memory_.Ask(share, std::move(request))) ReapSoon();
}

void Node::RefreshFigures(std::function<void()> then) {
  struct Refresh {
    Refresh(boost::asio::io_context& loop) : timer(loop) {}
    size_t left = 0;
    boost::asio::steady_timer timer;
    std::function<void()> then;
  };
  // A driver that hangs is asked once: nobody waits for it, and nothing piles up before it.
  if (devices_.UnansweredNs() > 0) return then();
  auto refresh = std::make_shared<Refresh>(loop_);
  refresh->left = devices_.count();
  refresh->then = std::move(then);
  for (size_t device = 0; device < devices_.count(); ++device) {
    devices_.ReadMemory(device, [refresh](const Devices::Reading<driver::NvmlMemory>&) {
      if (--refresh->left == 0) refresh->timer.cancel();
    });
  }
  refresh->timer.expires_after(kFiguresWithin);
  refresh->timer.async_wait([refresh](const boost::system::error_code&) { refresh->then(); });
}

std::string Node::EncodedState() const {
  SavedState state;
  for (size_t device = 0; device < devices_.count(); ++device) {
    if (ratios_[device] > 1) state.overcommit[devices_[device].uuid] = ratios_[device];
  }
  state.elastic_ceiling_ppm = ElasticCeilings();
  const auto in_line = std::ranges::count_if(
      line_, [this](uint64_t ticket) { return starts_.at(ticket).place > 0; });
  state.waiting = static_cast<uint32_t>(in_line) + (AwaitsReturn() ? returning_ : 0);
  for (const auto& [id, share] : shares_) {
    state.shares.push_back({share->config(), share->ended(), share->container});
  }
  return EncodeState(state);
}

void Node::Save(StateWriter::Then then) { state_.Save(EncodedState(), std::move(then)); }

void Node::SaveAndLog() {
  Save([](const Status& saved) {
    if (!saved) spdlog::error("{}", saved.error().message);
  });
}

void Node::SaveSoon() {
  if (save_armed_) return;
  save_armed_ = true;
  save_.expires_after(kSaveWithin);
  save_.async_wait([this](const boost::system::error_code& stopped) {
    if (stopped) return;
    save_armed_ = false;
    SaveAndLog();
  });
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
  for (const auto& [id, share] : shares_) {
    for (uint32_t i = 0; i < share->device_count(); ++i) share->RecallOverLimit(i);
    for (Member* member : share->Members()) ReportCounters(events_, *share, *member);
    if (last_tick_ns_ >= 0) share->PublishUtilization(now_ns - last_tick_ns_);
    sharing_.Tick(*share);
  }
  if (RealClock().NowNs() >= next_containers_ns_) {
    WatchContainers();
    next_containers_ns_ = RealClock().NowNs() + kContainersEveryNs;
  }
  WatchDriver();
  ServeLineSoon();
  events_.Tick();
  last_tick_ns_ = now_ns;
  tick_.expires_after(std::chrono::nanoseconds(clock_.RealNs(kTickNs)));
  tick_.async_wait([this](const boost::system::error_code& stopped) {
    if (!stopped) Tick();
  });
}

}  // namespace prorata::agent
