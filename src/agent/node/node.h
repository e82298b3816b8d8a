#pragma once

// What an agent holds: the components of its shares, from their making to their end, each of which
// says in its own header what it needs and gives. Node owns and connects them, passes time on to
// them, and is what the servers call; nothing here reads a message.
//
// Not thread-safe: the agent's loop.

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "agent/compute/leases.h"
#include "agent/compute/time_audit.h"
#include "agent/config/elastic_ceiling.h"
#include "agent/config/overcommit.h"
#include "agent/containers/container_options.h"
#include "agent/containers/specifications.h"
#include "agent/memory/claims_watch.h"
#include "agent/memory/memory_audit.h"
#include "agent/memory/memory_requests.h"
#include "agent/memory/reaper.h"
#include "agent/memory/rechecks.h"
#include "agent/memory/settle.h"
#include "agent/memory/sharing.h"
#include "agent/node/descriptions.h"
#include "agent/node/device_terms.h"
#include "agent/node/file_shares.h"
#include "agent/node/members.h"
#include "agent/node/share_changes.h"
#include "agent/node/share_containers.h"
#include "agent/node/share_lives.h"
#include "agent/node/share_maker.h"
#include "agent/node/starts.h"
#include "agent/node/state_writer.h"
#include "agent/runtime/heartbeat.h"

namespace prorata::agent {

class Node {
 public:
  Node(boost::asio::io_context& loop, std::string runtime_dir, driver::Nvml& nvml,
       uint32_t dilation = 1, std::vector<Overcommit> overcommit = {},
       std::vector<ElasticCeiling> elastic_ceilings = {}, uint32_t slow_disk_ms = 0,
       std::optional<ContainerOptions> containers = {});
  ~Node();

  // Who serves the member sockets; set before shares are made.
  std::function<void(uint64_t share_id, UniqueFd socket)> on_connection;
  // A share has ended, and was taken away, or was not made.
  std::function<void()> on_share_gone;
  // There is a new event.
  std::function<void()> on_event;

  // Takes over what an agent before us left. "state"; "unknown_gpu" of an overcommit.
  Status Adopt();
  // Before the loop runs, so that waiting for the disk is no harm: what there is now is saved. An
  // agent that cannot must not begin. "state".
  Status SaveNow() { return state_.SaveNow(); }

  Share* Find(uint64_t id) { return shares_.Find(id); }
  Share* FindByName(const std::string& name) { return shares_.FindByName(name); }
  bool HasShares() const { return !shares_.empty() || !starts_.empty(); }

  Devices& devices() { return devices_; }
  Leases& leases() { return leases_; }
  Events& events() { return events_; }
  Sharing& sharing() { return sharing_; }
  Members& members() { return members_; }
  Starts& starts() { return starts_; }
  ShareLives& lives() { return lives_; }
  ShareChanges& changes() { return changes_; }
  FileShares& file_shares() { return file_shares_; }
  ShareContainers& containers() { return containers_; }
  ContextSettling& settling() { return settling_; }
  const Descriptions& descriptions() const { return descriptions_; }
  const Specifications& specifications() const { return specifications_; }

  // A member asks for memory; answered now or later, or never when its connection is gone.
  void AskMemory(Share& share, MemoryRequests::Request request);

 private:
  void Connect();
  SavedState State() const;
  void AdoptShares(std::vector<SavedShare> saved, bool damaged);
  void Tick();
  void WatchDriver();

  const std::string runtime_dir_;
  const DilatedClock clock_;    // of all that members share time by; see AgentOptions::dilation
  const RealClock real_clock_;  // of what is for people
  Shares shares_;
  Worker disk_;  // of what is written and read for containers
  Specifications specifications_;
  Devices devices_;
  Events events_;
  Heartbeat heartbeat_;
  Leases leases_;
  DeviceTerms terms_;
  MemoryRequests memory_;
  Sharing sharing_;
  Reaper reaper_;
  MemoryAudit memory_audit_;
  Rechecks rechecks_;
  ClaimsWatch claims_;
  ContextSettling settling_;
  TimeAudit time_audit_;
  Members members_;
  StateWriter state_;
  ShareContainers containers_;
  Descriptions descriptions_;
  ShareLives lives_;
  ShareChanges changes_;
  FileShares file_shares_;
  ShareMaker maker_;
  Starts starts_;
  boost::asio::steady_timer tick_;
  int64_t last_tick_ns_ = -1;
  int64_t next_containers_ns_ = 0;
  bool driver_slow_ = false;  // and was reported
};

}  // namespace prorata::agent
