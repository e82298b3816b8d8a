#include "kubernetes/dra/upkeep.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <nlohmann/json.hpp>

namespace prorata::kubernetes {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// What no event reports, such as the memory of programs outside of all shares, is seen this late.
constexpr milliseconds kLookEvery{5'000};
// Between two writes of the slice, which every scheduler and autoscaler reads.
constexpr milliseconds kPause{200};
constexpr milliseconds kAgentTime{10'000};

}  // namespace

Upkeep::Upkeep(KubeClient& client, Agent& agent, Claims& claims, const std::string& node)
    : agent_(agent),
      claims_(claims),
      publisher_(client, node),
      look_(kLookEvery, kPause, [this] { Look(); }),
      slice_(client, publisher_.ListPath(), "the node's ResourceSlice",
             {[this](const auto&) { Invalidate(); }, [this](const auto&) { Invalidate(); },
              [this](const auto&) { Invalidate(); }}) {}

void Upkeep::Invalidate() {
  publisher_.Invalidate();
  Changed();
}

void Upkeep::Registered() {
  registered_ = true;
  stale_due_ = true;
  Invalidate();
}

void Upkeep::Look() {
  if (!registered_) return;
  PublishOnce();
  RemoveStale();
}

Status Upkeep::Publish() {
  const auto state = agent_.List(steady_clock::now() + kAgentTime);
  if (!state) return std::unexpected(state.error());
  const auto allocated = claims_.Prepared(*state);
  if (!allocated) return std::unexpected(allocated.error());
  return publisher_.Publish(*state, *allocated);
}

void Upkeep::PublishOnce() {
  const int64_t before = publisher_.writes();
  Status outcome = Publish();
  // Changed by somebody meanwhile: read it, and write again.
  if (!outcome && outcome.error().code == "conflict") outcome = Publish();
  Report("the node's ResourceSlice is not up to date", outcome, &publish_trouble_);
  if (publisher_.writes() != before) spdlog::info("published the node's ResourceSlice");
}

void Upkeep::RemoveStale() {
  if (!stale_due_.exchange(false)) return;
  const auto removed = claims_.RemoveStale(steady_clock::now() + kAgentTime);
  Report("shares of claims that are gone cannot be removed",
         removed ? Status{} : std::unexpected(removed.error()), &stale_trouble_);
  if (!removed) {
    stale_due_ = true;
    return;
  }
  for (const std::string& uid : *removed) {
    spdlog::info("removed the share of claim {}, which the cluster does not have any more", uid);
  }
}

void Upkeep::Report(const char* what, const Status& outcome, std::string* last) {
  const std::string now = outcome ? "" : outcome.error().message;
  if (now == *last) return;
  if (!outcome) {
    spdlog::warn("{}: {}; it is tried again every {} s", what, now, kLookEvery.count() / 1000);
  } else {
    spdlog::info("no longer: {}", what);
  }
  *last = now;
}

}  // namespace prorata::kubernetes
