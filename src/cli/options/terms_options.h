#pragma once

// The options that say a share's terms, on all of its GPUs or on single ones: "4GiB" for each GPU,
// "0=4GiB,2=6GiB" for those named, "4GiB,2=6GiB" for each but one.

#include <functional>
#include <string>

#include "api/control.h"
#include "base/result.h"

namespace CLI {
class App;
}

namespace prorata::cli {

// As typed.
struct RawTerms {
  std::string memory;
  std::string memory_request;
  std::string compute;
  std::string compute_limit;
  std::string weight;
  std::string priority;
  std::string yield_within;
  std::string on_full;
  std::string gang;
};

// Adds the options to a command; the texts of `without` say what happens without each.
void AddTermsOptions(CLI::App* app, RawTerms* raw, const RawTerms& without);

// Reads what was typed. The error is what follows "prorata: ".
Status ReadTermsOptions(const CLI::App& app, const RawTerms& raw, api::ShareChange* terms);

}  // namespace prorata::cli
