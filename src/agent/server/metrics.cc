#include "agent/server/metrics.h"

#include <prometheus/text_serializer.h>

#include <vector>

namespace prorata::agent {
namespace {

using api::DeviceStatus;
using api::ShareDevice;
using api::ShareStatus;
using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

void AddValue(MetricFamily& family, Labels labels, double value) {
  ClientMetric& metric = family.metric.emplace_back();
  metric.label = std::move(labels);
  (family.type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
}

struct ContainerNames {
  std::string container;
  std::string name_space = {};
  std::string pod = {};
};

// Of Kubernetes' a container is "NAMESPACE/POD/CONTAINER"; no engine allows a slash in its own.
ContainerNames NamesOf(const std::string& name) {
  const size_t first = name.find('/');
  const size_t last = name.rfind('/');
  if (first == last) return {name};
  return {name.substr(last + 1), name.substr(0, first), name.substr(first + 1, last - first - 1)};
}

// One metric: its name, kind, words, and how it is read from a Status. A double holds every size
// below 2^53 bytes exactly.
template <typename Status>
struct Column {
  const char* name;
  MetricType type;
  const char* help;
  double (*read)(const Status&);
};

constexpr double kNsInSecond = 1e9;

constexpr Column<ShareDevice> kShareColumns[] = {
    {"prorata_share_memory_limit_bytes", MetricType::Gauge,
     "The memory limit: the most that the share may hold",
     [](const ShareDevice& on) { return static_cast<double>(on.memory_limit_bytes); }},
    {"prorata_share_memory_request_bytes", MetricType::Gauge,
     "The memory request: what of the limit the share is guaranteed",
     [](const ShareDevice& on) { return static_cast<double>(on.memory_request_bytes); }},
    {"prorata_share_memory_used_bytes", MetricType::Gauge,
     "Memory that the share holds, overhead included",
     [](const ShareDevice& on) { return static_cast<double>(on.used_bytes); }},
    {"prorata_share_memory_overhead_bytes", MetricType::Gauge,
     "The part of the used memory that no allocation asked for: contexts, code",
     [](const ShareDevice& on) { return static_cast<double>(on.overhead_bytes); }},
    {"prorata_share_memory_granted_bytes", MetricType::Gauge,
     "Memory that the share's processes may use without asking",
     [](const ShareDevice& on) { return static_cast<double>(on.granted_bytes); }},
    {"prorata_share_memory_waiting", MetricType::Gauge,
     "Allocations that wait for memory of the device",
     [](const ShareDevice& on) { return static_cast<double>(on.memory_waits); }},
    {"prorata_share_memory_waiting_seconds", MetricType::Gauge,
     "For how long the oldest of the allocations that wait has waited",
     [](const ShareDevice& on) { return static_cast<double>(on.memory_waiting_ns) / kNsInSecond; }},
    {"prorata_share_gpu_seconds_total", MetricType::Counter, "GPU time that the share was charged",
     [](const ShareDevice& on) { return static_cast<double>(on.device_time_ns) / kNsInSecond; }},
    {"prorata_share_busy_seconds_total", MetricType::Counter,
     "Device time in which the share's kernels ran",
     [](const ShareDevice& on) { return static_cast<double>(on.busy_time_ns) / kNsInSecond; }},
    {"prorata_share_gpu_time_ratio", MetricType::Gauge,
     "The part of about the last second that the share was charged",
     [](const ShareDevice& on) { return on.achieved; }},
    {"prorata_share_busy_ratio", MetricType::Gauge,
     "The part of about the last second in which the share's kernels ran",
     [](const ShareDevice& on) { return on.busy; }},
    {"prorata_share_entitled_ratio", MetricType::Gauge,
     "The part of the device's time that the share is entitled to now, among those that want it; 0 "
     "while it does not want it",
     [](const ShareDevice& on) { return on.entitled; }},
    {"prorata_share_compute_request_ratio", MetricType::Gauge,
     "The compute request: the part of the device's time that the share is guaranteed",
     [](const ShareDevice& on) { return on.compute_request.value(); }},
    {"prorata_share_compute_limit_ratio", MetricType::Gauge,
     "The compute limit: the most of the device's time that the share may take",
     [](const ShareDevice& on) { return on.compute_limit.value(); }},
    {"prorata_share_weight", MetricType::Gauge,
     "The share's weight where time beyond the requests is divided",
     [](const ShareDevice& on) { return static_cast<double>(on.weight); }},
    {"prorata_share_priority", MetricType::Gauge, "The share's priority",
     [](const ShareDevice& on) { return static_cast<double>(on.priority); }},
    {"prorata_share_refusals_total", MetricType::Counter, "Allocations that were refused",
     [](const ShareDevice& on) { return static_cast<double>(on.refusals); }},
    {"prorata_share_bypass_suspected", MetricType::Gauge,
     "1 while the device shows that the share holds far more memory than its limit",
     [](const ShareDevice& on) { return on.bypass_suspected ? 1.0 : 0.0; }},
    {"prorata_share_persistent_kernels", MetricType::Gauge,
     "Processes of the share with a kernel that does not end",
     [](const ShareDevice& on) { return static_cast<double>(on.persistent_kernels); }},
};

constexpr Column<DeviceStatus> kDeviceColumns[] = {
    {"prorata_device_memory_total_bytes", MetricType::Gauge, "Memory of the device",
     [](const DeviceStatus& on) { return static_cast<double>(on.total_bytes); }},
    {"prorata_device_memory_used_bytes", MetricType::Gauge,
     "Memory that is in use, by all programs",
     [](const DeviceStatus& on) { return static_cast<double>(on.used_bytes); }},
    {"prorata_device_memory_foreign_bytes", MetricType::Gauge,
     "The part of the used memory that is no share's: the driver, other programs",
     [](const DeviceStatus& on) { return static_cast<double>(on.foreign_bytes); }},
    {"prorata_device_driver_unresponsive_seconds", MetricType::Gauge,
     "For how long the driver (NVML) has not answered, if that is a second or more; 0: it answers",
     [](const DeviceStatus& on) { return static_cast<double>(on.driver_unresponsive_ms) / 1000; }},
    {"prorata_device_memory_promised_bytes", MetricType::Gauge,
     "What the memory requests of all shares add up to",
     [](const DeviceStatus& on) { return static_cast<double>(on.promised_bytes); }},
    {"prorata_device_memory_limit_bytes", MetricType::Gauge,
     "What the memory limits of all shares add up to",
     [](const DeviceStatus& on) { return static_cast<double>(on.limit_bytes); }},
    {"prorata_device_memory_borrowed_bytes", MetricType::Gauge,
     "What shares hold beyond their memory requests",
     [](const DeviceStatus& on) { return static_cast<double>(on.borrowed_bytes); }},
    {"prorata_device_gpu_time_ratio", MetricType::Gauge,
     "The part of about the last second that the shares were charged together",
     [](const DeviceStatus& on) { return on.busy; }},
};

// What kept a share from launching, as parts of about the last second.
struct HeldBack {
  const char* reason;
  double ShareDevice::* part;
};
constexpr HeldBack kHeldBack[] = {{"for_others", &ShareDevice::waiting_part},
                                  {"at_limit", &ShareDevice::at_limit_part},
                                  {"stalled", &ShareDevice::undrained_part}};

template <typename Status>
MetricFamily FamilyOf(const Column<Status>& column) {
  return {column.name, column.help, column.type, {}};
}

Labels LabelsOf(const ShareStatus& share, const ShareDevice& on) {
  return {{"share", share.name}, {"gpu", std::to_string(on.index)}, {"uuid", on.uuid}};
}

Labels LabelsOf(const DeviceStatus& on) {
  return {{"gpu", std::to_string(on.index)}, {"uuid", on.uuid}};
}

void AddShares(std::vector<MetricFamily>& families, std::span<const ShareStatus> shares) {
  for (const auto& column : kShareColumns) {
    MetricFamily& family = families.emplace_back(FamilyOf(column));
    for (const ShareStatus& share : shares) {
      for (const ShareDevice& on : share.devices) {
        AddValue(family, LabelsOf(share, on), column.read(on));
      }
    }
  }
  MetricFamily& held_back = families.emplace_back(MetricFamily{
      "prorata_share_held_back_ratio",
      "The part of about the last second in which the share's launches were held back, by "
      "reason",
      MetricType::Gauge,
      {}});
  for (const ShareStatus& share : shares) {
    for (const ShareDevice& on : share.devices) {
      for (const auto& [reason, part] : kHeldBack) {
        Labels labels = LabelsOf(share, on);
        labels.push_back({"reason", reason});
        AddValue(held_back, std::move(labels), on.*part);
      }
    }
  }
  MetricFamily& members = families.emplace_back(
      MetricFamily{"prorata_share_members", "Processes of the share", MetricType::Gauge, {}});
  for (const ShareStatus& share : shares) {
    AddValue(members, {{"share", share.name}}, static_cast<double>(share.members.size()));
  }
  MetricFamily& containers =
      families.emplace_back(MetricFamily{"prorata_share_container_info",
                                         "The container that has the share; always 1",
                                         MetricType::Gauge,
                                         {}});
  for (const ShareStatus& share : shares) {
    if (!share.container) continue;
    const ContainerNames names = NamesOf(share.container->name);
    Labels labels = {{"share", share.name},
                     {"container", names.container},
                     {"container_id", share.container->id},
                     {"engine", share.container->engine}};
    if (!names.pod.empty()) {
      labels.push_back({"namespace", names.name_space});
      labels.push_back({"pod", names.pod});
    }
    AddValue(containers, std::move(labels), 1);
  }
}

void AddDevices(std::vector<MetricFamily>& families, std::span<const DeviceStatus> devices) {
  for (const auto& column : kDeviceColumns) {
    MetricFamily& family = families.emplace_back(FamilyOf(column));
    for (const DeviceStatus& on : devices) AddValue(family, LabelsOf(on), column.read(on));
  }
  MetricFamily& others = families.emplace_back(MetricFamily{
      "prorata_device_others_ratio",
      "The part of about the last second in which kernels of programs on no share ran; "
      "absent where NVML does not report it",
      MetricType::Gauge,
      {}});
  for (const DeviceStatus& on : devices) {
    if (on.others) AddValue(others, LabelsOf(on), *on.others);
  }
}

}  // namespace

std::string MetricsText(std::span<const ShareStatus> shares, std::span<const DeviceStatus> devices,
                        const api::EventCounts& events) {
  std::vector<MetricFamily> families;
  AddShares(families, shares);
  AddDevices(families, devices);
  MetricFamily& counts =
      families.emplace_back(MetricFamily{"prorata_events_total",
                                         "Events, as `prorata events` prints them, by kind",
                                         MetricType::Counter,
                                         {}});
  for (size_t kind = 0; kind < events.size(); ++kind) {
    AddValue(counts, {{"kind", NameOf(static_cast<api::EventKind>(kind))}},
             static_cast<double>(events[kind]));
  }
  return prometheus::TextSerializer().Serializer::Serialize(families);
}

}  // namespace prorata::agent
