#include "kubernetes/extender/protocol.h"

#include <algorithm>
#include <utility>

namespace prorata::kubernetes {
namespace {

using nlohmann::json;

// Names of nodes, thousands of them, need no escapes.
bool IsPlain(std::string_view text) {
  return std::ranges::all_of(text, [](const char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
  });
}

void AppendQuoted(std::string_view text, std::string* out) {
  if (IsPlain(text)) {
    *out += '"';
    *out += text;
    *out += '"';
    return;
  }
  *out += json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

void AppendReasons(const char* field, std::span<const std::string> nodes,
                   const std::vector<std::pair<size_t, const std::string*>>& reasons,
                   std::string* out) {
  *out += std::string(",\"") + field + "\":{";
  bool first = true;
  for (const auto& [node, reason] : reasons) {
    if (!std::exchange(first, false)) *out += ',';
    AppendQuoted(nodes[node], out);
    *out += ':';
    AppendQuoted(*reason, out);
  }
  *out += '}';
}

std::unexpected<Error> BadArgs(const std::string& what) {
  return Fail("bad_args", "this is no request of a scheduler to an extender: " + what);
}

}  // namespace

Result<ExtenderArgs> ParseExtenderArgs(std::string_view body) {
  ExtenderArgs args;
  try {
    json read = json::parse(body);
    args.pod = std::move(read.at("Pod"));
    args.uid = args.pod.at("metadata").at("uid");
    const auto names = read.find("NodeNames");
    if (names == read.end() || names->is_null()) {
      return BadArgs(
          "it has no NodeNames; set nodeCacheCapable: true for the extender in the "
          "scheduler's configuration");
    }
    for (json& name : *names) args.nodes.push_back(std::move(name.get_ref<std::string&>()));
  } catch (const json::exception& error) {
    return BadArgs(error.what());
  }
  return args;
}

Result<BindArgs> ParseBindArgs(std::string_view body) {
  try {
    const json read = json::parse(body);
    return BindArgs{read.at("PodName"), read.at("PodNamespace"), read.at("PodUID"),
                    read.at("Node")};
  } catch (const json::exception& error) {
    return BadArgs(error.what());
  }
}

std::string FormatFilterAnswer(const FilterAnswer& answer) {
  std::string out = "{\"NodeNames\":[";
  for (size_t i = 0; i < answer.fits.size(); ++i) {
    if (i > 0) out += ',';
    AppendQuoted(answer.nodes[answer.fits[i]], &out);
  }
  out += ']';
  AppendReasons("FailedNodes", answer.nodes, answer.later, &out);
  AppendReasons("FailedAndUnresolvableNodes", answer.nodes, answer.never, &out);
  return out + ",\"Error\":\"\"}";
}

std::string FormatFilterError(const std::string& error) { return json{{"Error", error}}.dump(); }

std::string FormatPriorities(std::span<const std::string> nodes, std::span<const int> scores) {
  std::string out = "[";
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (i > 0) out += ',';
    out += "{\"Host\":";
    AppendQuoted(nodes[i], &out);
    out += ",\"Score\":" + std::to_string(scores[i]) + "}";
  }
  return out + "]";
}

std::string FormatBindAnswer(const std::string& error) { return json{{"Error", error}}.dump(); }

}  // namespace prorata::kubernetes
