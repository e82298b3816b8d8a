#include "kubernetes/resize/resizer.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>

namespace prorata::kubernetes {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::seconds kTryEvery{10};
constexpr std::chrono::seconds kPause{0};
constexpr std::chrono::seconds kReconcileTime{10};
constexpr char kComponent[] = "prorata-dra";

}  // namespace

Resizer::Resizer(KubeClient& client, Agent& agent, Claims& claims, const std::string& node,
                 std::function<void()> changed)
    : events_(client, kComponent, node),
      resizes_(claims, agent, events_, std::move(changed)),
      reconcile_(kTryEvery, kPause, [this] { Reconcile(); }),
      pods_(client, node, [this] { Changed(); }) {}

std::vector<PodReference> Resizer::PodsOf(const ClaimReference& claim) const {
  std::vector<PodReference> found;
  for (const PodView& pod : pods_.Pods().value_or(std::vector<PodView>())) {
    const bool has_it =
        pod.name_space == claim.name_space &&
        std::ranges::any_of(pod.claims, [&](const auto& own) { return own.name == claim.name; });
    if (has_it) found.push_back({pod.name_space, pod.name, pod.uid});
  }
  return found;
}

void Resizer::Reconcile() {
  const auto pods = pods_.Pods();
  if (!pods || pods->empty()) return;
  const auto outcome = resizes_.Reconcile(*pods, steady_clock::now() + kReconcileTime);
  const std::string now = outcome ? "" : outcome.error().message;
  if (now != trouble_ && !outcome) {
    spdlog::warn("shares cannot be resized: {}; it is tried again every {} s", now,
                 kTryEvery.count());
  }
  trouble_ = now;
}

}  // namespace prorata::kubernetes
