#include "api/control.h"

#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <utility>

namespace prorata::api {
namespace {

using nlohmann::json;

constexpr std::pair<std::string_view, ControlOp> kOps[] = {
    {"hello", ControlOp::kHello},
    {"create_share", ControlOp::kCreateShare},
    {"list_shares", ControlOp::kListShares},
    {"list_devices", ControlOp::kListDevices},
    {"remove_share", ControlOp::kRemoveShare},
    {"shutdown", ControlOp::kShutdown},
    {"update_share", ControlOp::kUpdateShare},
    {"events", ControlOp::kEvents},
    {"trace", ControlOp::kTrace},
    {"inspect_share", ControlOp::kInspectShare},
};

// Long enough for any name or UUID, and for an error to repeat what it got.
constexpr size_t kMaxTextLength = 256;
// More than any machine has; how many a share may hold is ValidateShare's to say.
constexpr size_t kMaxGpusNamed = 64;

std::unexpected<Error> Malformed(std::string why) {
  return Fail("malformed", "malformed request: " + std::move(why));
}

Status OnlyFields(const json& object, std::string_view what,
                  std::initializer_list<std::string_view> known) {
  for (const auto& [key, value] : object.items()) {
    bool found = false;
    for (const std::string_view field : known) found |= key == field;
    if (!found) {
      return Malformed(std::string(what) + " has an unknown field '" +
                       key.substr(0, kMaxTextLength) + "'");
    }
  }
  return {};
}

Result<std::string> TextField(const json& value, std::string_view field) {
  if (!value.is_string()) return Malformed("'" + std::string(field) + "' is not a text");
  std::string text = value.get<std::string>();
  if (text.size() > kMaxTextLength) return Malformed("'" + std::string(field) + "' is too long");
  return text;
}

Result<uint64_t> CountField(const json& value, std::string_view field, uint64_t least,
                            uint64_t most) {
  const bool negative = value.is_number_integer() && !value.is_number_unsigned();
  if (!value.is_number_integer() || negative || value.get<uint64_t>() < least ||
      value.get<uint64_t>() > most) {
    return Malformed("'" + std::string(field) + "' is not a whole number from " +
                     std::to_string(least) + " to " + std::to_string(most));
  }
  return value.get<uint64_t>();
}

Result<int64_t> NumberField(const json& value, std::string_view field, int64_t least,
                            int64_t most) {
  const bool whole = value.is_number_integer() &&
                     !(value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{1} << 62);
  if (!whole || value.get<int64_t>() < least || value.get<int64_t>() > most) {
    return Malformed("'" + std::string(field) + "' is not a whole number from " +
                     std::to_string(least) + " to " + std::to_string(most));
  }
  return value.get<int64_t>();
}

Result<Fraction> FractionField(const json& value, std::string_view field) {
  const double number = value.is_number() ? value.get<double>() : -1;
  if (!(number >= 0)) return Malformed("'" + std::string(field) + "' is not a number from 0 to 1");
  if (number > 1) {
    return Fail("bad_fraction", "'" + std::string(field) + "' is " + value.dump() +
                                    ", above 1: a share is a part of one GPU, from 0 to 1");
  }
  return Fraction{static_cast<uint32_t>(std::llround(number * Fraction::kOne))};
}

Result<MemorySize> BytesField(const json& value, std::string_view field, uint64_t least) {
  const auto bytes = CountField(value, field, least, uint64_t{1} << 62);
  if (!bytes) return std::unexpected(bytes.error());
  return MemorySize(*bytes);
}

Result<MemorySize> PartField(const json& value, std::string_view field) {
  const auto part = FractionField(value, field);
  if (!part) return std::unexpected(part.error());
  if (*part > Fraction::Zero()) return MemorySize(*part);
  return Malformed("'" + std::string(field) + "' is not above 0");
}

// Either of the two ways to say it.
Status NotTwice(const json& object) {
  for (const std::string field : {"memory", "memory_request"}) {
    if (!object.contains(field + "_bytes") || !object.contains(field + "_part")) continue;
    return Malformed("'" + field + "_bytes' and '" + field + "_part' say the same twice");
  }
  return {};
}

Result<OnFull> OnFullField(const json& value, std::string_view field) {
  auto text = TextField(value, field);
  if (!text) return std::unexpected(text.error());
  return ParseOnFull(*text);
}

Result<Gang> GangField(const json& value, std::string_view field) {
  auto text = TextField(value, field);
  if (!text) return std::unexpected(text.error());
  return ParseGang(*text);
}

// Reads one field of the terms of a share, which a new one and a changed one have in common.
template <typename Terms>
Status ReadTerm(const std::string& key, const json& value, Terms& terms) {
  Status bad;
  auto take = [&bad](auto result, auto& target) {
    if (result) {
      target = *result;
    } else {
      bad = std::unexpected(result.error());
    }
  };
  if (key == "memory_bytes") take(BytesField(value, key, 1), terms.memory);
  if (key == "memory_part") take(PartField(value, key), terms.memory);
  if (key == "memory_request_bytes") take(BytesField(value, key, 0), terms.memory_request);
  if (key == "memory_request_part") take(PartField(value, key), terms.memory_request);
  if (key == "compute_request") take(FractionField(value, key), terms.compute_request);
  if (key == "compute_limit") take(FractionField(value, key), terms.compute_limit);
  if (key == "weight") take(CountField(value, key, 1, kMaxWeight), terms.weight);
  if (key == "priority") take(NumberField(value, key, kMinPriority, kMaxPriority), terms.priority);
  if (key == "yield_within_ns") {
    take(NumberField(value, key, kMinYieldWithinNs, kMaxYieldWithinNs), terms.yield_within_ns);
  }
  if constexpr (requires { terms.on_full; }) {
    if (key == "on_full") take(OnFullField(value, key), terms.on_full);
    if (key == "gang") take(GangField(value, key), terms.gang);
  }
  return bad;
}

// The GPUs of a share: one text, or a list of them.
Status ReadGpus(const json& value, std::vector<std::string>& gpus) {
  const json list = value.is_array() ? value : json::array({value});
  if (list.empty() || list.size() > kMaxGpusNamed) {
    return Malformed("'gpu' is a list of " + std::to_string(list.size()) + " GPUs, not of 1 to " +
                     std::to_string(kMaxGpusNamed));
  }
  for (const json& entry : list) {
    auto gpu = TextField(entry, "gpu");
    if (!gpu) return std::unexpected(gpu.error());
    gpus.push_back(*gpu);
  }
  return {};
}

Status ReadSharedWith(const json& value, std::vector<std::string>& names) {
  if (!value.is_array() || value.size() > kMaxSharedWith) {
    return Malformed("'share_memory_with' is not a list of at most " +
                     std::to_string(kMaxSharedWith) + " names of shares");
  }
  for (const json& entry : value) {
    auto name = TextField(entry, "share_memory_with");
    if (!name) return std::unexpected(name.error());
    names.push_back(*name);
  }
  return {};
}

Status ReadAllowedUsers(const json& value, AllowedUsers& allowed) {
  // Longer than other texts: a list of ids.
  if (!value.is_string()) return Malformed("'allow_users' is not a text");
  auto read = ParseAllowedUsers(value.get_ref<const std::string&>());
  if (!read) return std::unexpected(read.error());
  allowed = std::move(*read);
  return {};
}

Status ReadOn(const json& value, std::vector<TermsOnGpu>& on) {
  if (!value.is_array() || value.size() > kMaxGpusNamed) {
    return Malformed("'on' is not a list of at most " + std::to_string(kMaxGpusNamed) +
                     " objects, one for each GPU");
  }
  for (const json& entry : value) {
    if (!entry.is_object() || !entry.contains("gpu")) {
      return Malformed("'on' has an entry that is no object with a 'gpu'");
    }
    TermsOnGpu& terms = on.emplace_back();
    Status ok = OnlyFields(
        entry, "an entry of 'on'",
        {"gpu", "memory_bytes", "memory_part", "memory_request_bytes", "memory_request_part",
         "compute_request", "compute_limit", "weight", "priority", "yield_within_ns"});
    if (ok) ok = NotTwice(entry);
    for (const auto& [key, field] : entry.items()) {
      if (ok) ok = ReadTerm(key, field, terms);
    }
    if (!ok) return ok;
    auto gpu = TextField(entry["gpu"], "gpu");
    if (!gpu) return std::unexpected(gpu.error());
    terms.gpu = *gpu;
    if (terms.Empty()) return Malformed("'on' says nothing of GPU '" + terms.gpu + "'");
  }
  return {};
}

Status ReadSpec(const json& object, ShareSpec& spec) {
  if (!object.is_object()) return Malformed("'share' is not an object");
  Status ok = OnlyFields(object, "'share'",
                         {"name",
                          "gpu",
                          "gpus",
                          "memory_bytes",
                          "memory_part",
                          "memory_request_bytes",
                          "memory_request_part",
                          "compute_request",
                          "compute_limit",
                          "weight",
                          "priority",
                          "yield_within_ns",
                          "on",
                          "on_full",
                          "gang",
                          "guaranteed",
                          "share_memory_with",
                          "allow_users",
                          "token",
                          "containers",
                          "mode"});
  if (ok) ok = NotTwice(object);
  for (const auto& [key, value] : object.items()) {
    if (ok) ok = ReadTerm(key, value, spec);
    if (ok && key == "share_memory_with") ok = ReadSharedWith(value, spec.share_memory_with);
    if (ok && key == "allow_users") ok = ReadAllowedUsers(value, spec.allow_users);
    if (ok && key == "gpu") ok = ReadGpus(value, spec.gpus);
    if (ok && key == "guaranteed") {
      if (!value.is_boolean()) return Malformed("'guaranteed' is neither true nor false");
      spec.guaranteed = value.get<bool>();
    }
    if (ok && key == "on") ok = ReadOn(value, spec.on);
    if (ok && key == "containers") {
      if (value != "one" && value != "any") return Malformed("'containers' is neither one nor any");
      spec.any_container = value == "any";
    }
    if (ok && key == "mode") {
      if (value != "shared" && value != "exclusive") {
        return Malformed("'mode' is neither shared nor exclusive");
      }
      spec.exclusive = value == "exclusive";
    }
  }
  if (!ok) return ok;
  if (object.contains("name")) {
    auto name = TextField(object["name"], "name");
    if (!name) return std::unexpected(name.error());
    spec.name = *name;
  }
  if (object.contains("token")) {
    auto token = TextField(object["token"], "token");
    if (!token) return std::unexpected(token.error());
    if (token->empty() || !spec.name) return Malformed("a 'token' is a text, beside a 'name'");
    spec.token = *token;
  }
  if (object.contains("gpus")) {
    auto count = CountField(object["gpus"], "gpus", 1, kMaxGpusNamed);
    if (!count) return std::unexpected(count.error());
    spec.gpu_count = static_cast<uint32_t>(*count);
  }
  return {};
}

Status ReadChange(const json& object, ShareChange& change) {
  if (!object.is_object()) return Malformed("'change' is not an object");
  Status ok = OnlyFields(object, "'change'",
                         {"memory_bytes", "memory_part", "memory_request_bytes",
                          "memory_request_part", "compute_request", "compute_limit", "weight",
                          "priority", "yield_within_ns", "on", "on_full", "gang", "allow_users"});
  if (ok) ok = NotTwice(object);
  for (const auto& [key, value] : object.items()) {
    if (ok) ok = ReadTerm(key, value, change);
    if (ok && key == "on") ok = ReadOn(value, change.on);
    if (ok && key == "allow_users") ok = ReadAllowedUsers(value, change.allow_users.emplace());
  }
  if (ok && change.Empty()) return Malformed("'change' says nothing to change");
  return ok;
}

Status ReadName(const json& object, ControlRequest& request) {
  if (!object.contains("name")) return Malformed("'name' is missing");
  auto name = TextField(object["name"], "name");
  if (!name) return std::unexpected(name.error());
  request.name = *name;
  return {};
}

Status ReadEvents(const json& object, EventsRequest& events) {
  if (const auto since = object.find("since"); since != object.end()) {
    auto sequence = CountField(*since, "since", 0, uint64_t{1} << 62);
    if (!sequence) return std::unexpected(sequence.error());
    events.since = *sequence;
  }
  if (const auto follow = object.find("follow"); follow != object.end()) {
    if (!follow->is_boolean()) return Malformed("'follow' is neither true nor false");
    events.follow = follow->get<bool>();
  }
  if (const auto share = object.find("share"); share != object.end()) {
    auto name = TextField(*share, "share");
    if (!name) return std::unexpected(name.error());
    events.share = *name;
  }
  return {};
}

Status ReadTrace(const json& object, TraceRequest& trace) {
  if (!object.contains("gpu")) return Malformed("'gpu' is missing");
  auto gpu = TextField(object["gpu"], "gpu");
  if (!gpu) return std::unexpected(gpu.error());
  trace.gpu = *gpu;
  if (const auto seconds = object.find("seconds"); seconds != object.end()) {
    if (!seconds->is_number()) return Malformed("'seconds' is not a number");
    trace.seconds = seconds->get<double>();
    if (!(trace.seconds > 0 && trace.seconds <= kMaxTraceSeconds)) {
      return Malformed("'seconds' is not above 0 and at most 3600");
    }
  }
  if (const auto after = object.find("after"); after != object.end()) {
    auto sequence = CountField(*after, "after", 0, uint64_t{1} << 62);
    if (!sequence) return std::unexpected(sequence.error());
    trace.after = *sequence;
  }
  return {};
}

// Whether a text from outside nests so deep that a recursive parser would end badly. (nlohmann's
// parser is iterative; what it builds is destroyed by recursion.)
bool NestsTooDeep(std::string_view text) {
  int depth = 0;
  for (const char c : text) {
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
    if (depth > 32) return true;
  }
  return false;
}

void WriteMemory(const std::optional<MemorySize>& size, const std::string& field, json& to) {
  if (!size) return;
  if (size->part > Fraction::Zero()) {
    to[field + "_part"] = size->part.value();
  } else {
    to[field + "_bytes"] = size->bytes;
  }
}

template <typename Terms>
json WriteTerms(const Terms& from) {
  json to = json::object();
  WriteMemory(from.memory, "memory", to);
  WriteMemory(from.memory_request, "memory_request", to);
  if (from.compute_request) to["compute_request"] = from.compute_request->value();
  if (from.compute_limit) to["compute_limit"] = from.compute_limit->value();
  if (from.weight) to["weight"] = *from.weight;
  if (from.priority) to["priority"] = *from.priority;
  if (from.yield_within_ns) to["yield_within_ns"] = *from.yield_within_ns;
  return to;
}

json WriteOn(const std::vector<TermsOnGpu>& on) {
  json list = json::array();
  for (const TermsOnGpu& terms : on) {
    json entry = WriteTerms(terms);
    entry["gpu"] = terms.gpu;
    list.push_back(std::move(entry));
  }
  return list;
}

}  // namespace

Result<ControlRequest> DecodeRequest(std::string_view text) {
  if (NestsTooDeep(text)) return Malformed("it nests too deep");
  const json object = json::parse(text.begin(), text.end(), nullptr, false);
  if (!object.is_object()) return Malformed("it is not a JSON object");
  const auto op_field = object.find("op");
  if (op_field == object.end()) return Malformed("it has no 'op'");
  auto op_name = TextField(*op_field, "op");
  if (!op_name) return std::unexpected(op_name.error());
  ControlRequest request;
  bool known = false;
  for (const auto& [name, op] : kOps) {
    if (name != *op_name) continue;
    request.op = op;
    known = true;
  }
  if (!known) return Malformed("the op '" + *op_name + "' is not known to this agent");
  Status ok;
  switch (request.op) {
    case ControlOp::kCreateShare:
      ok = OnlyFields(object, "the request", {"op", "share", "wait"});
      if (ok && object.contains("share")) ok = ReadSpec(object["share"], request.share);
      if (ok && object.contains("wait")) {
        auto wait = StartWaitFromJson(object["wait"]);
        if (!wait) return std::unexpected(wait.error());
        request.wait = *wait;
      }
      break;
    case ControlOp::kInspectShare:
    case ControlOp::kRemoveShare:
      ok = OnlyFields(object, "the request", {"op", "name"});
      if (ok) ok = ReadName(object, request);
      break;
    case ControlOp::kUpdateShare:
      ok = OnlyFields(object, "the request", {"op", "name", "change"});
      if (ok) ok = ReadName(object, request);
      if (ok && !object.contains("change")) return Malformed("'change' is missing");
      if (ok) ok = ReadChange(object["change"], request.change);
      break;
    case ControlOp::kEvents:
      ok = OnlyFields(object, "the request", {"op", "since", "follow", "share"});
      if (ok) ok = ReadEvents(object, request.events);
      break;
    case ControlOp::kTrace:
      ok = OnlyFields(object, "the request", {"op", "gpu", "seconds", "after"});
      if (ok) ok = ReadTrace(object, request.trace);
      break;
    default:
      ok = OnlyFields(object, "the request", {"op"});
  }
  if (!ok) return std::unexpected(ok.error());
  return request;
}

std::string EncodeRequest(const ControlRequest& request) {
  json object;
  for (const auto& [name, op] : kOps) {
    if (op == request.op) object["op"] = name;
  }
  if (request.op == ControlOp::kRemoveShare || request.op == ControlOp::kUpdateShare ||
      request.op == ControlOp::kInspectShare) {
    object["name"] = request.name;
  }
  if (request.op == ControlOp::kUpdateShare) {
    const ShareChange& from = request.change;
    json& change = object["change"] = WriteTerms(from);
    if (!from.on.empty()) change["on"] = WriteOn(from.on);
    if (from.on_full) change["on_full"] = FormatOnFull(*from.on_full);
    if (from.gang) change["gang"] = FormatGang(*from.gang);
    if (from.allow_users) change["allow_users"] = FormatAllowedUsers(*from.allow_users);
  }
  if (request.op == ControlOp::kEvents) {
    if (request.events.since) object["since"] = *request.events.since;
    if (request.events.follow) object["follow"] = true;
    if (!request.events.share.empty()) object["share"] = request.events.share;
  }
  if (request.op == ControlOp::kTrace) {
    object["gpu"] = request.trace.gpu;
    object["seconds"] = request.trace.seconds;
    if (request.trace.after) object["after"] = *request.trace.after;
  }
  if (request.op == ControlOp::kCreateShare) {
    const ShareSpec& spec = request.share;
    json& share = object["share"] = json::object();
    if (spec.name) share["name"] = *spec.name;
    if (spec.token) share["token"] = *spec.token;
    if (spec.any_container) share["containers"] = "any";
    if (spec.exclusive) share["mode"] = "exclusive";
    if (spec.gpus.size() == 1) share["gpu"] = spec.gpus.front();
    if (spec.gpus.size() > 1) share["gpu"] = spec.gpus;
    if (spec.gpu_count) share["gpus"] = *spec.gpu_count;
    WriteMemory(spec.memory, "memory", share);
    WriteMemory(spec.memory_request, "memory_request", share);
    share["compute_request"] = spec.compute_request.value();
    share["compute_limit"] = spec.compute_limit.value();
    share["weight"] = spec.weight;
    share["priority"] = spec.priority;
    share["yield_within_ns"] = spec.yield_within_ns;
    if (!spec.on.empty()) share["on"] = WriteOn(spec.on);
    share["on_full"] = FormatOnFull(spec.on_full);
    share["gang"] = FormatGang(spec.gang);
    share["guaranteed"] = spec.guaranteed;
    if (!spec.allow_users.Nobody()) share["allow_users"] = FormatAllowedUsers(spec.allow_users);
    if (!spec.share_memory_with.empty()) share["share_memory_with"] = spec.share_memory_with;
    if (request.wait) object["wait"] = ToJson(*request.wait);
  }
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace prorata::api
