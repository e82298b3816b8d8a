#include "kubernetes/extender/extender.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace prorata::kubernetes {
namespace {

using nlohmann::json;
using std::chrono::steady_clock;

constexpr char kNotReady[] =
    "prorata's extender has not read the cluster's nodes and pods yet; the pod is tried again";

// "8 GiB and 30% of its time", of each container that needs a place.
std::string DescribeAll(std::span<const ContainerRequest> requests) {
  std::string text;
  for (const ContainerRequest& request : requests) {
    if (request.kind == ContainerKind::kInit) continue;
    if (!text.empty()) text += " + ";
    if (request.gpu_count > 1) text += std::to_string(request.gpu_count) + " x ";
    text += DescribeRequest(request);
  }
  return text;
}

std::string TextAt(const json& object, const char* pointer) {
  return object.value(json::json_pointer(pointer), "");
}

}  // namespace

Extender::Extender(KubeClient& client, ResourceNames names)
    : client_(client),
      names_(std::move(names)),
      nodes_(client, "/api/v1/nodes", "the cluster's nodes",
             {[this](const json& node) { NodeChanged(node); },
              [this](const json& node) {
                const std::lock_guard lock(mutex_);
                known_nodes_.erase(node.at("metadata").at("uid"));
                account_.RemoveNode(node.at("metadata").at("name"));
              },
              [this](const auto& uids) {
                const std::lock_guard lock(mutex_);
                std::erase_if(known_nodes_, [&](const auto& k) { return !uids.contains(k.first); });
                std::unordered_set<std::string> left;
                for (const auto& [uid, node] : known_nodes_) left.insert(node.name);
                account_.KeepOnlyNodes(left);
                nodes_listed_ = true;
              }}),
      pods_(client, "/api/v1/pods", "the cluster's pods",
            {[this](const json& pod) { PodChanged(pod); },
             [this](const json& pod) {
               const std::lock_guard lock(mutex_);
               account_.Remove(pod.at("metadata").at("uid"));
             },
             [this](const auto& uids) {
               const std::lock_guard lock(mutex_);
               account_.KeepOnlyPods(uids);
               pods_listed_ = true;
               const auto counts = account_.counts();
               spdlog::info("{} pods with GPUs on {} nodes", counts.bound, counts.nodes);
             }}) {}

bool Extender::Ready() {
  const std::lock_guard lock(mutex_);
  return nodes_listed_ && pods_listed_;
}

void Extender::NodeChanged(const json& node) {
  const std::string uid = node.at("metadata").at("uid");
  const std::string name = node.at("metadata").at("name");
  std::string text = AnnotationOf(node, kNodeGpusAnnotation).value_or("");
  const std::lock_guard lock(mutex_);
  const auto known = known_nodes_.find(uid);
  if (known != known_nodes_.end() && known->second.gpus == text) return;
  if (text.empty()) {
    if (known != known_nodes_.end()) account_.RemoveNode(name);
    known_nodes_.erase(uid);
    return;
  }
  auto gpus = ParseNodeGpus(text);
  if (!gpus) spdlog::warn("node '{}' has no GPUs for pods: {}", name, gpus.error().message);
  account_.SetNode(name, gpus ? std::move(*gpus) : std::vector<NodeGpu>{});
  known_nodes_.insert_or_assign(uid, KnownNode{name, std::move(text)});
}

void Extender::PodChanged(const json& pod) {
  const std::string uid = pod.at("metadata").at("uid");
  const std::string node = TextAt(pod, "/spec/nodeName");
  const std::string phase = TextAt(pod, "/status/phase");
  if (phase == "Succeeded" || phase == "Failed") {
    const std::lock_guard lock(mutex_);
    return account_.Remove(uid);
  }
  // A pod that somebody bound without GPUs gets none: its containers do not start.
  const auto text = AnnotationOf(pod, kAssignedGpusAnnotation);
  const auto group = GroupOf(pod);
  const bool in_group = group && *group;
  if (node.empty() ? !in_group : !text) return;
  const auto requests = GpuRequestsOf(pod, names_);
  if (!requests || requests->empty()) return;
  if (node.empty()) {
    const std::lock_guard lock(mutex_);
    return account_.SetWaiting(uid, *requests, (*group)->name);
  }
  const auto assigned = ParseAssignedGpus(*text);
  if (!assigned) return;
  const std::lock_guard lock(mutex_);
  account_.SetBound(uid, node, *requests, *assigned, in_group ? (*group)->name : "");
}

Result<std::string> Extender::Answer(std::string_view path, std::string_view body) {
  if (path == "/filter") return Filter(body);
  if (path == "/prioritize") return Prioritize(body);
  if (path == "/bind") return Bind(body);
  return Fail("not_found", "there are /filter, /prioritize, /bind and /healthz");
}

std::string Extender::Filter(std::string_view body) {
  const auto args = ParseExtenderArgs(body);
  if (!args) return FormatFilterError(args.error().message);
  FilterAnswer answer{.nodes = args->nodes, .fits = {}, .later = {}, .never = {}};
  const auto requests = GpuRequestsOf(args->pod, names_);
  const auto group = GroupOf(args->pod);
  if (!requests || (!group && !requests->empty())) {
    const Error& wrong = requests ? group.error() : requests.error();
    for (size_t i = 0; i < args->nodes.size(); ++i) answer.never.emplace_back(i, &wrong.message);
    return FormatFilterAnswer(answer);
  }
  if (requests->empty()) {
    for (size_t i = 0; i < args->nodes.size(); ++i) answer.fits.push_back(i);
    return FormatFilterAnswer(answer);
  }
  const std::lock_guard lock(mutex_);
  if (!nodes_listed_ || !pods_listed_) return FormatFilterError(kNotReady);
  const auto now = steady_clock::now();
  const auto filtered = *group
                            ? account_.FilterGroup(args->uid, **group, *requests, args->nodes, now)
                            : account_.Filter(args->uid, *requests, args->nodes, now);
  const std::vector<int> priorities = PrioritiesOf(filtered, kMaxPriority);
  last_uid_ = args->uid;
  last_scores_.clear();
  for (size_t i = 0; i < filtered.fits.size(); ++i) {
    answer.fits.push_back(filtered.fits[i].node);
    last_scores_.emplace_back(args->nodes[filtered.fits[i].node], priorities[i]);
  }
  if (filtered.best) {
    spdlog::info("placing pod {}/{} on node '{}'", TextAt(args->pod, "/metadata/namespace"),
                 TextAt(args->pod, "/metadata/name"),
                 args->nodes[filtered.fits[*filtered.best].node]);
  }
  const std::string wants = DescribeAll(*requests);
  const std::string full = "GPUs without room for " + wants + " (others have it)";
  const std::string none = std::string("no GPUs of prorata that are ") +
                           (requests->front().choice.Empty() ? "" : "as chosen and ") +
                           "large enough for " + wants;
  if (!filtered.group_waits.empty()) {
    for (size_t i = 0; i < args->nodes.size(); ++i) {
      answer.later.emplace_back(i, &filtered.group_waits);
    }
  }
  for (const size_t node : filtered.full) answer.later.emplace_back(node, &full);
  for (const size_t node : filtered.too_big) answer.never.emplace_back(node, &none);
  return FormatFilterAnswer(answer);
}

std::string Extender::Prioritize(std::string_view body) {
  const auto args = ParseExtenderArgs(body);
  if (!args) return "[]";
  std::vector<int> scores(args->nodes.size(), 0);
  const std::lock_guard lock(mutex_);
  // Some of the nodes that filter answered, in their order: other extenders may have dropped some.
  auto next = last_scores_.begin();
  for (size_t i = 0; i < scores.size() && args->uid == last_uid_; ++i) {
    const auto found = std::find_if(next, last_scores_.end(), [&](const auto& scored) {
      return scored.first == args->nodes[i];
    });
    if (found == last_scores_.end()) continue;
    scores[i] = found->second;
    next = std::next(found);
  }
  return FormatPriorities(args->nodes, scores);
}

std::string Extender::Bind(std::string_view body) {
  const auto args = ParseBindArgs(body);
  if (!args) return FormatBindAnswer(args.error().message);
  const auto bound = BindPod(*args);
  const std::string pod = args->name_space + "/" + args->name;
  if (!bound) {
    spdlog::warn("pod {} is not bound to node '{}': {}", pod, args->node, bound.error().message);
    return FormatBindAnswer(bound.error().message);
  }
  return FormatBindAnswer("");
}

Status Extender::BindPod(const BindArgs& args) {
  const auto requests = RequestsOf(args);
  if (!requests) return std::unexpected(requests.error());
  json metadata = {{"name", args.name}, {"namespace", args.name_space}, {"uid", args.uid}};
  if (!requests->empty()) {
    const std::lock_guard lock(mutex_);
    if (!nodes_listed_ || !pods_listed_) return Fail("not_ready", kNotReady);
    const auto assigned = account_.Bind(args.uid, *requests, args.node, steady_clock::now());
    if (!assigned) return std::unexpected(assigned.error());
    const std::string text = FormatAssignedGpus(*assigned);
    metadata["annotations"] = {{kAssignedGpusAnnotation, text}};
    spdlog::info("binding pod {}/{} to node '{}': {}", args.name_space, args.name, args.node, text);
  }
  const auto answer =
      client_.Post("/api/v1/namespaces/" + args.name_space + "/pods/" + args.name + "/binding",
                   {{"apiVersion", "v1"},
                    {"kind", "Binding"},
                    {"metadata", std::move(metadata)},
                    {"target", {{"apiVersion", "v1"}, {"kind", "Node"}, {"name", args.node}}}});
  if (answer) return {};
  // Without an answer it may have been bound: then the watch says so, or the assumption ends.
  if (answer.error().code != "api_unreachable") {
    const std::lock_guard lock(mutex_);
    account_.Unbind(args.uid);
  }
  return std::unexpected(answer.error());
}

Result<std::vector<ContainerRequest>> Extender::RequestsOf(const BindArgs& args) {
  {
    const std::lock_guard lock(mutex_);
    if (auto known = account_.RequestsOf(args.uid)) return std::move(*known);
  }
  const auto pod = client_.Get("/api/v1/namespaces/" + args.name_space + "/pods/" + args.name);
  if (!pod) return std::unexpected(pod.error());
  return GpuRequestsOf(*pod, names_);
}

}  // namespace prorata::kubernetes
