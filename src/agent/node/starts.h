#pragma once

// Shares that were asked for and are not made yet. Each goes the same way, with `--wait` or
// without:
//
//   kNaming   a share of its name that is over already is awaited (Host::AwaitName)
//   kInLine   in line, in the order of `since_ms`; policy::StartLine says whose turn it is. Without
//             `wait` it is refused where it cannot be had at once.
//   kMaking   the share is there, and is written down (Host::Keep)
//
// Whoever asked may be gone at any moment (GiveUp): then it is taken out, or what was made of it is
// taken away again. Not thread-safe: the agent's loop.

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/runtime/process.h"
#include "agent/share/events.h"
#include "agent/share/shares.h"
#include "api/control.h"
#include "api/start_wait.h"
#include "base/clock.h"
#include "base/result.h"
#include "policy/placement/start_line.h"

namespace prorata::agent {

class Starts {
 public:
  using OnShare = std::function<void(Result<Share*>)>;
  using OnPlace = std::function<void(const api::WaitingShare&)>;

  // What makes the shares (share_maker.h).
  class Host {
   public:
    // Calls back when there are fresh figures and no share of that name that is over already.
    virtual void AwaitName(const std::optional<std::string>& name, std::function<void()> then) = 0;
    // Calls back when there are fresh figures, as far as there are some in time.
    virtual void RefreshFigures(std::function<void()> then) = 0;
    // What members may use and do not is taken back, so that it is there for a new share.
    virtual void GatherMemory() = 0;
    // The devices as they are now.
    virtual std::vector<api::DeviceStatus> DescribeDevices() = 0;
    // The share that is there already, or why it cannot be had; nothing: a new one is asked for.
    virtual std::optional<Result<Share*>> FindMade(const api::ShareSpec& spec,
                                                   const Peer& owner) = 0;
    // Whether a share may have the name that is asked for.
    virtual Status MayName(const api::ShareSpec& spec) = 0;
    // On these devices as they are described. It is there, but relied on by nobody yet.
    virtual Result<Share*> Make(const api::ShareSpec& spec, const Peer& owner,
                                const std::vector<api::DeviceStatus>& devices) = 0;
    // To the disk, and for container engines, before it is answered. What cannot be is abandoned.
    virtual void Keep(Share& made, OnShare then) = 0;
    virtual void Abandon(Share& made) = 0;

   protected:
    ~Host() = default;
  };

  // `clock`: real time. All must outlive it.
  Starts(boost::asio::io_context& loop, const Clock& clock, const Shares& shares, Host& host,
         Events& events)
      : loop_(loop), clock_(clock), shares_(shares), host_(host), events_(events) {}

  // Who waits is others now: to be saved.
  std::function<void()> on_change = [] {};
  // One was not made: maybe nothing is left to do.
  std::function<void()> on_refused = [] {};

  // A new share; where it is named after one that is there for any program, that one, if nothing
  // else is asked for. With `wait` it stands in line until it fits, and `on_place` is called when
  // it has to, and when its place changes. Never answered from here. Answers what GiveUp is called
  // with.
  uint64_t Create(const api::ShareSpec& spec, const Peer& owner, OnShare then,
                  const std::optional<api::StartWait>& wait = {}, OnPlace on_place = {});
  // Whoever asked for it with `wait` is gone: it leaves the line, or goes when it is made. Nothing
  // if it was answered.
  void GiveUp(uint64_t ticket);

  // Makes what fits, by fresh figures. To be called now and then, and when there is more room.
  void ServeSoon();
  // So many waited under the agent before: nobody is served until they have come back, which they
  // do within a moment, or lose their place.
  void AwaitReturn(uint32_t count);

  // Nobody waits for an answer.
  bool empty() const { return starts_.empty(); }
  // Those in line, with those that are to come back to it.
  uint32_t CountWaiting() const;
  // Those in line, in its order.
  std::vector<api::WaitingShare> Describe();

 private:
  enum class Stage { kNaming, kInLine, kMaking };
  struct Start {
    api::ShareSpec spec;
    Peer owner;
    std::optional<api::StartWait> wait;
    OnPlace on_place;  // it waits, and in which place now
    OnShare then;
    Stage stage = Stage::kNaming;
    uint64_t since_ms = 0;  // when it was asked for, CLOCK_BOOTTIME; of an agent before this, too
    uint64_t waited_before_ms = 0;  // under an agent before this one
    int64_t asked_ns = 0;           // when this agent was asked, by the clock
    int64_t until_ns = std::numeric_limits<int64_t>::max();  // by the clock
    uint32_t place = 0;                                      // 0: it has not waited so far
    std::string why;
    bool reported = false;  // that it waits
    bool given_up = false;  // in kMaking
  };
  struct Refused {
    uint64_t ticket;
    Error error;
  };

  std::vector<policy::StartPlace> Places(const std::vector<api::DeviceStatus>& devices) const;
  Status CouldEverFit(const api::ShareSpec& spec);
  Status MayEnter(const Start& start);
  void Enter(uint64_t ticket);
  void Leave(uint64_t ticket);
  void Keep(uint64_t ticket, Share& made);
  void Finish(uint64_t ticket, Result<Share*> share);
  void AddEvent(api::Event event, const Start& start);
  bool AwaitsReturn() const;
  // The figures are those that were awaited for who entered. To serve them one by one would take
  // the loop a time that grows with the square of a burst.
  void ServeEntered();
  void Serve();  // by the figures of now
  // It cannot be made, and why. It goes on waiting, in the next place: sets both; or does not.
  Status MayWait(Start& start, const Error& why, uint32_t* place) const;
  static std::string NameOf(const Start& start);
  uint64_t WaitedMs(const Start& start) const;
  Error TimedOut(const Start& start, uint32_t place) const;
  void NotifyPlace(uint64_t ticket);
  api::WaitingShare DescribeStart(const Start& start) const;

  boost::asio::io_context& loop_;
  const Clock& clock_;
  const Shares& shares_;
  Host& host_;
  Events& events_;
  std::map<uint64_t, Start> starts_;
  std::vector<uint64_t> line_;  // of those, in order
  uint64_t next_ticket_ = 1;
  bool serving_ = false;  // is about to be called
  uint32_t returning_ = 0;
  int64_t returning_until_ns_ = 0;
};

}  // namespace prorata::agent
