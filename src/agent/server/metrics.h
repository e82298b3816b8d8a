#pragma once

// The agent's figures as text that Prometheus reads (docs/reference/metrics.md), from the same
// statuses that `prorata ps` and `prorata gpus` show, so that all of them agree. Pure;
// thread-safe.

#include <span>
#include <string>

#include "api/control.h"
#include "api/event.h"

namespace prorata::agent {

std::string MetricsText(std::span<const api::ShareStatus> shares,
                        std::span<const api::DeviceStatus> devices, const api::EventCounts& events);

}  // namespace prorata::agent
