#pragma once

// The agent's figures as text that Prometheus reads (docs/reference/metrics.md), from the same
// statuses that `prorata ps` and `prorata gpus` show, so that all of them tell one story. Pure;
// thread-safe.

#include <span>
#include <string>

#include "protocol/control.h"
#include "protocol/event.h"

namespace prorata::agent {

std::string MetricsText(std::span<const protocol::ShareStatus> shares,
                        std::span<const protocol::DeviceStatus> devices,
                        const protocol::EventCounts& events);

}  // namespace prorata::agent
