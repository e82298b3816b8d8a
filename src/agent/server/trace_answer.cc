#include "agent/server/trace_answer.h"

#include <chrono>

namespace prorata::agent {

Result<api::TraceReply> ReplyTrace(Node& node, const api::TraceRequest& request,
                                   const std::function<bool(const Share*)>& may_use) {
  const auto device = node.devices().Named(request.gpu, "trace");
  if (!device) return std::unexpected(device.error());
  const TraceRing& ring = node.leases().trace(*device);
  api::TraceReply reply = ReadTrace(ring, request, node.leases().now_ns());
  const auto unix = std::chrono::system_clock::now().time_since_epoch();
  reply.now_unix_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(unix).count();
  reply.since_start = !ring.has_forgotten();
  reply.since_ns =
      reply.since_start ? node.leases().traced_since_ns() : ring.At(ring.oldest()).time_ns;
  for (auto& [lane, share] : reply.shares) {
    share.lag_known = may_use(node.Find(ring.FindLane(lane)->share));
  }
  return reply;
}

}  // namespace prorata::agent
