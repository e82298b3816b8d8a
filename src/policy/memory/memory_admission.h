#pragma once

// Who gets more of the devices' memory when more was promised than there is, who waits, and who is
// next. One object for all devices of a node.
//
// The problem. Where the shares' limits add up to more than a device has (overcommit), two programs
// that each hold a part and each wait for more wait for ever: nobody frees what he needs to go on.
// So a wait is entered, and memory is given, only while the state stays *safe* in the banker's
// sense: there is an order in which every share can be given all that it may still ask for, each
// after those before it have ended. For one device the greedy order is exact; for several the same
// with vectors.
//
// Each share has a request and a limit on each device, as CPU memory has in Kubernetes:
//   up to the request  set aside for it when it is made: given at once, whatever others do;
//   up to the limit    given while the device has it. Where it has not, `kFail` is refused at once,
//                      so it never waits and the banker need not save anything for it; `kWait`
//                      waits.
// The banker sees only what is *borrowed*, held beyond the requests: it counts on it to come back,
// never on what is set aside. So a share whose request is its limit competes with nobody (for
// programs that never end), one whose request is 0 has nothing of its own, and both are the one
// rule. What all can borrow together, the *reach*, is the capacity less all requests.
//
// Who is next. Requests wait in line, the first come first, and of those that can be served the one
// that fits best into what is free is served: that wastes least. But the first in line is passed
// only most_bypasses times, and only while it is younger than longest_bypass. After that the
// first *leads*: until it is served, only shares that already borrow
// memory and may wait are given more (they must end for the leader to be served); what is freed
// otherwise is kept for it. Since the holders are fewer each time one ends, everybody is served as
// long as holders end: nobody starves. The orders kBestFit, kRecent and kRandom choose differently
// among waiting requests and have no leader; they are here to be compared with.
//
// What stays true after every call (capacities left alone):
//   1. per device, what is borrowed is at most the reach, and less by what is set aside and unused:
//      request or holding, the larger of each share, add up to at most the capacity;
//   2. no share holds more than its limit;
//   3. the state is safe;
//   4. what a share asks for within its request is given at once.
// A capacity that shrinks (other programs take memory) may break 1 and 3 until memory comes back;
// then nothing beyond the requests is given that would make it worse. A share whose limit is beyond
// a shrunk reach counts as one that asks for all there is: what it asks beyond that waits for the
// capacity, leads nobody, and makes nobody else wait.
//
// Sizes are bytes, times nanoseconds on one clock that never goes back. Not thread-safe. A call
// costs at most O(devices * shares^2).

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <vector>

namespace prorata::policy {

enum class OnFull : uint8_t { kFail, kWait };

enum class WaitOrder : uint8_t { kFifo, kBestFit, kRecent, kRandom };

class MemoryAdmission {
 public:
  using Key = uint64_t;     // a share
  using Ticket = uint64_t;  // a request that waits; 0 is none

  struct Options {
    WaitOrder order = WaitOrder::kFifo;
    uint32_t most_bypasses = 32;
    int64_t longest_bypass_ns = 60'000'000'000;
    // Growth beyond what was asked for, where that is safe, so that small requests are few.
    uint64_t chunk_bytes = 64u << 20;
    uint64_t seed = 1;  // kRandom
  };
  struct Terms {
    std::vector<uint64_t> limit_bytes;         // per device; 0: the share is not on it
    std::vector<uint64_t> request_bytes = {};  // per device, at most the limit; empty: none
    OnFull on_full = OnFull::kFail;
  };
  enum class Verdict : uint8_t {
    kGiven,      // the share holds at least what was asked for
    kOverLimit,  // beyond the share's own limit: refused whatever the device has
    kFull,       // the device has not that much left, and the share does not wait
    kWaits,      // Decide or Cancel ends it
  };

  MemoryAdmission(std::vector<uint64_t> capacity_bytes, const Options& options);

  size_t devices() const { return capacity_.size(); }
  // What the shares may hold together on a device.
  void SetCapacity(size_t device, uint64_t bytes) { capacity_[device] = bytes; }
  uint64_t capacity(size_t device) const { return capacity_[device]; }

  // False, and nothing changed: its requests cannot be set aside beside what others have or
  // borrowed, or a share that waits could not be sure of its limit any more (the new one's, too).
  // `held`: what it holds already, from a state that an agent before us left.
  bool Add(Key share, const Terms& terms, std::span<const uint64_t> held = {});
  // All it holds comes back, and its waiting requests are gone.
  void Remove(Key share);
  // New terms of a share. Limit and request may fall below what is held; nothing is taken, and
  // nothing given before it is below the limit again; what is above the request is borrowed then.
  // A request of the share that waits for more than its new limit is withdrawn. False, and nothing
  // changed, as for Add.
  bool SetTerms(Key share, const Terms& terms);

  // The share wants to hold `bytes` on a device. `ticket`, if the answer is kWaits, names the
  // request: tickets of all requests are different and grow.
  Verdict Request(Key share, Ticket ticket, size_t device, uint64_t bytes, int64_t now_ns);
  // A waiting request is withdrawn (timed out, its process is dead). False: it does not wait.
  bool Cancel(Ticket ticket);
  // A waiting request wants another sum by now: the share's own members freed or took some
  // meanwhile. It keeps its place. False: it does not wait, or that is beyond the share's limit.
  bool Amend(Ticket ticket, uint64_t bytes);
  // The share gives back what it does not use, down to `bytes`. More than it holds: nothing.
  void GiveBack(Key share, size_t device, uint64_t bytes);
  // The share holds at least `bytes`, whoever gave it: found by an audit, or within its request.
  void Acknowledge(Key share, size_t device, uint64_t bytes);

  // The waiting requests that are served now, in order; they wait no longer. Time alone never
  // serves anybody: call it after Remove, GiveBack, Cancel, SetTerms, SetCapacity, and a Request
  // that waits.
  std::vector<Ticket> Decide(int64_t now_ns);

  // What it was given or has set aside, whichever is more: what nobody else can have.
  uint64_t held(Key share, size_t device) const;
  uint64_t limit(Key share, size_t device) const;
  // Neither held nor set aside; 0 while the capacity is exceeded.
  uint64_t free_bytes(size_t device) const;
  // What shares hold beyond their requests together.
  uint64_t borrowed_bytes(size_t device) const;
  // Whether any share may borrow: else the capacity matters to Add and SetTerms alone.
  bool AnyMayBorrow(size_t device) const;
  size_t waiting() const { return queue_.size(); }
  bool Safe() const;

 private:
  struct Share {
    Terms terms;
    std::vector<uint64_t> held;

    uint64_t request(size_t device) const { return terms.request_bytes[device]; }
    uint64_t taken(size_t device) const { return std::max(held[device], request(device)); }
    uint64_t borrowed(size_t device) const { return taken(device) - request(device); }
    // The most that it may borrow.
    uint64_t most(size_t device) const {
      return terms.limit_bytes[device] - std::min(terms.limit_bytes[device], request(device));
    }
  };
  struct Waiter {
    Ticket ticket;
    Key share;
    size_t device;
    uint64_t bytes;  // wanted in all
    int64_t since_ns;
    uint32_t bypasses = 0;
  };

  Share Made(const Terms& terms, std::span<const uint64_t> held) const;
  std::vector<int64_t> Free() const;
  std::vector<int64_t> Reach() const;
  static bool Finishable(const Share& share, const std::vector<int64_t>& free,
                         const std::vector<int64_t>& reach);
  bool WithinReach() const;
  bool SafeFrom(std::vector<int64_t> free) const;
  bool Fits(const Share& share, size_t device, uint64_t bytes) const;
  bool MayPass(const Share& share, Ticket ticket, int64_t now_ns) const;
  bool Leads(const Waiter& first, int64_t now_ns) const;
  void Give(Share& share, size_t device, uint64_t bytes);
  void CountBypass(Ticket passing);
  size_t Next(int64_t now_ns);

  std::vector<uint64_t> capacity_;
  Options options_;
  std::map<Key, Share> shares_;
  std::vector<Waiter> queue_;  // by ticket
  std::mt19937_64 random_;
};

}  // namespace prorata::policy
