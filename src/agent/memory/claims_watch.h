#pragma once

// A member that claims more memory than it was ever granted is reported. Its claim is a word in
// memory and asks nobody, so it is looked at ten times a second. Not thread-safe: the agent's loop.

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>

#include "agent/share/events.h"
#include "agent/share/shares.h"

namespace prorata::agent {

class ClaimsWatch {
 public:
  ClaimsWatch(boost::asio::io_context& loop, const Shares& shares, Events& events)
      : shares_(shares), events_(events), timer_(loop) {}

  // From now on, ten times a second.
  void Start();
  // Looks at each member once.
  void Poll();

 private:
  void Judge(Share& share, Member& member, uint32_t index);

  const Shares& shares_;
  Events& events_;
  boost::asio::steady_timer timer_;
};

}  // namespace prorata::agent
