#include "api/start_wait.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace prorata::api {

using nlohmann::json;

json ToJson(const StartWait& wait) {
  json object = json::object();
  if (wait.within_ms) object["within_ms"] = *wait.within_ms;
  if (wait.since_ms) object["since_ms"] = *wait.since_ms;
  return object;
}

json ToJson(const WaitingShare& waiting) {
  json object = {{"place", waiting.place},
                 {"since_ms", waiting.since_ms},
                 {"waited_ms", waiting.waited_ms},
                 {"pid", waiting.pid},
                 {"owner_uid", waiting.owner_uid},
                 {"gpus", waiting.gpu_count},
                 {"compute_request", waiting.compute_request.value()},
                 {"why", waiting.why}};
  if (!waiting.name.empty()) object["name"] = waiting.name;
  if (!waiting.gpus.empty()) object["gpu"] = waiting.gpus;
  if (waiting.memory_bytes) object["memory_bytes"] = *waiting.memory_bytes;
  if (waiting.exclusive) object["exclusive"] = true;
  return object;
}

Result<StartWait> StartWaitFromJson(const json& object) {
  constexpr uint64_t kMost = uint64_t{1} << 53;
  if (!object.is_object()) return Fail("malformed", "malformed request: 'wait' is not an object");
  StartWait wait;
  for (const auto& [key, value] : object.items()) {
    const bool known = key == "within_ms" || key == "since_ms";
    if (!known || !value.is_number_unsigned() || value.get<uint64_t>() > kMost) {
      return Fail("malformed",
                  "malformed request: 'wait' has more than a 'within_ms' and a 'since_ms', or one "
                  "of them is not a whole number of milliseconds");
    }
    (key == "within_ms" ? wait.within_ms : wait.since_ms) = value.get<uint64_t>();
  }
  return wait;
}

Result<WaitingShare> WaitingShareFromJson(const json& object) {
  try {
    WaitingShare waiting;
    object.at("place").get_to(waiting.place);
    object.at("since_ms").get_to(waiting.since_ms);
    object.at("waited_ms").get_to(waiting.waited_ms);
    object.at("pid").get_to(waiting.pid);
    object.at("owner_uid").get_to(waiting.owner_uid);
    object.at("gpus").get_to(waiting.gpu_count);
    object.at("why").get_to(waiting.why);
    const double request = object.at("compute_request").get<double>();
    waiting.compute_request = {static_cast<uint32_t>(std::lround(request * Fraction::kOne))};
    waiting.name = object.value("name", "");
    waiting.gpus = object.value("gpu", waiting.gpus);
    if (object.contains("memory_bytes")) waiting.memory_bytes = object["memory_bytes"];
    waiting.exclusive = object.value("exclusive", false);
    return waiting;
  } catch (const json::exception& error) {
    return Fail("agent_reply",
                std::string("the agent's answer about a share that waits cannot be read (") +
                    error.what() + "); are agent and prorata of the same version?");
  }
}

std::string PlaceInWords(uint32_t place) {
  if (place == 1) return "first";
  const uint32_t last = place / 10 % 10 == 1 ? 0 : place % 10;
  const char* ending = last == 1 ? "st" : last == 2 ? "nd" : last == 3 ? "rd" : "th";
  return std::to_string(place) + ending;
}

}  // namespace prorata::api
