#pragma once

// kubectl as a program: what a person's cluster is, and how it is reached, is kubectl's to know.

#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace prorata::kubernetes {

class Kubectl {
 public:
  // `options`: kubectl's own, as "--context=x", put before what is asked of it.
  explicit Kubectl(std::vector<std::string> options) : options_(std::move(options)) {}

  // Runs it to its end; what it printed. Thread-safe. Errors: "no_kubectl" (it cannot be started),
  // "kubectl_failed" with what it said.
  Result<std::string> Run(const std::vector<std::string>& arguments) const;

 private:
  std::vector<std::string> options_;
};

}  // namespace prorata::kubernetes
