#include "api/gang.h"

#include <utility>

namespace prorata::api {
namespace {

constexpr std::pair<Gang, std::string_view> kGangNames[] = {
    {Gang::kAuto, "auto"}, {Gang::kAlways, "always"}, {Gang::kNever, "never"}};

}  // namespace

Result<Gang> ParseGang(std::string_view text) {
  for (const auto& [gang, name] : kGangNames) {
    if (name == text) return gang;
  }
  return Fail("bad_gang", "'" + std::string(text.substr(0, 80)) + "' is not auto, always or never");
}

std::string FormatGang(Gang gang) {
  for (const auto& [known, name] : kGangNames) {
    if (known == gang) return std::string(name);
  }
  return "auto";
}

}  // namespace prorata::api
