#include <cstddef>
#include <cstdint>
#include <string_view>

#include "protocol/control.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto request = prorata::protocol::DecodeRequest(text)) {
    // What was understood must be understood again, the same.
    const auto again = prorata::protocol::DecodeRequest(prorata::protocol::EncodeRequest(*request));
    if (!again || again->op != request->op) __builtin_trap();
    (void)prorata::protocol::ValidateShare(request->share, {}, {});
  }
  return 0;
}
