#include "agent/config/metrics_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <charconv>

namespace prorata::agent {
namespace {

std::unexpected<Error> BadAddress(std::string_view text, std::string_view why) {
  return Fail("bad_metrics", "'" + std::string(text.substr(0, 120)) + "' " + std::string(why) +
                                 "; write for example 127.0.0.1:9400, or 9400 for the same");
}

bool IsAddress(const std::string& text, bool brackets) {
  in6_addr any{};
  return ::inet_pton(brackets ? AF_INET6 : AF_INET, text.c_str(), &any) == 1;
}

}  // namespace

Result<MetricsAddress> ParseMetricsAddress(std::string_view text) {
  MetricsAddress where{"127.0.0.1", 0};
  std::string_view port = text;
  if (const size_t colon = text.rfind(':'); colon != std::string_view::npos) {
    std::string_view address = text.substr(0, colon);
    port = text.substr(colon + 1);
    const bool brackets = address.starts_with('[') && address.ends_with(']');
    if (brackets) address = address.substr(1, address.size() - 2);
    if (address == "localhost") address = "127.0.0.1";
    where.address = address;
    if (!IsAddress(where.address, brackets)) {
      return BadAddress(text, "has no numeric address before its port (IPv6 in brackets)");
    }
  }
  const char* const end = text.data() + text.size();  // the port's, too
  const auto [at, error] = std::from_chars(end - port.size(), end, where.port);
  if (port.empty() || error != std::errc{} || at != end) {
    return BadAddress(text, "has no port from 0 to 65535");
  }
  return where;
}

}  // namespace prorata::agent
