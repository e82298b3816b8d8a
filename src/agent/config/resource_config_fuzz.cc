// A resource-config.txt as anybody may have written it.

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "agent/config/resource_config.h"
#include "api/control.h"

namespace {

using namespace prorata;
using namespace prorata::agent;

void Must(bool held) {
  if (!held) __builtin_trap();
}

std::string Written(const std::vector<ResourceClient>& clients) {
  std::string text = std::to_string(clients.size()) + "\n";
  for (const ResourceClient& client : clients) {
    text +=
        client.id + " " + FormatFraction(client.request) + " " + FormatFraction(client.limit) +
        " " + std::to_string(client.memory_bytes) +
        (client.allow_users.Nobody() ? ""
                                     : " users=" + api::FormatAllowedUsers(client.allow_users)) +
        (client.memory_request_bytes
             ? " memory_request=" + std::to_string(*client.memory_request_bytes)
             : "") +
        "\n";
  }
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto clients = ParseResourceConfig("f", text);
  if (!clients) {
    // One line, of a bearable length, that begins with the place.
    Must(clients.error().message.starts_with("f:"));
    Must(clients.error().message.find('\n') == std::string::npos);
    Must(clients.error().message.size() < 1000);
    return 0;
  }
  uint64_t requests = 0;
  std::set<std::string> ids;
  for (const ResourceClient& client : *clients) {
    Must(api::ValidateShareName(client.id).has_value());
    Must(ids.insert(client.id).second);
    Must(client.request <= client.limit && client.limit.ppm > 0);
    Must(client.limit <= Fraction::One() && client.memory_bytes > 0);
    Must(client.memory_request_bytes.value_or(0) <= client.memory_bytes);
    requests += client.request.ppm;
  }
  Must(requests <= Fraction::kOne && clients->size() <= api::kMaxShares);
  // What was understood and is written again is understood again, the same.
  const auto again = ParseResourceConfig("f", Written(*clients));
  Must(again && again->size() == clients->size() && Written(*again) == Written(*clients));
  return 0;
}
