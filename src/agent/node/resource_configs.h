#pragma once

// The resource-config.txt files that the agent's options name: read when it starts and whenever
// they change. A file that is bad, or asks for what cannot be had, leaves all as it was and is
// reported; what cannot be had is tried again each second, for room may come.

#include <boost/asio/io_context.hpp>
#include <memory>
#include <optional>
#include <vector>

#include "agent/config/resource_config.h"
#include "agent/node/node.h"
#include "agent/runtime/file_watch.h"

namespace prorata::agent {

class ResourceConfigs {
 public:
  ResourceConfigs(boost::asio::io_context& loop, Node& node) : loop_(loop), node_(node) {}

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
  Node& node_;
  std::vector<std::unique_ptr<File>> files_;
};

}  // namespace prorata::agent
