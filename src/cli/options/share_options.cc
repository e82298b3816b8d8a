#include "cli/options/share_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "base/duration.h"
#include "cli/options/users.h"

namespace prorata::cli {
namespace {

// "0,2" as its parts; nothing: one of them is missing.
std::optional<std::vector<std::string>> SplitGpus(const std::string& text) {
  std::vector<std::string> gpus;
  for (size_t from = 0; from <= text.size();) {
    const size_t comma = std::min(text.find(',', from), text.size());
    gpus.push_back(text.substr(from, comma - from));
    if (gpus.back().empty()) return std::nullopt;
    from = comma + 1;
  }
  return gpus;
}

Status FillGpus(const CLI::App& app, const RawShare& raw, ShareOptions* share) {
  if (app.count("--gpu") > 0) {
    auto gpus = SplitGpus(raw.gpu);
    if (!gpus) {
      return Fail("usage", "--gpu: '" + raw.gpu +
                               "' lacks an index or a UUID; `prorata gpus` "
                               "lists them, several are written 0,2");
    }
    for (const std::string& gpu : *gpus) {
      if (gpu.size() <= api::kMaxNameOfGpu) continue;
      return Fail("usage", "--gpu: '" + gpu.substr(0, 16) + "...' has " +
                               std::to_string(gpu.size()) +
                               " characters, and an index or UUID at "
                               "most " +
                               std::to_string(api::kMaxNameOfGpu) + "; `prorata gpus` lists them");
    }
    share->gpus = *gpus;
  }
  if (app.count("--gpus") > 0 && raw.gpus == "all") {
    share->all_gpus = true;
  } else if (app.count("--gpus") > 0) {
    const bool digits = !raw.gpus.empty() && raw.gpus.size() <= 2 &&
                        raw.gpus.find_first_not_of("0123456789") == std::string::npos;
    const uint32_t count = digits ? static_cast<uint32_t>(std::stoul(raw.gpus)) : 0;
    if (count == 0 || count > api::kMaxGpusOfShare) {
      return Fail("usage", "--gpus: '" + raw.gpus + "' is not a number of GPUs from 1 to " +
                               std::to_string(api::kMaxGpusOfShare) +
                               ", or all; GPUs are named by --gpu");
    }
    share->gpu_count = count;
  }
  if (!share->gpus.empty() && (share->gpu_count || share->all_gpus)) {
    return Fail("usage",
                "--gpu names the GPUs and --gpus leaves the choice to the agent; give one");
  }
  if (share->gpus.empty() && !share->all_gpus && !share->on.empty()) {
    return Fail("usage",
                "GPU " + share->on.front().gpu +
                    " has a value of its own, but --gpu does not "
                    "name the share's GPUs; write for example --gpu 0,2 --memory 0=4GiB,2=6GiB");
  }
  return {};
}

}  // namespace

void AddShareOptions(CLI::App* app, RawShare* raw, ShareOptions* share) {
  AddTermsOptions(app, &raw->terms,
                  {" (default: all that is free)",
                   " (default: all of --memory; nothing where the agent overcommits)",
                   " (default: 0)", " (default: 1, all that others leave)", " (default: 100)",
                   " (default: 0)", " (default: 2ms)", " (default: fail)", " (default: auto)"});
  app->add_flag("--guaranteed", share->guaranteed,
                "Guarantee the whole memory limit, also where the agent overcommits: the same as a "
                "--memory-request equal to --memory");
  app->add_option("--gpus", raw->gpus,
                  "Number of GPUs, which the agent chooses, the best-linked ones; or all of them "
                  "(default: 1)")
      ->option_text("N|all");
  app->add_option(
         "--gpu", raw->gpu,
         "The GPUs: indices or UUIDs, as `prorata gpus` shows them, e.g. 0,2 (default: the "
         "agent chooses)")
      ->option_text("GPU[,GPU...]");
  app->add_option("--share-memory-with", share->share_memory_with,
                  "Another share whose programs may open memory that this one's export; may be "
                  "given several times (default: none)")
      ->option_text("NAME")
      ->allow_extra_args(false);
  app->add_option("--allow-users", raw->allow_users,
                  "Other users whose programs may run on the share: names, ids or `all` (default: "
                  "none but you, root and the agent's user)")
      ->option_text("all|none|USER[,USER...]");
  app->add_flag("--wait", raw->wait,
                "Where there is no room now, wait in line until there is, or for at most DURATION; "
                "needs --memory (default: the share is refused)")
      ->option_text("[=DURATION]");
}

Status FillShare(const CLI::App& app, const RawShare& raw, ShareOptions* share) {
  api::ShareChange terms;
  if (auto ok = ReadTermsOptions(app, raw.terms, &terms); !ok) return ok;
  share->memory = terms.memory;
  share->memory_request = terms.memory_request;
  share->compute_request = terms.compute_request.value_or(share->compute_request);
  share->compute_limit = terms.compute_limit.value_or(share->compute_limit);
  share->weight = terms.weight.value_or(share->weight);
  share->priority = terms.priority.value_or(share->priority);
  share->yield_within_ns = terms.yield_within_ns.value_or(share->yield_within_ns);
  share->on = terms.on;
  share->on_full = terms.on_full.value_or(share->on_full);
  share->gang = terms.gang.value_or(share->gang);
  if (auto ok = FillGpus(app, raw, share); !ok) return ok;
  if (share->guaranteed && app.count("--memory-request") > 0) {
    return Fail("usage",
                "--guaranteed guarantees all of --memory and --memory-request another amount; "
                "give one");
  }
  const auto* named = app.get_option_no_throw("--name");  // `create` takes it without
  if (named != nullptr && named->count() > 0) {
    if (auto ok = api::ValidateShareName(share->name); !ok) {
      return Fail("usage", "--name: " + ok.error().message);
    }
  }
  if (app.count("--allow-users") > 0) {
    auto users = ReadUsers(raw.allow_users);
    if (!users) return std::unexpected(users.error());
    share->allow_users = std::move(*users);
  }
  if (app.count("--wait") > 0) {
    share->wait = true;
    if (raw.wait != "true") {
      const auto within = ParseDuration(raw.wait);
      if (!within || *within < kNsPerMs) {
        return Fail("usage", "--wait: '" + raw.wait +
                                 "' is not a span of time of a millisecond or more; write for "
                                 "example --wait=10m, or --wait alone for as long as it takes");
      }
      share->wait_ms = static_cast<uint64_t>(*within / kNsPerMs);
    }
  }
  if (share->share_memory_with.size() > api::kMaxSharedWith) {
    return Fail("usage", "--share-memory-with: more than " + std::to_string(api::kMaxSharedWith) +
                             " shares");
  }
  for (const std::string& name : share->share_memory_with) {
    if (auto ok = api::ValidateShareName(name); !ok) {
      return Fail("usage", "--share-memory-with: " + ok.error().message);
    }
  }
  return {};
}

}  // namespace prorata::cli
