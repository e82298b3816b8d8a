#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "driver/nvml.h"

namespace prorata::agent {

// The devices of this machine as NVML shows them, and what was learned about them.
class Devices {
 public:
  explicit Devices(driver::Nvml& nvml);

  size_t count() const { return nvml_.Devices().size(); }
  const driver::NvmlDevice& operator[](size_t device) const { return nvml_.Devices()[device]; }
  std::optional<size_t> Find(std::string_view uuid) const;
  // As a person names it to an option of the agent, by index or UUID. "unknown_gpu".
  Result<size_t> Named(std::string_view gpu, std::string_view option) const;

  Result<driver::NvmlMemory> Memory(size_t device) { return nvml_.Memory(device); }

  // Bytes by process, as they are now. A process without a figure is there with nothing.
  using ByProcess = std::map<pid_t, std::optional<uint64_t>>;
  Result<ByProcess> Processes(size_t device);

  // What a context takes on the device: the most of the last few that were measured; before the
  // first, a guess that is rather too large (what is too much is given back as soon as one was
  // measured).
  uint64_t ContextOverhead(size_t device) const;
  void LearnContextOverhead(size_t device, uint64_t bytes);

 private:
  driver::Nvml& nvml_;
  std::vector<std::deque<uint64_t>> learned_;
};

}  // namespace prorata::agent
