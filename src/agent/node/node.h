#pragma once

// What an agent holds, and the life of a share: made, adopted from the agent before, kept while its
// owner or a member lives, and taken away with its files. The servers call in; nothing here reads a
// message.

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/compute/leases.h"
#include "agent/compute/time_audit.h"
#include "agent/config/elastic_ceiling.h"
#include "agent/config/overcommit.h"
#include "agent/config/resource_config.h"
#include "agent/containers/containers.h"
#include "agent/containers/outside.h"
#include "agent/containers/specifications.h"
#include "agent/memory/claims_watch.h"
#include "agent/memory/memory_audit.h"
#include "agent/memory/memory_requests.h"
#include "agent/memory/reaper.h"
#include "agent/memory/rechecks.h"
#include "agent/memory/settle.h"
#include "agent/memory/sharing.h"
#include "agent/node/starts.h"
#include "agent/node/state_file.h"
#include "agent/node/state_writer.h"
#include "agent/runtime/devices.h"
#include "agent/runtime/heartbeat.h"
#include "agent/share/events.h"
#include "agent/share/share.h"
#include "agent/share/shares.h"
#include "api/control.h"
#include "base/clock.h"
#include "policy/placement/start_line.h"
#include "wire/messages.h"

namespace prorata::agent {

class Node {
 public:
  using OnConnection = std::function<void(uint64_t share_id, UniqueFd socket)>;

  Node(boost::asio::io_context& loop, std::string runtime_dir, driver::Nvml& nvml,
       uint32_t dilation = 1, std::vector<agent::Overcommit> overcommit = {},
       std::vector<agent::ElasticCeiling> elastic_ceilings = {}, uint32_t slow_disk_ms = 0,
       std::optional<ContainerOptions> containers = {});
  ~Node();

  // Who serves the member sockets; set before shares are made.
  OnConnection on_connection;
  // A share has ended, and was taken away.
  std::function<void()> on_share_gone;
  // There is a new event.
  std::function<void()> on_event;

  // Takes over what an agent before us left. "state"; "unknown_gpu" of an overcommit.
  Status Adopt();
  // Before the loop runs, so that waiting for the disk is no harm: what there is now is saved. An
  // agent that cannot must not begin. "state".
  Status SaveNow() { return state_.SaveNow(EncodedState()); }
  // What these answer comes when the disk has it, and after a look at the devices that does not
  // wait for a driver that hangs.
  using OnShare = std::function<void(Result<Share*>)>;
  // A new share; where it is named after one that is there for any program, that one, if nothing
  // else is asked for. With `wait` it stands in line until it fits (starts.h), and `on_place` is
  // called when it has to, and when its place changes. Answers what GiveUp is called with.
  uint64_t Create(const api::ShareSpec& spec, const Peer& owner, OnShare then,
                  const std::optional<api::StartWait>& wait = {}, Start::OnPlace on_place = {});
  // Whoever asked for it with `wait` is gone: it leaves the line, or goes when it is made. Nothing
  // if it was answered.
  void GiveUp(uint64_t ticket);
  // Those in line, in its order.
  std::vector<api::WaitingShare> DescribeLine();
  // Other terms for a share and its running members, in force at once. "no_share", and as
  // ValidateChange.
  void Update(const std::string& name, const api::ShareChange& change, OnShare then);
  // Asks NVML how full the devices are, for what Describe says; calls back soon in any case.
  void RefreshFigures(std::function<void()> then);
  // Ends a share: nobody joins any more; it is taken away when its members are gone. "no_share".
  Status Remove(const std::string& name);

  // --- shares that resource-config.txt files ask for (file_shares.cc) ---
  // These, and no others, are the shares of the file for this device from now on; all of it is done
  // or nothing. "resource_config" with file and line.
  Status ApplyResourceConfig(size_t device, const std::string& file,
                             const std::vector<agent::ResourceClient>& clients);
  bool HasFileShares(size_t device) const;
  // Its file is none of this agent's any more: as if it were empty.
  void EndFileShares(size_t device);

  Share* Find(uint64_t id) { return shares_.Find(id); }
  Share* FindByName(const std::string& name) { return shares_.FindByName(name); }
  Devices& devices() { return devices_; }
  Leases& leases() { return leases_; }
  Events& events() { return events_; }
  Sharing& sharing() { return sharing_; }
  bool HasShares() const { return !shares_.empty() || creating_ > 0; }

  // A member's process is new here: it gets a slot, which the share's limits file shows to the next
  // agent, and is watched. Null: no slot.
  Member* AdmitMember(Share& share, const ProcessId& process);
  // A process lives on one share. False: it is a member of another, with which it is connected.
  // Where it is a member and its connection has ended, it runs another program now (exec), and what
  // it was departs.
  bool LeavesOthers(const Share& share, const ProcessId& process);
  // A member's process is dead or became another program.
  void DepartMember(Share& share, Member& member);
  // Notices now the deaths that the loop has not come to yet.
  void SweepDead(Share& share);
  // A member asks for memory; answered now or later, or never when its connection is gone.
  void AskMemory(Share& share, MemoryRequests::Request request);

  // As ContextSettling::Settle.
  void SettleContext(Share& share, Member& member, const wire::ContextMade& made,
                     ContextSettling::Then then) {
    settling_.Settle(share, member, made, std::move(then));
  }

  // --- containers (share_containers.cc) ---
  // Whether a program of this user and container may use the share.
  bool MayUse(const Share& share, const Peer& peer) const;
  // A share belongs to one container at a time, unless it was made for any.
  bool MayJoinFrom(Share& share, const Peer& peer);
  // The share's CDI specification; null: it has none.
  const nlohmann::json* Specification(const Share& share) const {
    return specifications_.Find(share.config().name);
  }

  api::ShareStatus Describe(Share& share);
  std::vector<api::ShareStatus> DescribeShares();
  std::vector<api::DeviceStatus> DescribeDevices();

 private:
  Status SetOvercommit(const SavedState& saved);
  Status SetElasticCeilings(const SavedState& saved);
  std::map<std::string, uint32_t> ElasticCeilings() const;  // as saved
  Status AdoptShare(SavedShare saved);
  Status Begin(Share& share);  // its socket, heartbeat, leases, owner
  // Calls back when there are fresh figures and no share of that name that is over already.
  void AwaitName(const std::optional<std::string>& name, int64_t until_ns,
                 std::function<void()> then);
  // The share that is there already; nothing: a new one is asked for.
  std::optional<Result<Share*>> FindMade(const api::ShareSpec& spec);
  // On these devices as they are described.
  Result<Share*> CreateNow(const api::ShareSpec& spec, const Peer& owner,
                           const std::vector<api::DeviceStatus>& devices);
  void Write(uint64_t ticket, Share& made);  // to the disk, before it is answered

  // starts.cc
  std::vector<policy::StartPlace> StartPlaces(const std::vector<api::DeviceStatus>& devices) const;
  // As ValidateShare, of this machine without any share and program; "memory_missing".
  Status CouldEverFit(const api::ShareSpec& spec);
  Status MayEnterLine(const Start& start);
  void EnterLine(uint64_t ticket);
  void LeaveLine(uint64_t ticket);
  void Finish(uint64_t ticket, Result<Share*> share);
  void AddWaitEvent(api::Event event, const Start& start);
  bool AwaitsReturn() const;
  void ServeLine();      // makes what fits, by the figures of now
  void ServeLineSoon();  // by fresh figures
  Error TimedOut(const Start& start, uint32_t place) const;
  void NotifyPlace(uint64_t ticket);
  api::WaitingShare DescribeStart(const Start& start);

  Result<Share*> UpdateNow(const std::string& name, const api::ShareChange& change);
  Result<Share*> Make(ShareConfig config);  // not saved
  void Abandon(Share& share);
  void Publish(Share& share, OnShare then);  // its specification, for engines
  void SetContainer(Share& share, Container container, const ProcessId& process);
  void ForgetContainerIfEmpty(Share& share);
  void WatchContainers();
  void WatchOutside();  // who uses a device from a share's container without being a member
  // Other terms for all of its devices, judged before; of `also`, what is not said by a device. Not
  // saved.
  Status ChangeTo(Share& share, const std::vector<api::ShareTerms>& terms,
                  const api::ShareChange& also = {});
  void ChangeGang(Share& share, api::Gang gang);
  void ChangeUsers(Share& share, api::AllowedUsers users);
  Result<Share*> Join(Share& share, const api::ShareSpec& spec);
  Status MayChange(const Share& share, const api::ShareChange& change) const;
  std::vector<Share*> FileShares(size_t device) const;
  void EndFileShare(Share& share);
  class FileChange;
  void WatchOwner(Share& share);
  void OwnerEnded(Share& share);  // the share may be gone after it
  void WatchMember(Share& share, Member& member);
  void TakeAwayIfDone(uint64_t id);
  std::vector<uint64_t> ContextOverheads(const Share& share) const;  // on each of its devices

  std::string StatePath() const { return runtime_dir_ + "/state.json"; }
  std::string EncodedState() const;
  void Save(StateWriter::Then then);  // written behind
  void SaveAndLog();
  void SaveSoon();
  void Tick();
  void WatchDriver();

  boost::asio::io_context& loop_;
  std::string runtime_dir_;
  Shares shares_;
  Worker disk_;  // of what is written and read for containers
  Containers containers_;
  Specifications specifications_;
  const DilatedClock clock_;  // of all that members share time by; see AgentOptions::dilation
  Devices devices_;
  const RealClock real_clock_;  // of what is for people
  Events events_;
  Outside outside_;
  Heartbeat heartbeat_;
  Leases leases_;
  const std::vector<agent::Overcommit> overcommit_;  // as this agent's options say
  const std::vector<agent::ElasticCeiling> elastic_ceilings_;
  // How much of each device may be promised to shares that do not say their memory request.
  std::vector<double> ratios_;
  MemoryRequests memory_;
  Sharing sharing_;
  Reaper reaper_;
  MemoryAudit memory_audit_;
  Rechecks rechecks_;
  ClaimsWatch claims_;
  ContextSettling settling_;
  TimeAudit time_audit_;
  boost::asio::steady_timer tick_;
  boost::asio::steady_timer save_;
  int64_t last_tick_ns_ = -1;
  int64_t next_containers_ns_ = 0;
  uint32_t creating_ = 0;  // calls of Create without an answer so far
  std::map<uint64_t, Start> starts_;
  std::vector<uint64_t> line_;  // of those, in order
  uint64_t next_ticket_ = 1;
  bool serving_ = false;  // fresh figures are on their way
  // So many waited under the agent before, and have not come back: until then nobody is served.
  uint32_t returning_ = 0;
  int64_t returning_until_ns_ = 0;
  bool driver_slow_ = false;  // and was reported
  bool save_armed_ = false;
  StateWriter state_;
};

}  // namespace prorata::agent
