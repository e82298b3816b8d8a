#include "kubernetes/extender/account.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <tuple>

namespace prorata::kubernetes {
namespace {

namespace placement = policy::placement;
using placement::GpuMask;
using placement::NodeIndex;
using placement::Request;

constexpr int32_t kMilliPerPercent = placement::kGpuMilli / kWholeGpuPercent;

Request RequestFor(const ContainerRequest& request) {
  return {.gpu_count = static_cast<int32_t>(request.gpu_count),
          .gpu_milli = static_cast<int32_t>(request.compute_percent) * kMilliPerPercent,
          .gpu_memory_mib = static_cast<int32_t>(request.memory_units * kMemoryUnitMib)};
}

GpuMask MaskOfFirst(size_t count) { return static_cast<GpuMask>((1u << count) - 1); }

GpuMask MaskOf(const std::vector<NodeGpu>& gpus, const std::vector<std::string>& uuids) {
  GpuMask mask = 0;
  for (size_t i = 0; i < gpus.size() && i < placement::kMaxGpusPerNode; ++i) {
    if (std::ranges::find(uuids, gpus[i].uuid) != uuids.end())
      mask = static_cast<GpuMask>(mask | 1u << i);
  }
  return mask;
}

void TakeFrom(placement::NodeState* state, const Request& request, GpuMask gpus) {
  for (uint32_t rest = gpus; rest != 0; rest &= rest - 1) {
    const int gpu = std::countr_zero(rest);
    state->gpu_left_milli[gpu] =
        static_cast<int16_t>(state->gpu_left_milli[gpu] - request.gpu_milli);
    state->gpu_memory_left_mib[gpu] -= request.gpu_memory_mib;
  }
}

}  // namespace

Account::Account() : workload_(placement::ExpectedWorkload()) {}
Account::~Account() = default;

void Account::SetNode(const std::string& name, std::vector<NodeGpu> gpus) {
  const auto [node, is_new] = nodes_.try_emplace(name);
  if (gpus.size() > placement::kMaxGpusPerNode) gpus.resize(placement::kMaxGpusPerNode);
  // A new one has no index in the cluster yet, with GPUs or without.
  if (!is_new && node->second.gpus == gpus) return;
  node->second.gpus = std::move(gpus);
  stale_ = true;
}

void Account::RemoveNode(const std::string& name) {
  if (nodes_.erase(name) > 0) stale_ = true;
}

void Account::KeepOnlyNodes(const std::unordered_set<std::string>& names) {
  if (std::erase_if(nodes_, [&](const auto& node) { return !names.contains(node.first); }) > 0) {
    stale_ = true;
  }
}

void Account::SetBound(const std::string& uid, const std::string& node,
                       std::span<const ContainerRequest> requests, const AssignedGpus& assigned,
                       const std::string& group) {
  const auto [found, is_new] = pods_.try_emplace(uid);
  Pod& pod = found->second;
  pod.group = group;
  if (const auto waiting = waiting_.find(group); waiting != waiting_.end()) {
    waiting->second.erase(uid);
    if (waiting->second.empty()) waiting_.erase(waiting);
  }
  pod.until.reset();
  if (!is_new && pod.node == node && pod.assigned == assigned &&
      std::ranges::equal(pod.requests, requests)) {
    return;
  }
  RemovePieces(&pod);
  pod.node = node;
  pod.requests.assign(requests.begin(), requests.end());
  pod.assigned = assigned;
  if (!stale_) AddPieces(&pod);
}

void Account::SetWaiting(const std::string& uid, std::span<const ContainerRequest> requests,
                         const std::string& group) {
  waiting_[group][uid].assign(requests.begin(), requests.end());
}

void Account::Remove(const std::string& uid) {
  for (auto& [group, waiting] : waiting_) waiting.erase(uid);
  std::erase_if(waiting_, [](const auto& group) { return group.second.empty(); });
  RemovePlace(uid);
}

void Account::RemovePlace(const std::string& uid) {
  const auto found = pods_.find(uid);
  if (found == pods_.end()) return;
  RemovePieces(&found->second);
  pods_.erase(found);
  // Something else may count in full now.
  stale_ = stale_ || squeezed_;
}

void Account::KeepOnlyPods(const std::unordered_set<std::string>& uids) {
  std::vector<std::string> gone;
  for (const auto& [uid, pod] : pods_) {
    if (!pod.until && !uids.contains(uid)) gone.push_back(uid);
  }
  for (const auto& [group, waiting] : waiting_) {
    for (const auto& [uid, requests] : waiting) {
      if (!uids.contains(uid)) gone.push_back(uid);
    }
  }
  for (const std::string& uid : gone) Remove(uid);
}

void Account::Expire(Time now) {
  if (now < first_expiry_) return;
  first_expiry_ = Time::max();
  std::vector<std::string> over;
  for (auto& [uid, pod] : pods_) {
    if (!pod.until) continue;
    // Some of its group run already: without the others they would be of no use.
    if (*pod.until <= now && !pod.group.empty() && CountBound(pod.group) > 0) {
      pod.until = now + kGroupAssumedFor;
    }
    if (*pod.until <= now) {
      over.push_back(uid);
    } else {
      first_expiry_ = std::min(first_expiry_, *pod.until);
    }
  }
  for (const std::string& uid : over) RemovePlace(uid);
}

void Account::Build() {
  if (!stale_) return;
  stale_ = squeezed_ = false;
  models_.clear();
  cluster_ = std::make_unique<placement::Cluster>(workload_);
  for (auto& [name, node] : nodes_) AddNode(&node);
  table_ = std::make_unique<placement::ScoreTable>(*cluster_);
  for (const bool bound : {true, false}) {
    for (auto& [uid, pod] : pods_) {
      if (!pod.until != bound) continue;
      pod.pieces.clear();
      AddPieces(&pod);
    }
  }
}

void Account::AddNode(Node* node) {
  node->models.clear();
  for (size_t i = 0; i < node->gpus.size(); ++i) {
    const size_t model = models_.try_emplace(node->gpus[i].model, models_.size()).first->second;
    auto of_model = std::ranges::find(node->models, model, &GpusOfModel::model);
    if (of_model == node->models.end()) of_model = node->models.insert(of_model, {model, 0});
    of_model->gpus = static_cast<GpuMask>(of_model->gpus | 1u << i);
  }
  uint32_t units = 0;
  for (const NodeGpu& gpu : node->gpus) units = std::max(units, gpu.memory_units);
  const auto memory_mib = static_cast<int32_t>(units * kMemoryUnitMib);
  placement::NodeSpec spec;
  spec.gpu_count = units == 0 ? 0 : static_cast<int32_t>(node->gpus.size());
  spec.gpu_memory_mib = memory_mib;
  node->index = cluster_->AddNode(spec);
  for (int i = 0; i < spec.gpu_count; ++i) {
    const NodeGpu& gpu = node->gpus[i];
    const int32_t milli =
        placement::kGpuMilli - static_cast<int32_t>(gpu.compute_percent) * kMilliPerPercent;
    const auto mib = static_cast<int32_t>(memory_mib - gpu.memory_units * kMemoryUnitMib);
    if (milli == 0 && mib == 0) continue;
    cluster_->Add({.gpu_count = 1, .gpu_milli = milli, .gpu_memory_mib = mib}, {},
                  {node->index, node->index, static_cast<GpuMask>(1u << i)}, false);
  }
}

void Account::AddPieces(Pod* pod) {
  const auto node = nodes_.find(pod->node);
  if (node == nodes_.end()) return;
  const NodeIndex at = node->second.index;
  for (const ContainerRequest& container : pod->requests) {
    if (container.kind == ContainerKind::kInit) continue;
    const auto assigned = pod->assigned.find(container.name);
    if (assigned == pod->assigned.end()) continue;
    const Request request = RequestFor(container);
    const GpuMask gpus = MaskOf(node->second.gpus, assigned->second);
    if (const auto share = cluster_->Add(request, {}, {at, at, gpus})) {
      pod->pieces.push_back({request, gpus, *share});
      continue;
    }
    squeezed_ = true;
    for (uint32_t rest = gpus; rest != 0; rest &= rest - 1) {
      const int gpu = std::countr_zero(rest);
      const placement::NodeState& state = cluster_->node(at);
      const Request less = {
          .gpu_count = 1,
          .gpu_milli = std::min<int32_t>(request.gpu_milli, state.gpu_left_milli[gpu]),
          .gpu_memory_mib = std::min(request.gpu_memory_mib, state.gpu_memory_left_mib[gpu])};
      const auto one = static_cast<GpuMask>(1u << gpu);
      if (const auto share = cluster_->Add(less, {}, {at, at, one})) {
        pod->pieces.push_back({less, one, *share});
      }
    }
  }
}

void Account::RemovePieces(Pod* pod) {
  // Of a stale account nothing is left but to build it anew.
  for (const Piece& piece : pod->pieces) {
    if (!stale_) cluster_->Remove(piece.share);
  }
  pod->pieces.clear();
}

// The largest first: what is small still finds a place after it.
std::vector<Account::Wanted> Account::WantedOf(std::span<const ContainerRequest> requests) const {
  std::vector<Wanted> wanted;
  for (const ContainerRequest& request : requests) {
    if (request.kind == ContainerKind::kInit) continue;
    std::vector<bool> models(models_.size());
    for (const auto& [name, model] : models_) models[model] = request.choice.AllowsModel(name);
    wanted.push_back({&request, RequestFor(request), request.choice.Empty(), std::move(models)});
  }
  std::ranges::stable_sort(wanted, std::greater(), [](const Wanted& one) {
    return std::tuple(one.container->gpu_count, one.container->compute_percent,
                      one.container->memory_units);
  });
  return wanted;
}

const placement::Tournament* Account::KeptScores(std::span<const Wanted> wanted) {
  return wanted.size() == 1 ? &table_->Scores(wanted.front().request, false) : nullptr;
}

bool Account::ScoreOn(std::span<const Wanted> wanted, const Node& node,
                      const placement::Tournament* kept, Plan* plan) const {
  if (kept == nullptr) return PlanOn(wanted, node, plan);
  plan->score = kept->score(node.index);
  if (plan->score == placement::Tournament::kAbsent) return false;
  if (wanted.front().any_gpu) return true;
  const bool all = AllowedGpus(wanted.front(), node) == MaskOfFirst(node.gpus.size());
  return all || PlanOn(wanted, node, plan);
}

GpuMask Account::AllowedGpus(const Wanted& wanted, const Node& node) {
  GpuMask mask = 0;
  for (const GpusOfModel& one : node.models) {
    if (wanted.models[one.model]) mask = static_cast<GpuMask>(mask | one.gpus);
  }
  const GpuChoice& choice = wanted.container->choice;
  if (choice.uuids == GpuChoice::Names{}) return mask;
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int gpu = std::countr_zero(rest);
    if (!choice.AllowsUuid(node.gpus[gpu].uuid)) mask &= static_cast<GpuMask>(~(1u << gpu));
  }
  return mask;
}

bool Account::PlanOn(std::span<const Wanted> wanted, const Node& node, Plan* plan) const {
  plan->gpus.clear();
  plan->score = 0;
  placement::NodeState state = cluster_->node(node.index);
  for (const Wanted& one : wanted) {
    const auto allowed =
        static_cast<GpuMask>(AllowedGpus(one, node) & MaskOfFirst(state.gpu_count));
    if (std::popcount(static_cast<GpuMask>(placement::FittingGpus(one.request, state) & allowed)) <
        one.request.gpu_count) {
      return false;
    }
    const placement::NodeView view(workload_, state);
    const auto scored = table_->scorer().Score(one.request, node.index, state, view, allowed);
    if (!scored) return false;
    TakeFrom(&state, one.request, scored->gpus);
    plan->gpus.push_back(scored->gpus);
    plan->score += scored->score;
  }
  return true;
}

bool Account::CouldEverFit(std::span<const Wanted> wanted, const Node& node) {
  return std::ranges::all_of(wanted, [&](const Wanted& one) {
    uint32_t enough = 0;
    for (uint32_t rest = AllowedGpus(one, node); rest != 0; rest &= rest - 1) {
      const NodeGpu& gpu = node.gpus[std::countr_zero(rest)];
      enough += gpu.memory_units >= one.container->memory_units &&
                gpu.compute_percent >= one.container->compute_percent;
    }
    return enough >= one.container->gpu_count;
  });
}

Account::Filtered Account::Look(std::span<const ContainerRequest> requests,
                                std::span<const std::string> nodes) {
  Build();
  Filtered filtered;
  filtered.fits.reserve(nodes.size());
  const std::vector<Wanted> wanted = WantedOf(requests);
  const placement::Tournament* kept = KeptScores(wanted);
  Plan plan;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const auto node = nodes_.find(nodes[i]);
    const bool known = node != nodes_.end();
    if (!known || !ScoreOn(wanted, node->second, kept, &plan)) {
      const bool later = known && CouldEverFit(wanted, node->second);
      (later ? filtered.full : filtered.too_big).push_back(i);
      continue;
    }
    if (!filtered.best || plan.score < filtered.fits[*filtered.best].score) {
      filtered.best = filtered.fits.size();
    }
    filtered.fits.push_back({i, plan.score});
  }
  return filtered;
}

Account::Filtered Account::Filter(const std::string& uid,
                                  std::span<const ContainerRequest> requests,
                                  std::span<const std::string> nodes, Time now) {
  Expire(now);
  if (const auto own = pods_.find(uid); own != pods_.end() && own->second.until) RemovePlace(uid);
  Filtered filtered = Look(requests, nodes);
  if (filtered.best) {
    Plan plan;
    const std::vector<Wanted> wanted = WantedOf(requests);
    const std::string& best = nodes[filtered.fits[*filtered.best].node];
    // One that is bound already keeps its place: the scheduler will hear of it, too.
    if (!pods_.contains(uid) && PlanOn(wanted, nodes_.at(best), &plan)) {
      Assume(uid, requests, best, plan, now + kAssumedFor);
    }
  }
  return filtered;
}

void Account::Assume(const std::string& uid, std::span<const ContainerRequest> requests,
                     const std::string& node, const Plan& plan, Time until) {
  Pod pod{node, {requests.begin(), requests.end()}, {}, until};
  pod.assigned = AssignmentOf(requests, plan, nodes_.at(node));
  AddPieces(&pod);
  pods_.insert_or_assign(uid, std::move(pod));
  first_expiry_ = std::min(first_expiry_, until);
}

AssignedGpus Account::AssignmentOf(std::span<const ContainerRequest> requests, const Plan& plan,
                                   const Node& node) const {
  AssignedGpus assigned;
  const std::vector<Wanted> wanted = WantedOf(requests);
  for (size_t i = 0; i < wanted.size(); ++i) {
    for (uint32_t rest = plan.gpus[i]; rest != 0; rest &= rest - 1) {
      assigned[wanted[i].container->name].push_back(node.gpus[std::countr_zero(rest)].uuid);
    }
  }
  // An init container uses the GPUs of the first container that has as much.
  for (const ContainerRequest& init : requests) {
    if (init.kind != ContainerKind::kInit) continue;
    const auto later = std::ranges::find_if(
        requests, [&](const ContainerRequest& other) { return Covers(other, init); });
    std::vector<std::string> gpus = assigned.at(later->name);
    gpus.resize(init.gpu_count);
    assigned[init.name] = std::move(gpus);
  }
  return assigned;
}

Result<AssignedGpus> Account::Bind(const std::string& uid,
                                   std::span<const ContainerRequest> requests,
                                   const std::string& node, Time now) {
  Expire(now);
  Build();
  const auto known = nodes_.find(node);
  if (known == nodes_.end()) {
    return Fail("unknown_node", "node '" + node + "' has no GPUs of prorata");
  }
  const auto own = pods_.find(uid);
  const bool assumed = own != pods_.end() && own->second.until && own->second.node == node &&
                       std::ranges::equal(own->second.requests, requests);
  if (assumed) {
    own->second.until = now + kBoundUnreportedFor;
    return own->second.assigned;
  }
  if (own != pods_.end() && !own->second.until) {
    return Fail("bound", "the pod is bound to node '" + own->second.node + "' already");
  }
  // The scheduler chose another node than ours, or took its time.
  const std::string group = own != pods_.end() ? own->second.group : "";
  if (own != pods_.end()) RemovePlace(uid);
  Build();
  Plan plan;
  if (!PlanOn(WantedOf(requests), known->second, &plan)) {
    return Fail("full", "node '" + node + "' has no room for the pod's GPU parts any more");
  }
  Assume(uid, requests, node, plan, now + kBoundUnreportedFor);
  pods_.at(uid).group = group;
  return pods_.at(uid).assigned;
}

void Account::Unbind(const std::string& uid) {
  const auto own = pods_.find(uid);
  if (own != pods_.end() && own->second.until) RemovePlace(uid);
}

std::optional<std::vector<ContainerRequest>> Account::RequestsOf(const std::string& uid) const {
  const auto found = pods_.find(uid);
  if (found == pods_.end()) return std::nullopt;
  return found->second.requests;
}

std::vector<int> PrioritiesOf(const Account::Filtered& filtered, int highest) {
  std::vector<int> priorities(filtered.fits.size(), 0);
  if (!filtered.best) return priorities;
  int64_t worst = 0;
  for (const auto& fit : filtered.fits) worst = std::max(worst, fit.score);
  const int64_t best = filtered.fits[*filtered.best].score;
  for (size_t i = 0; i < priorities.size(); ++i) {
    if (worst == best) break;
    priorities[i] =
        static_cast<int>((highest - 1) * (worst - filtered.fits[i].score) / (worst - best));
  }
  priorities[*filtered.best] = highest;
  return priorities;
}

Account::Counts Account::counts() const {
  const size_t bound =
      std::ranges::count_if(pods_, [](const auto& pod) { return !pod.second.until; });
  return {nodes_.size(), bound, pods_.size() - bound};
}

}  // namespace prorata::kubernetes
