#pragma once

// The specifications of shares in the folder where container engines look for them: one file a
// share, written beside and renamed. The agent's loop; files are written on a worker.

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "agent/containers/cdi.h"
#include "agent/containers/container_options.h"
#include "agent/runtime/worker.h"
#include "agent/share/share.h"
#include "base/result.h"

namespace prorata::agent {

class Specifications {
 public:
  // Without options there are none. `nvml_path`: the library that the agent's NVML is.
  Specifications(Worker& disk, const std::string& runtime_dir, std::string nvml_path,
                 std::optional<ContainerOptions> options);

  // Whether a share of this name can have one: by CDI's rules, and because no other agent has one
  // of that name. "bad_name", "cdi".
  Status MayName(const std::string& name) const;

  using Then = std::function<void(const Status&)>;
  // `then` on the loop when it is there for engines to read, or with why it is not; then nothing
  // is. "cdi", "driver_files", "device_nodes".
  void Write(const ShareConfig& config, Then then);
  void Remove(const std::string& name);

  // Before the loop runs: writes those of these shares anew (the driver or this program may have
  // changed) and removes all that an agent in this folder left behind. What cannot be had is
  // logged.
  void Restore(const std::vector<const ShareConfig*>& shares);

  // What is in the file of a share; null: it has none.
  const nlohmann::json* Find(const std::string& name) const;

 private:
  bool IsOurs(const std::string& path) const;
  std::string PathOf(const std::string& name) const;

  Worker& disk_;
  const std::string shares_folder_;
  const std::string nvml_path_;
  const std::optional<ContainerOptions> options_;
  std::map<std::string, nlohmann::json> written_;  // by share
};

}  // namespace prorata::agent
