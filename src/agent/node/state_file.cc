#include "agent/node/state_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "agent/config/overcommit.h"
#include "agent/runtime/replace_file.h"
#include "api/control.h"

namespace prorata::agent {
namespace {

using nlohmann::json;

constexpr int kStateVersion = 1;

json ToJson(const ProcessId& process) {
  return {{"pid", process.pid}, {"start_ticks", process.start_ticks}};
}

ProcessId ProcessOf(const json& object) {
  return {object.at("pid").get<pid_t>(), object.at("start_ticks").get<uint64_t>()};
}

json ToJson(const ShareLife& life) {
  if (life.process() != nullptr) return {{"process", ToJson(*life.process())}};
  if (life.file() != nullptr) return {{"file", *life.file()}};
  return {{"token", *life.token()}};
}

json ToJson(const std::optional<Container>& container) {
  if (!container) return nullptr;
  return {{"engine", container->group.engine},
          {"id", container->group.id},
          {"hierarchy", container->group.hierarchy},
          {"path", container->group.path},
          {"name", container->name}};
}

std::optional<Container> ContainerOf(const json& object) {
  if (!object.is_object()) return std::nullopt;
  return Container{
      {object.at("engine").get<std::string>(), object.at("id").get<std::string>(),
       object.at("hierarchy").get<std::string>(), object.at("path").get<std::string>()},
      object.at("name").get<std::string>()};
}

// Before there were tokens: "owner", a process, but for shares with a "resource_config".
ShareLife LifeOf(const json& share) {
  if (!share.contains("life")) {
    const std::string file = share.value("resource_config", "");
    return file.empty() ? ShareLife::OfProcess(ProcessOf(share.at("owner")))
                        : ShareLife::OfFile(file);
  }
  const json& life = share["life"];
  if (life.contains("file")) return ShareLife::OfFile(life["file"].get<std::string>());
  if (life.contains("token")) return ShareLife::OfToken(life["token"].get<std::string>());
  return ShareLife::OfProcess(ProcessOf(life.at("process")));
}

json ToJson(const SavedShare& share) {
  json devices = json::array();
  for (const DeviceOfShare& device : share.config.devices) {
    devices.push_back({{"uuid", device.uuid},
                       {"memory_bytes", device.memory_bytes},
                       {"memory_request_bytes", device.memory_request_bytes},
                       {"request_ppm", device.compute.request.ppm},
                       {"limit_ppm", device.compute.limit.ppm},
                       {"weight", device.compute.weight},
                       {"priority", device.compute.priority},
                       {"yield_within_ns", device.compute.yield_within_ns}});
  }
  return {{"name", share.config.name},
          {"owner_uid", share.config.owner_uid},
          {"life", ToJson(share.config.life)},
          {"created_unix_s", share.config.created_unix_s},
          {"on_full", api::FormatOnFull(share.config.on_full)},
          {"gang", api::FormatGang(share.config.gang)},
          {"ended", share.ended},
          {"containers", share.config.any_container ? "any" : "one"},
          {"mode", share.config.exclusive ? "exclusive" : "shared"},
          {"container", ToJson(share.container)},
          {"share_memory_with", share.config.share_memory_with},
          {"allow_users", api::FormatAllowedUsers(share.config.allow_users)},
          {"devices", std::move(devices)}};
}

// Before there were requests: all of the limit was set aside, but for shares that were not
// "guaranteed" on a device that was overcommitted.
uint64_t RequestOf(const json& share, const DeviceOfShare& device, const SavedState& state) {
  const auto ratio = state.overcommit.find(device.uuid);
  const bool elastic =
      !share.value("guaranteed", false) && ratio != state.overcommit.end() && ratio->second > 1;
  return elastic ? 0 : device.memory_bytes;
}

// `state`: what is known of the devices.
SavedShare ShareOf(const json& object, const SavedState& state) {
  SavedShare share;
  object.at("name").get_to(share.config.name);
  object.at("owner_uid").get_to(share.config.owner_uid);
  share.config.life = LifeOf(object);
  object.at("created_unix_s").get_to(share.config.created_unix_s);
  object.at("ended").get_to(share.ended);
  // Absent in a state of an agent that did not know of them.
  share.config.any_container = object.value("containers", "one") == "any";
  share.config.exclusive = object.value("mode", "shared") == "exclusive";
  share.container = ContainerOf(object.value("container", json()));
  if (auto on_full = api::ParseOnFull(object.value("on_full", "fail"))) {
    share.config.on_full = *on_full;
  }
  if (auto gang = api::ParseGang(object.value("gang", "auto"))) share.config.gang = *gang;
  share.config.share_memory_with = object.value("share_memory_with", std::vector<std::string>());
  if (auto allowed = api::ParseAllowedUsers(object.value("allow_users", ""))) {
    share.config.allow_users = std::move(*allowed);
  }
  for (const json& device : object.at("devices")) {
    DeviceOfShare& out = share.config.devices.emplace_back();
    device.at("uuid").get_to(out.uuid);
    device.at("memory_bytes").get_to(out.memory_bytes);
    out.memory_request_bytes = std::min(
        out.memory_bytes, device.value("memory_request_bytes", RequestOf(object, out, state)));
    device.at("request_ppm").get_to(out.compute.request.ppm);
    device.at("limit_ppm").get_to(out.compute.limit.ppm);
    device.at("weight").get_to(out.compute.weight);
    out.compute.priority = device.value("priority", out.compute.priority);
    out.compute.yield_within_ns = device.value("yield_within_ns", out.compute.yield_within_ns);
  }
  return share;
}

}  // namespace

std::string EncodeState(const SavedState& state) {
  json shares = json::array();
  for (const SavedShare& share : state.shares) shares.push_back(ToJson(share));
  return json{{"version", kStateVersion},
              {"overcommit", state.overcommit},
              {"elastic_ceiling_ppm", state.elastic_ceiling_ppm},
              {"waiting", state.waiting},
              {"shares", std::move(shares)}}
             .dump(1) +
         "\n";
}

Result<SavedState> DecodeState(const std::string& text) {
  try {
    const json object = json::parse(text);
    if (object.at("version").get<int>() != kStateVersion) {
      return Fail("state", "it is of another version of prorata");
    }
    SavedState state;
    state.overcommit = object.value("overcommit", state.overcommit);
    for (auto& [uuid, ratio] : state.overcommit) {
      if (!(ratio >= 1 && ratio <= agent::kMaxOvercommit)) {
        return Fail("state_damaged", "its overcommit is not a ratio from 1 on");
      }
    }
    state.elastic_ceiling_ppm = object.value("elastic_ceiling_ppm", state.elastic_ceiling_ppm);
    for (auto& [uuid, ppm] : state.elastic_ceiling_ppm) {
      if (ppm == 0 || ppm > Fraction::kOne)
        return Fail("state_damaged", "its elastic ceiling is not a part of a GPU's time");
    }
    state.waiting = object.value("waiting", 0u);
    for (const json& share : object.at("shares")) {
      SavedShare saved = ShareOf(share, state);
      if (auto ok = api::ValidateShareName(saved.config.name); !ok) {
        return Fail("state_damaged", ok.error().message);
      }
      if (saved.config.devices.empty() || saved.config.devices.size() > kMaxDevices) {
        return Fail("state_damaged", "a share without devices, or with too many");
      }
      state.shares.push_back(std::move(saved));
    }
    return state;
  } catch (const json::exception& error) {
    return Fail("state_damaged", error.what());
  }
}

Result<SavedState> LoadState(const std::string& path) {
  std::ifstream file(path);
  if (!file) {
    if (::access(path.c_str(), F_OK) != 0 && errno == ENOENT) return SavedState{};
    return FailErrno("state", "cannot read the agent's state '" + path + "'", errno);
  }
  std::stringstream text;
  text << file.rdbuf();
  auto state = DecodeState(text.str());
  if (!state) {
    return Fail(state.error().code,
                "cannot use the agent's state '" + path + "': " + state.error().message +
                    "; if no program uses its shares any more, remove the file");
  }
  return state;
}

Status WriteState(const std::string& path, const std::string& text) {
  return ReplaceFile(path, text, 0600, "state");
}

}  // namespace prorata::agent
