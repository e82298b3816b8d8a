#pragma once

#include <string>

namespace prorata::agent {

struct ContainerOptions {
  std::string cdi_folder;      // where container engines look for specifications
  std::string library_folder;  // the client library's
  std::string program;         // prorata's own, for hooks; "": there are none
};

}  // namespace prorata::agent
