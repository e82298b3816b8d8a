#pragma once

#include <string>

namespace prorata::agent {

struct ContainerOptions {
  std::string cdi_folder;      // where container engines look for specifications
  std::string library_folder;  // the client library's
};

}  // namespace prorata::agent
