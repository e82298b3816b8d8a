#include "api/share_name.h"

#include <algorithm>

namespace prorata::api {

Status ValidateShareName(std::string_view name) {
  auto bad = [name](std::string_view why) {
    return Fail("bad_name", "'" + std::string(name.substr(0, 80)) +
                                "' cannot be the name of a share: " + std::string(why));
  };
  if (name.empty()) return bad("it is empty");
  if (name.size() > kMaxShareNameLength) return bad("it is longer than 63 characters");
  if (name.front() == '-') return bad("it begins with '-'");
  size_t part = 0;  // where the part between slashes began
  for (size_t i = 0; i <= name.size(); ++i) {
    const char c = i < name.size() ? name[i] : '/';
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '.' || c == '_' || c == '-' || c == '/';
    if (!plain) return bad("only letters, digits and . _ - / are allowed");
    if (c != '/') continue;
    const std::string_view text = name.substr(part, i - part);
    if (text.empty() || text == "." || text == "..") {
      return bad("a part between slashes is empty, '.' or '..'");
    }
    part = i + 1;
  }
  return {};
}

std::string ShareFolder(std::string_view name) {
  std::string folder(name);
  std::replace(folder.begin(), folder.end(), '/', '+');
  return folder;
}

}  // namespace prorata::api
