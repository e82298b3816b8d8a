#pragma once

// One agent a device on a machine: two that promise parts of the same GPU would both be wrong.
//
// The lock is the name of an abstract Unix socket, the same for agents of all users (of one network
// namespace). It needs no folder that everybody may write, nothing of it is left when its agent is
// gone however that died, and the kernel says who holds it.

#include <boost/asio/io_context.hpp>
#include <memory>
#include <string>
#include <vector>

#include "agent/runtime/connection.h"
#include "base/result.h"
#include "driver/nvml.h"

namespace prorata::agent {

class DeviceLocks {
 public:
  // All devices of this NVML, or none. "device_taken": says which device, and who has it.
  static Result<DeviceLocks> Take(boost::asio::io_context& loop, const driver::Nvml& nvml);

 private:
  // They take the connections of those who ask who we are.
  std::vector<std::unique_ptr<Acceptor>> held_;
};

}  // namespace prorata::agent
