#include "kubernetes/admission/review.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kubernetes/admission/base64.h"
#include "kubernetes/admission/bypass.h"
#include "kubernetes/admission/join_group.h"
#include "kubernetes/admission/older_systems.h"
#include "kubernetes/admission/pod_fields.h"
#include "kubernetes/admission/translate.h"
#include "kubernetes/pods/annotations.h"
#include "kubernetes/pods/container_wishes.h"
#include "kubernetes/pods/pod_group.h"

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

Result<bool> ToResources(Cluster& cluster, const ReviewOptions& options) {
  if (options.to != TranslateTo::kWhatTheClusterHas) return options.to == TranslateTo::kResources;
  const auto has_driver = cluster.HasDriver();
  if (!has_driver) return std::unexpected(has_driver.error());
  return !*has_driver;
}

// What becomes of a pod.
struct Verdict {
  json pod;
  std::vector<std::string> warnings;
};

// The entries of the pod's claims that are of prorata's class.
Result<std::vector<std::string>> OwnEntries(const json& pod, const std::string& name_space,
                                            Cluster& cluster) {
  std::vector<std::string> entries;
  for (const json& entry : pod.value(json::json_pointer("/spec/resourceClaims"), json::array())) {
    const auto own = cluster.IsOfProrata(name_space, entry);
    if (!own) return std::unexpected(own.error());
    if (*own) entries.push_back(NameOf(entry));
  }
  return entries;
}

Status CheckOneWay(const json& pod, const std::vector<std::string>& entries) {
  if (entries.empty()) return {};
  for (const json* container : ContainersOf(pod)) {
    if (!NamesGpuResources(*container)) continue;
    return BadAsk("the pod has the claim '" + entries.front() + "' for a part of a GPU, and its " +
                  "container '" + NameOf(*container) +
                  "' asks for one by extended resources as well; keep one of the two");
  }
  return {};
}

Status CheckAnnotations(const json& pod, const std::vector<std::string>& entries) {
  const auto wishes = ReadWishes(TextsOf(pod, "annotations"), entries);
  if (!wishes) return std::unexpected(wishes.error());
  return {};
}

bool HasResources(const json& pod, const ResourceNames& names) {
  for (const json* container : ContainersOf(pod)) {
    if (ResourceOf(*container, names.memory) || ResourceOf(*container, names.compute)) return true;
  }
  return false;
}

Result<PodAsks> AsksOf(const json& pod, const std::vector<std::string>& entries,
                       const ReviewOptions& options, bool to_resources) {
  Systems translate = options.translate;
  // They are what the others are translated to.
  if (to_resources) translate.erase("resources");
  auto asks = ReadAsks(pod, translate);
  if (!asks) return asks;
  if (!asks->asks.empty() && !entries.empty()) {
    return BadAsk("the pod has the claim '" + entries.front() +
                  "' for a part of a GPU, and asks for one in the names of " + asks->system +
                  " as well; keep one of the two");
  }
  const bool has_resources = to_resources && HasResources(pod, options.names);
  if (asks->asks.empty() && entries.empty() && !has_resources &&
      options.translate.contains("annotations")) {
    if (auto ok = ReadOwnAnnotations(pod, &*asks); !ok) return std::unexpected(ok.error());
  }
  const auto choice = GpuChoiceOf(pod);
  if (!choice) return std::unexpected(choice.error());
  for (GpuAsk& ask : asks->asks) {
    if (ask.choice.Empty()) ask.choice = *choice;
  }
  if (!choice->Empty() && !entries.empty()) {
    asks->warnings.push_back("annotation " +
                             std::string(choice->models == GpuChoice::Names{}
                                             ? kGpuUuidAnnotation
                                             : kGpuModelAnnotation) +
                             " has no effect on a claim; give its request a selector");
  }
  return asks;
}

// The pod with claims in place of what it asks for; their templates are made first.
Result<json> MakeTemplates(const json& pod, const PodAsks& asks, const std::string& name_space,
                           bool dry_run, Cluster& cluster) {
  const auto sizes = cluster.GpuSizes(Cluster::GpusOf::kSlices);
  if (!sizes) return std::unexpected(sizes.error());
  auto made = TranslateToClaims(pod, asks, *sizes);
  if (!made) return std::unexpected(made.error());
  for (const json& each : made->templates) {
    if (dry_run) break;
    if (auto ok = cluster.EnsureTemplate(name_space, each); !ok) {
      return std::unexpected(ok.error());
    }
  }
  return std::move(made->pod);
}

bool HasClaim(const json& container, const std::vector<std::string>& entries) {
  const json::json_pointer where("/resources/claims");
  const json claims = container.value(where, json::array());
  return std::ranges::any_of(claims, [&](const json& claim) {
    return std::ranges::find(entries, NameOf(claim)) != entries.end();
  });
}

Result<Verdict> JudgeNew(const json& request, Cluster& cluster, const ReviewOptions& options) {
  const json& pod = request.at("object");
  const std::string name_space = request.value("namespace", std::string());
  auto entries = OwnEntries(pod, name_space, cluster);
  if (!entries) return std::unexpected(entries.error());
  if (auto ok = CheckOneWay(pod, *entries); !ok) return std::unexpected(ok.error());
  const auto asks = AsksOf(pod, *entries, options, false);
  if (!asks) return std::unexpected(asks.error());
  for (const GpuAsk& ask : asks->asks) entries->push_back(ask.entry);
  if (entries->empty()) return Verdict{pod, {}};
  if (auto ok = CheckAnnotations(pod, *entries); !ok) return std::unexpected(ok.error());
  if (!options.allow_bypass) {
    if (auto ok = CheckBypass(pod); !ok) return std::unexpected(ok.error());
  }
  const bool dry_run = request.value("dryRun", json(false)) == json(true);
  Verdict verdict{pod, asks->warnings};
  if (!asks->asks.empty()) {
    auto made = MakeTemplates(pod, *asks, name_space, dry_run, cluster);
    if (!made) return std::unexpected(made.error());
    verdict.pod = std::move(*made);
  }
  if (!options.allow_bypass) {
    const auto has_share = [&](const json& container) { return HasClaim(container, *entries); };
    if (auto ok = CheckOneGpu(verdict.pod, has_share); !ok) return std::unexpected(ok.error());
  }
  if (auto ok = JoinGroup(name_space, dry_run, cluster, &verdict.pod, &verdict.warnings); !ok) {
    return std::unexpected(ok.error());
  }
  return verdict;
}

// The annotations of a pod with the device plugin's resources, all of which are of shares that it
// will have. Nothing: the pod has nothing to do with GPUs.
Result<bool> CheckPluginPod(const json& pod, const ReviewOptions& options) {
  const auto requests = GpuRequestsOf(pod, options.names);
  if (!requests) return std::unexpected(requests.error());
  if (requests->empty()) return false;
  if (const auto group = GroupOf(pod); !group) return std::unexpected(group.error());
  if (const auto wishes = WishesOf(pod, *requests); !wishes) {
    return std::unexpected(wishes.error());
  }
  return true;
}

Result<Verdict> JudgeNewForPlugin(const json& request, Cluster& cluster,
                                  const ReviewOptions& options) {
  Verdict verdict{request.at("object"), {}};
  const auto asks = AsksOf(verdict.pod, {}, options, true);
  if (!asks) return std::unexpected(asks.error());
  if (!asks->asks.empty()) {
    const auto sizes = cluster.GpuSizes(Cluster::GpusOf::kNodes);
    if (!sizes) return std::unexpected(sizes.error());
    auto made = TranslateToResources(verdict.pod, *asks, options.names, *sizes);
    if (!made) return std::unexpected(made.error());
    verdict = {std::move(*made), asks->warnings};
  }
  // A copy of a pod that runs has that one's GPUs.
  if (AnnotationOf(verdict.pod, kAssignedGpusAnnotation)) {
    verdict.pod["metadata"]["annotations"].erase(kAssignedGpusAnnotation);
  }
  const auto own = CheckPluginPod(verdict.pod, options);
  if (!own) return std::unexpected(own.error());
  if (*own && !options.allow_bypass) {
    const auto has_share = [&](const json& container) {
      return ResourceOf(container, options.names.memory).has_value();
    };
    Status ok = CheckBypass(verdict.pod);
    if (ok) ok = CheckOneGpu(verdict.pod, has_share);
    if (!ok) return std::unexpected(ok.error());
  }
  return verdict;
}

Annotations OwnAnnotations(const json& pod) {
  Annotations own = TextsOf(pod, "annotations");
  std::erase_if(own, [](const auto& each) { return !each.first.starts_with(kAnnotationPrefix); });
  return own;
}

json DebuggersOf(const json& pod) {
  return pod.value(json::json_pointer("/spec/ephemeralContainers"), json::array());
}

// Annotations that resize, and containers for debugging, are all that a pod can be given later.
Result<Verdict> JudgeChanged(const json& request, Cluster& cluster, const ReviewOptions& options) {
  const json& pod = request.at("object");
  const json& before = request.at("oldObject");
  const bool resizes = OwnAnnotations(pod) != OwnAnnotations(before);
  const bool debugs = DebuggersOf(pod) != DebuggersOf(before) && !options.allow_bypass;
  if (!resizes && !debugs) return Verdict{pod, {}};
  const auto to_resources = ToResources(cluster, options);
  if (!to_resources) return std::unexpected(to_resources.error());
  if (*to_resources) {
    if (AnnotationOf(pod, kAssignedGpusAnnotation) !=
        AnnotationOf(before, kAssignedGpusAnnotation)) {
      return BadAsk(
          std::string("annotation ") + kAssignedGpusAnnotation +
          " says which GPUs the scheduler's extender gave the pod, and cannot be changed");
    }
    const auto own = CheckPluginPod(pod, options);
    if (!own) return std::unexpected(own.error());
    if (*own && debugs) {
      if (auto ok = CheckBypass(pod); !ok) return std::unexpected(ok.error());
    }
    return Verdict{pod, {}};
  }
  const auto entries = OwnEntries(pod, request.value("namespace", std::string()), cluster);
  if (!entries) return std::unexpected(entries.error());
  Status ok = resizes ? CheckAnnotations(pod, *entries) : Status{};
  if (ok && debugs && !entries->empty()) ok = CheckBypass(pod);
  if (!ok) return std::unexpected(ok.error());
  return Verdict{pod, {}};
}

Result<Verdict> Judge(const json& request, Cluster& cluster, const ReviewOptions& options) {
  const std::string operation = request.value("operation", std::string());
  if (operation == "CREATE") {
    const auto to_resources = ToResources(cluster, options);
    if (!to_resources) return std::unexpected(to_resources.error());
    return *to_resources ? JudgeNewForPlugin(request, cluster, options)
                         : JudgeNew(request, cluster, options);
  }
  if (operation == "UPDATE") return JudgeChanged(request, cluster, options);
  return Verdict{request.value("object", json()), {}};
}

json Refusal(const Error& error) {
  const bool own = error.code == "bad_ask" || error.code == "bypass" ||
                   error.code == "bad_annotation" || error.code == "bad_request";
  return {{"allowed", false},
          {"status",
           {{"code", own ? 422 : 503},
            {"reason", own ? "Invalid" : "ServiceUnavailable"},
            {"message", error.message}}}};
}

json ReviewResponse(const json& request, Cluster& cluster, const ReviewOptions& options) {
  try {
    const auto verdict = Judge(request, cluster, options);
    if (!verdict) return Refusal(verdict.error());
    json response = {{"allowed", true}};
    if (!verdict->warnings.empty()) response["warnings"] = verdict->warnings;
    const json patch = json::diff(request.at("object"), verdict->pod);
    if (!patch.empty()) {
      response["patchType"] = "JSONPatch";
      response["patch"] = EncodeBase64(patch.dump());
    }
    return response;
  } catch (const json::exception& error) {
    return Refusal({"bad_ask", std::string("the pod is not as the API has it: ") + error.what()});
  }
}

}  // namespace

json Review(const json& review, Cluster& cluster, const ReviewOptions& options) {
  const json request = review.value("request", json::object());
  json response = ReviewResponse(request, cluster, options);
  response["uid"] = request.value("uid", json(""));
  return {{"apiVersion", "admission.k8s.io/v1"},
          {"kind", "AdmissionReview"},
          {"response", std::move(response)}};
}

}  // namespace prorata::kubernetes
