#pragma once

// The resource-config.txt files that the agent's options name: read when it starts and whenever
// they change. A file that is bad, or asks for what cannot be had, leaves all as it was and is
// reported; what cannot be had is tried again each second, for room may come.

#include <boost/asio/io_context.hpp>
#include <memory>
#include <optional>
#include <vector>

#include "agent/config/resource_config.h"
#include "agent/node/file_shares.h"
#include "agent/runtime/devices.h"
#include "agent/runtime/file_watch.h"
#include "agent/share/events.h"

namespace prorata::agent {

class ResourceConfigs {
 public:
  // All must outlive it.
  ResourceConfigs(boost::asio::io_context& loop, const Devices& devices, FileShares& shares,
                  Events& events)
      : loop_(loop), devices_(devices), shares_(shares), events_(events) {}

  // Before shares are taken over. "unknown_gpu", "bad_resource_config".
  Status Name(const std::vector<agent::ResourceConfigFile>& files);
  // After that. A bad file is an error where no share of it was taken over, whose settings could
  // stay in force.
  Status Start();

 private:
  struct File {
    size_t device = 0;
    std::unique_ptr<FileWatch> watch;
    std::optional<std::vector<agent::ResourceClient>> pending;  // could not be had yet
    std::string reported;                                       // what was last said to be wrong
  };
  Status Load(File& file);
  Status Apply(File& file, const std::vector<agent::ResourceClient>& clients);
  void OnChange(File& file);
  void TryAgain(File& file);
  void Report(File& file, const Error& error);

  boost::asio::io_context& loop_;
  const Devices& devices_;
  FileShares& shares_;
  Events& events_;
  std::vector<std::unique_ptr<File>> files_;
};

}  // namespace prorata::agent
