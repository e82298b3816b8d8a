#include "kubernetes/api/pod_events.h"

#include <chrono>
#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

constexpr size_t kMaxMessageLength = 1'024;  // the API server's
constexpr size_t kMaxPodNameLength = 200;    // so that the whole is a name of at most 253

std::string TimeNow() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  std::tm parts = {};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

// The same for what is the same, so that a driver that starts anew counts on.
std::string EventName(const PodReference& pod, const std::string& what) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016zx", std::hash<std::string>()(pod.uid + what));
  std::string name = pod.name.substr(0, kMaxPodNameLength);
  while (name.ends_with('.') || name.ends_with('-')) name.pop_back();
  return name + "." + digits;
}

}  // namespace

Status KubePodEvents::Record(const PodReference& pod, bool warning, const std::string& reason,
                             const std::string& message) {
  const std::string events = "/api/v1/namespaces/" + pod.name_space + "/events";
  const std::string said = message.substr(0, kMaxMessageLength);
  const std::string name = EventName(pod, reason + said);
  const std::string now = TimeNow();
  const json event = {{"apiVersion", "v1"},
                      {"kind", "Event"},
                      {"metadata", {{"name", name}, {"namespace", pod.name_space}}},
                      {"involvedObject",
                       {{"apiVersion", "v1"},
                        {"kind", "Pod"},
                        {"namespace", pod.name_space},
                        {"name", pod.name},
                        {"uid", pod.uid}}},
                      {"type", warning ? "Warning" : "Normal"},
                      {"reason", reason},
                      {"message", said},
                      {"source", {{"component", component_}, {"host", node_}}},
                      {"firstTimestamp", now},
                      {"lastTimestamp", now},
                      {"count", 1}};
  const auto made = client_.Post(events, event);
  if (made) return {};
  if (made.error().code != "conflict") return std::unexpected(made.error());
  auto before = client_.Get(events + "/" + name);
  if (!before) return std::unexpected(before.error());
  (*before)["count"] = before->value("count", 1) + 1;
  (*before)["lastTimestamp"] = now;
  const auto counted = client_.Put(events + "/" + name, *before);
  if (!counted) return std::unexpected(counted.error());
  return {};
}

}  // namespace prorata::kubernetes
