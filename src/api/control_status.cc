// Replies of the control socket to and from JSON.

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "api/control.h"

namespace prorata::api {
namespace {

using nlohmann::json;

constexpr std::pair<ThrottleReason, const char*> kThrottleReasonNames[] = {
    {ThrottleReason::kNoProgram, "no_program"},
    {ThrottleReason::kNonPreemptible, "non_preemptible"},
    {ThrottleReason::kWaitsForMemory, "waits_for_memory"},
    {ThrottleReason::kAtLimit, "at_limit"},
    {ThrottleReason::kWaitsForOthers, "waits_for_others"},
    {ThrottleReason::kIdle, "idle"},
    {ThrottleReason::kOverMemoryLimit, "over_memory_limit"},
};

json NamesOf(const std::vector<ThrottleReason>& reasons) {
  json names = json::array();
  for (const ThrottleReason reason : reasons) {
    for (const auto& [known, name] : kThrottleReasonNames) {
      if (known == reason) names.push_back(name);
    }
  }
  return names;
}

// What a newer agent knows and this does not is left out.
std::vector<ThrottleReason> ThrottleReasonsOf(const json& names) {
  std::vector<ThrottleReason> reasons;
  for (const json& entry : names) {
    const auto name = entry.get<std::string>();
    for (const auto& [reason, known] : kThrottleReasonNames) {
      if (name == known) reasons.push_back(reason);
    }
  }
  return reasons;
}

json ToJson(const ShareDevice& device) {
  return {{"uuid", device.uuid},
          {"index", device.index},
          {"memory_limit_bytes", device.memory_limit_bytes},
          {"memory_request_bytes", device.memory_request_bytes},
          {"used_bytes", device.used_bytes},
          {"overhead_bytes", device.overhead_bytes},
          {"granted_bytes", device.granted_bytes},
          {"admitted_bytes", device.admitted_bytes},
          {"memory_waits", device.memory_waits},
          {"memory_waiting_ns", device.memory_waiting_ns},
          {"device_time_ns", device.device_time_ns},
          {"busy_time_ns", device.busy_time_ns},
          {"compute_request", device.compute_request.value()},
          {"compute_limit", device.compute_limit.value()},
          {"weight", device.weight},
          {"priority", device.priority},
          {"yield_within_ns", device.yield_within_ns},
          {"entitled", device.entitled},
          {"active", device.active},
          {"achieved", device.achieved},
          {"busy", device.busy},
          {"waiting_part", device.waiting_part},
          {"at_limit_part", device.at_limit_part},
          {"undrained_part", device.undrained_part},
          {"backlog_ns", device.backlog_ns},
          {"throttle_reasons", NamesOf(device.throttle_reasons)},
          {"waiting", device.waiting},
          {"open", device.open},
          {"stalled", device.stalled},
          {"figures_missing", device.figures_missing},
          {"bypass_suspected", device.bypass_suspected},
          {"persistent_kernels", device.persistent_kernels},
          {"refusals", device.refusals}};
}

constexpr std::pair<LinkClass, const char*> kLinkNames[] = {
    {LinkClass::kUnknown, "unknown"},   {LinkClass::kSystem, "system"},
    {LinkClass::kNode, "node"},         {LinkClass::kHostBridge, "host_bridge"},
    {LinkClass::kMultiple, "multiple"}, {LinkClass::kSingle, "single"},
    {LinkClass::kInternal, "internal"}, {LinkClass::kNvlink, "nvlink"},
    {LinkClass::kSelf, "self"},
};

json ToJson(const DeviceLink& link) {
  json object;
  for (const auto& [kind, name] : kLinkNames) {
    if (kind == link.kind) object["kind"] = name;
  }
  if (link.kind == LinkClass::kNvlink) object["nvlinks"] = link.nvlinks;
  return object;
}

DeviceLink LinkOf(const json& object) {
  DeviceLink link;
  const auto kind_name = object.at("kind").get<std::string>();
  for (const auto& [kind, name] : kLinkNames) {
    if (kind_name == name) link.kind = kind;
  }
  link.nvlinks = object.value("nvlinks", 0u);
  return link;
}

Fraction FractionOf(const json& value) {
  return {static_cast<uint32_t>(std::lround(value.get<double>() * Fraction::kOne))};
}

ShareDevice ShareDeviceOf(const json& object) {
  ShareDevice device;
  object.at("uuid").get_to(device.uuid);
  object.at("index").get_to(device.index);
  object.at("memory_limit_bytes").get_to(device.memory_limit_bytes);
  device.memory_request_bytes = object.value("memory_request_bytes", device.memory_limit_bytes);
  object.at("used_bytes").get_to(device.used_bytes);
  object.at("overhead_bytes").get_to(device.overhead_bytes);
  object.at("granted_bytes").get_to(device.granted_bytes);
  object.at("admitted_bytes").get_to(device.admitted_bytes);
  object.at("memory_waits").get_to(device.memory_waits);
  object.at("memory_waiting_ns").get_to(device.memory_waiting_ns);
  object.at("device_time_ns").get_to(device.device_time_ns);
  object.at("busy_time_ns").get_to(device.busy_time_ns);
  device.compute_request = FractionOf(object.at("compute_request"));
  device.compute_limit = FractionOf(object.at("compute_limit"));
  object.at("weight").get_to(device.weight);
  object.at("priority").get_to(device.priority);
  object.at("yield_within_ns").get_to(device.yield_within_ns);
  object.at("entitled").get_to(device.entitled);
  // An agent of another version may not have these, or call them otherwise.
  device.active = object.value("active", true);
  device.stalled = object.value("stalled", false);
  if (object.contains("throttle_reasons")) {
    device.throttle_reasons = ThrottleReasonsOf(object.at("throttle_reasons"));
  }
  object.at("achieved").get_to(device.achieved);
  object.at("busy").get_to(device.busy);
  object.at("waiting_part").get_to(device.waiting_part);
  object.at("at_limit_part").get_to(device.at_limit_part);
  object.at("undrained_part").get_to(device.undrained_part);
  object.at("backlog_ns").get_to(device.backlog_ns);
  object.at("waiting").get_to(device.waiting);
  object.at("open").get_to(device.open);
  object.at("figures_missing").get_to(device.figures_missing);
  object.at("bypass_suspected").get_to(device.bypass_suspected);
  // Absent of an agent that did not know of them.
  device.persistent_kernels = object.value("persistent_kernels", 0u);
  object.at("refusals").get_to(device.refusals);
  return device;
}

// nlohmann answers a missing or wrong field by an exception; here it becomes an Error.
template <typename Reply, typename Read>
Result<Reply> Decode(const char* what, Read read) {
  try {
    Reply reply;
    read(reply);
    return reply;
  } catch (const json::exception& error) {
    return Fail("agent_reply", std::string("the agent's answer about a ") + what +
                                   " cannot be read (" + error.what() +
                                   "); are agent and prorata of the same version?");
  }
}

}  // namespace

json ToJson(const HelloReply& hello) {
  return {{"control_version", hello.control_version},
          {"program_version", hello.program_version},
          {"pid", hello.pid},
          {"uid", hello.uid}};
}

json ToJson(const ShareStatus& share) {
  json devices = json::array();
  for (const ShareDevice& device : share.devices) devices.push_back(ToJson(device));
  json members = json::array();
  for (const MemberStatus& member : share.members) {
    members.push_back({{"pid", member.pid},
                       {"command", member.command},
                       {"used_bytes", member.used_bytes},
                       {"device_time_ns", member.device_time_ns}});
  }
  // What was asked for by `--guaranteed` before there were requests.
  const bool guaranteed = std::ranges::all_of(share.devices, [](const ShareDevice& on) {
    return on.memory_request_bytes == on.memory_limit_bytes;
  });
  json object = {{"name", share.name},
                 {"guaranteed", guaranteed},
                 {"directory", share.directory},
                 {"owner_uid", share.owner_uid},
                 {"kept_by", ToJson(share.kept_by)},
                 {"created_unix_s", share.created_unix_s},
                 {"allow_users", FormatAllowedUsers(share.allow_users)},
                 {"on_full", FormatOnFull(share.on_full)},
                 {"gang", FormatGang(share.gang)},
                 {"runs_as_gang", share.runs_as_gang},
                 {"ended", share.ended},
                 {"devices", std::move(devices)},
                 {"members", std::move(members)}};
  for (const OutsideStatus& process : share.outside) {
    json one = {{"pid", process.pid},
                {"command", process.command},
                {"gpu", process.gpu},
                {"libraries", process.libraries}};
    if (process.used_bytes) one["used_bytes"] = *process.used_bytes;
    object["outside"].push_back(std::move(one));
  }
  if (share.container) {
    const ContainerStatus& container = *share.container;
    object["container"] = {
        {"engine", container.engine}, {"id", container.id}, {"name", container.name}};
  }
  if (share.any_container) object["containers"] = "any";
  if (share.exclusive) object["mode"] = "exclusive";
  return object;
}

json ToJson(const DeviceStatus& device) {
  json links = json::array();
  for (const DeviceLink& link : device.links) links.push_back(ToJson(link));
  json object = {{"index", device.index},
                 {"uuid", device.uuid},
                 {"name", device.name},
                 {"total_bytes", device.total_bytes},
                 {"used_bytes", device.used_bytes},
                 {"foreign_bytes", device.foreign_bytes},
                 {"promised_bytes", device.promised_bytes},
                 {"set_aside_bytes", device.promised_bytes},  // for readers of before
                 {"limit_bytes", device.limit_bytes},
                 {"borrowed_bytes", device.borrowed_bytes},
                 {"promised_request", device.promised_request.value()},
                 {"shares", device.shares},
                 {"busy", device.busy},
                 {"overcommit", device.overcommit},
                 {"elastic_ceiling", device.elastic_ceiling.value()},
                 {"driver_unresponsive_ms", device.driver_unresponsive_ms},
                 {"links", std::move(links)}};
  if (device.others) object["others"] = *device.others;
  if (!device.exclusive.empty()) object["exclusive"] = device.exclusive;
  return object;
}

json ToJson(const EventsReply& reply) {
  json events = json::array();
  for (const Event& event : reply.events) events.push_back(ToJson(event));
  return {{"events", std::move(events)},
          {"lost", reply.lost},
          {"next", reply.next},
          {"last", reply.last}};
}

json ToJson(const Error& error) {
  return {{"error", {{"code", error.code}, {"message", error.message}}}};
}

Result<HelloReply> HelloFromJson(const json& object) {
  return Decode<HelloReply>("version", [&](HelloReply& hello) {
    object.at("control_version").get_to(hello.control_version);
    object.at("program_version").get_to(hello.program_version);
    object.at("pid").get_to(hello.pid);
    object.at("uid").get_to(hello.uid);
  });
}

Result<ShareStatus> ShareFromJson(const json& object) {
  return Decode<ShareStatus>("share", [&](ShareStatus& share) {
    object.at("name").get_to(share.name);
    object.at("directory").get_to(share.directory);
    object.at("owner_uid").get_to(share.owner_uid);
    share.kept_by = KeptByFromJson(object.at("kept_by"));
    object.at("created_unix_s").get_to(share.created_unix_s);
    if (auto on_full = ParseOnFull(object.at("on_full").get<std::string>()))
      share.on_full = *on_full;
    // Absent of an agent that did not know of them.
    if (auto allowed = ParseAllowedUsers(object.value("allow_users", ""))) {
      share.allow_users = std::move(*allowed);
    }
    if (auto gang = ParseGang(object.value("gang", "auto"))) share.gang = *gang;
    share.runs_as_gang = object.value("runs_as_gang", false);
    object.at("ended").get_to(share.ended);
    share.any_container = object.value("containers", "one") == "any";
    share.exclusive = object.value("mode", "shared") == "exclusive";
    if (const auto found = object.find("container"); found != object.end()) {
      share.container = {{found->at("engine").get<std::string>(),
                          found->at("id").get<std::string>(),
                          found->at("name").get<std::string>()}};
    }
    for (const json& device : object.at("devices")) share.devices.push_back(ShareDeviceOf(device));
    for (const json& process : object.value("outside", json::array())) {
      OutsideStatus& status = share.outside.emplace_back();
      process.at("pid").get_to(status.pid);
      process.at("command").get_to(status.command);
      process.at("gpu").get_to(status.gpu);
      process.at("libraries").get_to(status.libraries);
      if (process.contains("used_bytes")) status.used_bytes = process["used_bytes"].get<uint64_t>();
    }
    for (const json& member : object.at("members")) {
      MemberStatus& status = share.members.emplace_back();
      member.at("pid").get_to(status.pid);
      member.at("command").get_to(status.command);
      member.at("used_bytes").get_to(status.used_bytes);
      member.at("device_time_ns").get_to(status.device_time_ns);
    }
  });
}

Result<DeviceStatus> DeviceFromJson(const json& object) {
  return Decode<DeviceStatus>("device", [&](DeviceStatus& device) {
    object.at("index").get_to(device.index);
    object.at("uuid").get_to(device.uuid);
    object.at("name").get_to(device.name);
    object.at("total_bytes").get_to(device.total_bytes);
    object.at("used_bytes").get_to(device.used_bytes);
    object.at("foreign_bytes").get_to(device.foreign_bytes);
    object.at("promised_bytes").get_to(device.promised_bytes);
    device.limit_bytes = object.value("limit_bytes", device.promised_bytes);
    device.borrowed_bytes = object.value("borrowed_bytes", uint64_t{0});
    device.promised_request = FractionOf(object.at("promised_request"));
    object.at("shares").get_to(device.shares);
    object.at("busy").get_to(device.busy);
    if (object.contains("others")) device.others = object["others"].get<double>();
    object.at("overcommit").get_to(device.overcommit);
    device.elastic_ceiling = FractionOf(object.at("elastic_ceiling"));
    device.exclusive = object.value("exclusive", "");
    device.driver_unresponsive_ms = object.value("driver_unresponsive_ms", int64_t{0});
    for (const json& link : object.at("links")) device.links.push_back(LinkOf(link));
  });
}

Result<EventsReply> EventsFromJson(const json& object) {
  Error bad;
  auto reply = Decode<EventsReply>("list of events", [&](EventsReply& into) {
    for (const json& entry : object.at("events")) {
      auto event = EventFromJson(entry);
      if (!event) {
        bad = event.error();
        return;
      }
      into.events.push_back(std::move(*event));
    }
    object.at("lost").get_to(into.lost);
    object.at("next").get_to(into.next);
    object.at("last").get_to(into.last);
  });
  if (!bad.code.empty()) return std::unexpected(bad);
  return reply;
}

std::optional<Error> ErrorOfReply(const json& reply) {
  if (!reply.is_object() || !reply.contains("error")) return std::nullopt;
  const json& error = reply["error"];
  if (!error.is_object() || !error.contains("code") || !error["code"].is_string() ||
      !error.contains("message") || !error["message"].is_string()) {
    return Error{"agent_reply", "the agent answered an error that cannot be read"};
  }
  return Error{error["code"].get<std::string>(), error["message"].get<std::string>()};
}

}  // namespace prorata::api
