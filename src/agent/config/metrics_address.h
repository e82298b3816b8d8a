#pragma once

// Where an agent offers its metrics, as `prorata agent --metrics` is given it.

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace prorata::agent {

// ADDRESS:PORT with a numeric address, "[::1]:9400"
// for IPv6, or the port alone, which is then offered on 127.0.0.1. Nothing but what was written
// leaves the machine: there is no login. Port 0: a free one.
struct MetricsAddress {
  std::string address;
  uint16_t port = 0;
};
// "bad_metrics", for a person.
Result<MetricsAddress> ParseMetricsAddress(std::string_view text);

}  // namespace prorata::agent
