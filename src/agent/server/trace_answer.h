#pragma once

#include <functional>

#include "agent/node/node.h"
#include "api/trace.h"

namespace prorata::agent {

// What the agent says to `prorata debug trace` about one device. Everybody may see what `prorata
// ps` shows; the lag only of shares for which `may_use` is true (asked with null for one that has
// ended). "unknown_gpu".
Result<api::TraceReply> ReplyTrace(Node& node, const api::TraceRequest& request,
                                   const std::function<bool(const Share*)>& may_use);

}  // namespace prorata::agent
