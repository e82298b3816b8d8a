#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "protocol/control.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto request = prorata::protocol::DecodeRequest(text)) {
    // What was understood must be understood again, the same.
    const auto again = prorata::protocol::DecodeRequest(prorata::protocol::EncodeRequest(*request));
    if (!again || again->op != request->op) __builtin_trap();
    if (again->events.since != request->events.since ||
        again->events.follow != request->events.follow ||
        again->events.share != request->events.share) {
      __builtin_trap();
    }
    (void)prorata::protocol::ValidateShare(request->share, {}, {});
  }
  // What comes from an agent is not trusted either.
  const auto reply = nlohmann::json::parse(text.begin(), text.end(), nullptr, false);
  if (const auto event = prorata::protocol::EventFromJson(reply)) {
    const auto again = prorata::protocol::EventFromJson(ToJson(*event));
    if (!again || Words(*again) != Words(*event)) __builtin_trap();
  }
  (void)prorata::protocol::EventsFromJson(reply);
  return 0;
}
