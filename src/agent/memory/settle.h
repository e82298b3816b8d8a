#pragma once

// What NVML shows of a process after it took memory that no call names the size of: a context, or
// what a library took. It is asked on the side, and answered as not measured when NVML takes too
// long: then the member keeps what it reserved, which is rather too much.
//
// What the audit found of a member stays charged as that, and only what is beyond it is the answer.
// (Were it charged by the member's own word from now on, a member that never charges it would make
// the audit begin anew with each message, and find any implicit memory.)
//
// Not thread-safe: the agent's loop.

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>

#include "agent/memory/memory_requests.h"
#include "agent/runtime/devices.h"
#include "agent/share/shares.h"
#include "wire/messages.h"

namespace prorata::agent {

class ContextSettling {
 public:
  using Then = std::function<void(const wire::ContextSettled&)>;

  // All must outlive it.
  ContextSettling(boost::asio::io_context& loop, const Shares& shares, Devices& devices,
                  MemoryRequests& memory)
      : loop_(loop), shares_(shares), devices_(devices), memory_(memory) {}

  // What NVML says of a process and device, beyond what the share's ledger knows of; see wire.h.
  // `then` is called once, within 200 ms; maybe at once.
  void Settle(Share& share, Member& member, const wire::ContextMade& made, Then then);

 private:
  struct Request;
  struct Measured {
    Share* share = nullptr;
    Member* member = nullptr;  // null: it is there no more
  };
  Measured Find(const Request& request) const;
  static wire::ContextSettled NotMeasured(const Request& request);
  void Finish(Request& request, const wire::ContextSettled& settled);
  void Measure(const std::shared_ptr<Request>& request);
  void OnFigures(const std::shared_ptr<Request>& request,
                 const Devices::Reading<Devices::ByProcess>& reading);
  void SettleContext(Request& request, Share& share, Member& member, uint64_t on_device);
  void SettleOther(const std::shared_ptr<Request>& request, Share& share, Member& member,
                   uint64_t on_device);
  void LearnContextOverhead(size_t device, uint64_t bytes);

  boost::asio::io_context& loop_;
  const Shares& shares_;
  Devices& devices_;
  MemoryRequests& memory_;
};

}  // namespace prorata::agent
