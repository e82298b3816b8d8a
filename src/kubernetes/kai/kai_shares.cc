#include "kubernetes/kai/kai_shares.h"

#include <spdlog/spdlog.h>

#include <algorithm>

namespace prorata::kubernetes {
namespace {

constexpr char kShareDevice[] = "prorata.dev/share=";

std::string Describe(const RuntimePod& pod, const RuntimeContainer& container) {
  return pod.name_space + "/" + pod.name + "/" + container.name;
}

// A container that was made while this plugin was not there.
bool IsUnlimited(const RuntimePod& pod, const RuntimeContainer& container) {
  const auto part = KaiPartOf(pod, container);
  return !part || part->has_value();
}

}  // namespace

KaiShares::Pods KaiShares::RunningOf(const std::vector<RuntimePod>& pods,
                                     const std::vector<RuntimeContainer>& containers) {
  Pods running;
  for (const RuntimePod& pod : pods) {
    std::set<std::string> in_it;
    for (const RuntimeContainer& container : containers) {
      if (container.pod_id == pod.id && !container.stopped) in_it.insert(container.id);
    }
    // A runtime that does not say whether the sandbox runs still says it of containers.
    if (pod.runs || !in_it.empty()) running[pod.uid] = {pod.id, true, std::move(in_it)};
  }
  return running;
}

void KaiShares::Synchronized(const std::vector<RuntimePod>& pods,
                             const std::vector<RuntimeContainer>& containers) {
  Pods running = RunningOf(pods, containers);
  for (const RuntimePod& pod : pods) {
    for (const RuntimeContainer& container : containers) {
      if (container.pod_id != pod.id || container.stopped || !IsUnlimited(pod, container)) continue;
      spdlog::warn(
          "container {} has part of a GPU by KAI and is not held to it: it started while this "
          "plugin was not connected. Delete the pod, to have it made anew with its limits",
          Describe(pod, container));
    }
  }
  {
    const std::lock_guard lock(mutex_);
    running_ = std::move(running);
  }
  stale_();
}

Result<std::vector<std::string>> KaiShares::CreateContainer(const RuntimePod& pod,
                                                            const RuntimeContainer& container,
                                                            Agent::Deadline deadline) {
  const auto part = KaiPartOf(pod, container);
  Status made = part ? Status{} : std::unexpected(part.error());
  if (made && !part->has_value()) return std::vector<std::string>();
  ContainerRuns(pod, container);
  if (made) made = MakeShare(**part, pod, container.name, deadline);
  if (!made) {
    spdlog::error("container {} is not made: {}", Describe(pod, container), made.error().message);
    return Fail(made.error().code, "prorata: " + made.error().message);
  }
  return std::vector<std::string>{kShareDevice + ShareNameOfKaiPod(pod.uid)};
}

Status KaiShares::MakeShare(const KaiPart& part, const RuntimePod& pod,
                            const std::string& container, Agent::Deadline deadline) {
  const std::string name = ShareNameOfKaiPod(pod.uid);
  const auto held = locks_.Lock(name, deadline);
  if (!held) return Fail("busy", "another call for share '" + name + "' has not ended yet");
  const auto state = agent_.List(deadline);
  if (!state) return std::unexpected(state.error());
  const auto spec = KaiShare(part, pod, container, state->devices);
  if (!spec) return std::unexpected(spec.error());
  const auto share = agent_.Create(*spec, deadline);
  if (!share) return std::unexpected(share.error());
  spdlog::info("container {}/{}/{} has share {}", pod.name_space, pod.name, container, name);
  return {};
}

void KaiShares::PodRuns(const RuntimePod& pod) {
  const std::lock_guard lock(mutex_);
  if (running_) (*running_)[pod.uid] = {pod.id};
}

void KaiShares::ContainerRuns(const RuntimePod& pod, const RuntimeContainer& container) {
  const std::lock_guard lock(mutex_);
  if (!running_) return;
  Pod& its = (*running_)[pod.uid];
  if (its.sandbox != pod.id) its = {pod.id, true};  // else it would have been reported
  its.containers.insert(container.id);
}

void KaiShares::ContainerStopped(const RuntimePod& pod, const RuntimeContainer& container) {
  {
    const std::lock_guard lock(mutex_);
    if (!running_) return;
    const auto found = running_->find(pod.uid);
    if (found == running_->end() || found->second.containers.erase(container.id) == 0) return;
    if (!found->second.Doubtful()) return;
  }
  stale_();
}

void KaiShares::PodEnded(const RuntimePod& pod) {
  {
    const std::lock_guard lock(mutex_);
    if (!running_) return;
    const auto found = running_->find(pod.uid);
    // A pod whose sandbox died has another one by now.
    if (found == running_->end() || found->second.sandbox != pod.id) return;
    running_->erase(found);
  }
  stale_();
}

void KaiShares::Disconnected() {
  const std::lock_guard lock(mutex_);
  running_.reset();
}

std::optional<bool> KaiShares::Runs(const std::string& pod_uid) {
  const std::lock_guard lock(mutex_);
  if (!running_) return std::nullopt;
  return running_->contains(pod_uid);
}

Result<std::vector<std::string>> KaiShares::RemoveStale(Agent::Deadline deadline) {
  const auto state = agent_.List(deadline);
  if (!state) return std::unexpected(state.error());
  std::vector<std::string> removed;
  for (const api::ShareStatus& share : state->shares) {
    const auto uid = KaiPodOfShare(share.name);
    if (!uid || share.ended || share.kept_by.kind != api::KeptBy::Kind::kHold) continue;
    const auto stale = RemoveIfStale(share.name, *uid, deadline);
    if (!stale) return std::unexpected(stale.error());
    if (*stale) removed.push_back(share.name);
  }
  return removed;
}

Result<bool> KaiShares::Doubtful(Agent::Deadline deadline) {
  const auto state = agent_.List(deadline);
  if (!state) return std::unexpected(state.error());
  const std::lock_guard lock(mutex_);
  return running_ && std::ranges::any_of(state->shares, [this](const api::ShareStatus& share) {
           const auto found = running_->find(KaiPodOfShare(share.name).value_or(""));
           return !share.ended && found != running_->end() && found->second.Doubtful();
         });
}

void KaiShares::Confirm(const std::vector<RuntimePod>& pods,
                        const std::vector<RuntimeContainer>& containers) {
  const Pods running = RunningOf(pods, containers);
  const std::lock_guard lock(mutex_);
  if (!running_) return;
  std::erase_if(*running_, [&](const auto& pod) {
    const auto now = running.find(pod.first);
    const bool runs = now != running.end() && now->second.sandbox == pod.second.sandbox;
    return pod.second.Doubtful() && !runs;
  });
}

Result<bool> KaiShares::RemoveIfStale(const std::string& name, const std::string& pod_uid,
                                      Agent::Deadline deadline) {
  const auto held = locks_.Lock(name, deadline);
  if (!held) return Fail("busy", "another call for share '" + name + "' has not ended yet");
  if (Runs(pod_uid).value_or(true)) return false;
  if (auto ok = agent_.Remove(name, deadline); !ok) return std::unexpected(ok.error());
  return true;
}

}  // namespace prorata::kubernetes
