#pragma once

// Makes the shares that somebody asked for (Starts), finds those that are there for any program,
// and has them written down before anybody relies on them. Not thread-safe: the agent's loop.

#include <boost/asio/io_context.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "agent/containers/specifications.h"
#include "agent/memory/memory_requests.h"
#include "agent/memory/reaper.h"
#include "agent/node/descriptions.h"
#include "agent/node/share_lives.h"
#include "agent/node/starts.h"
#include "agent/node/state_writer.h"
#include "agent/runtime/devices.h"
#include "agent/share/shares.h"

namespace prorata::agent {

class ShareMaker final : public Starts::Host {
 public:
  using OnShare = Starts::OnShare;
  // All must outlive it.
  struct Uses {
    const Shares& shares;
    Devices& devices;
    MemoryRequests& memory;
    Reaper& reaper;
    const Descriptions& descriptions;
    ShareLives& lives;
    Specifications& specifications;
    StateWriter& state;
  };
  ShareMaker(boost::asio::io_context& loop, const Uses& uses) : loop_(loop), use_(uses) {}

  void AwaitName(const std::optional<std::string>& name, std::function<void()> then) override;
  void RefreshFigures(std::function<void()> then) override;
  void GatherMemory() override { use_.memory.Gather(); }
  std::vector<api::DeviceStatus> DescribeDevices() override {
    return use_.descriptions.OfDevices();
  }
  std::optional<Result<Share*>> FindMade(const api::ShareSpec& spec, const Peer& owner) override;
  Status MayName(const api::ShareSpec& spec) override;
  Result<Share*> Make(const api::ShareSpec& spec, const Peer& owner,
                      const std::vector<api::DeviceStatus>& devices) override;
  void Keep(Share& made, OnShare then) override;
  void Abandon(Share& made) override { use_.lives.End(made); }

 private:
  Share* FindUnanswered(const api::ShareSpec& spec, const Peer& owner);
  void AwaitNameUntil(const std::optional<std::string>& name, int64_t until_ns,
                      std::function<void()> then);
  void Publish(Share& share, OnShare then);  // its specification, for engines

  boost::asio::io_context& loop_;
  const Uses use_;
};

}  // namespace prorata::agent
