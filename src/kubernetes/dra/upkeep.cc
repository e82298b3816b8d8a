#include "kubernetes/dra/upkeep.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

namespace prorata::kubernetes {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// What no event reports, such as the memory of programs outside of all shares, is seen this late.
constexpr milliseconds kLookEvery{5'000};
// Between two writes of the slice, which every scheduler and autoscaler reads.
constexpr milliseconds kPause{200};
constexpr milliseconds kWatchPause{1'000};
constexpr milliseconds kAgentTime{10'000};
const nlohmann::json::json_pointer kVersionOfList("/metadata/resourceVersion");

}  // namespace

Upkeep::Upkeep(KubeClient& client, Agent& agent, Claims& claims, const std::string& node)
    : agent_(agent), claims_(claims), client_(client), publisher_(client, node) {
  worker_ = std::thread([this] { Run(); });
  watcher_ = std::thread([this] { WatchSlice(); });
}

Upkeep::~Upkeep() {
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  due_.notify_all();
  worker_.join();
  watcher_.join();
}

void Upkeep::Registered() {
  {
    const std::lock_guard lock(mutex_);
    registered_ = stale_due_ = kicked_ = true;
  }
  publisher_.Invalidate();
  due_.notify_all();
}

void Upkeep::Changed() {
  {
    const std::lock_guard lock(mutex_);
    kicked_ = true;
  }
  due_.notify_all();
}

bool Upkeep::SleepUntilDue(milliseconds most) {
  std::unique_lock lock(mutex_);
  due_.wait_for(lock, most, [this] { return stopped_ || kicked_; });
  kicked_ = false;
  return !stopped_;
}

void Upkeep::Run() {
  while (SleepUntilDue(kLookEvery)) {
    bool registered;
    {
      const std::lock_guard lock(mutex_);
      registered = registered_;
    }
    if (!registered) continue;
    PublishOnce();
    RemoveStale();
    std::unique_lock lock(mutex_);
    due_.wait_for(lock, kPause, [this] { return stopped_.load(); });
  }
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
  {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(stale_due_, false)) return;
  }
  const auto removed = claims_.RemoveStale(steady_clock::now() + kAgentTime);
  Report("shares of claims that are gone cannot be removed",
         removed ? Status{} : std::unexpected(removed.error()), &stale_trouble_);
  if (!removed) {
    const std::lock_guard lock(mutex_);
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

void Upkeep::WatchSlice() {
  const auto changed = [this](const nlohmann::json&) {
    publisher_.Invalidate();
    Changed();
  };
  while (!stopped_) {
    // A watch without a version would miss a deletion between the publisher's reading and the
    // watch's beginning, and a kubelet that starts deletes the slice.
    const auto list = client_.Get(publisher_.ListPath());
    // What happened before that is seen by reading it anew.
    changed({});
    Status ended = list ? Status{} : std::unexpected(list.error());
    if (list) {
      const std::string version = list->value(kVersionOfList, std::string());
      ended = client_.Watch(publisher_.WatchPath(version), changed, stopped_);
    }
    if (ended) continue;
    std::unique_lock lock(mutex_);
    due_.wait_for(lock, kWatchPause, [this] { return stopped_.load(); });
  }
}

}  // namespace prorata::kubernetes
