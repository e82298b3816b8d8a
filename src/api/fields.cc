#include "api/fields.h"

#include <algorithm>
#include <cmath>

namespace prorata::api {
namespace {

// "'share'", "an entry of 'on'".
std::string Called(const Place& place) {
  return (place.entry ? "an entry of '" : "'") + std::string(place.field) + "'";
}

Status OnlyKnownFields(const Table& table, const json& object, const Place& place) {
  for (const auto& [key, value] : object.items()) {
    if (std::ranges::any_of(table.fields, [&](const Field& field) { return field.name == key; })) {
      continue;
    }
    const std::string whole = place.field.empty() ? "the request" : Called(place);
    return Fail("malformed",
                whole + " has an unknown field '" + key.substr(0, kMaxTextLength) + "'");
  }
  return {};
}

Status ReadField(const Field& field, const json& object, const Place& place, void* message) {
  if (field.read == nullptr || (field.when != nullptr && !field.when(message))) return {};
  const Place here = {place.source, field.name};
  const auto found = object.find(field.name);
  if (found == object.end()) {
    if (field.presence == Presence::kRequired) {
      return Malformed(here, "is missing" + (place.field.empty() ? "" : " in " + Called(place)));
    }
    if (field.if_absent != nullptr) field.if_absent(message);
    return {};
  }
  if (!field.instead_of.empty() && object.contains(field.instead_of)) {
    return Malformed({place.source, field.instead_of},
                     "and '" + std::string(field.name) + "' say the same twice");
  }
  return field.read(*found, here, message);
}

}  // namespace

std::unexpected<Error> Malformed(const Place& place, const std::string& why) {
  return Fail("malformed", "'" + std::string(place.field) + "' " + why);
}

json WriteMessage(const Table& table, const void* message) {
  json object = json::object();
  for (const Field& field : table.fields) {
    if (field.when != nullptr && !field.when(message)) continue;
    if (field.presence == Presence::kOptional && !field.present(message)) continue;
    object[field.name] = field.write(message);
  }
  return object;
}

Status ReadMessage(const Table& table, const json& value, const Place& place, void* message) {
  if (!value.is_object()) {
    return Fail("malformed", (place.field.empty() ? "it" : Called(place)) + " is not an object");
  }
  const bool request = place.source == Source::kRequest;
  Status ok = request ? OnlyKnownFields(table, value, place) : Status{};
  for (auto field = table.fields.begin(); ok && field != table.fields.end(); ++field) {
    ok = ReadField(*field, value, place, message);
  }
  if (!ok || !request || table.check == nullptr) return ok;
  const std::string wrong = table.check(message);
  if (wrong.empty()) return {};
  return Fail("malformed", wrong);
}

std::unexpected<Error> Unreadable(const Table& table, const Error& why) {
  return Fail("agent_reply", "the agent's answer cannot be read (" + std::string(table.name) +
                                 ": " + why.message +
                                 "); are agent and prorata of the same version?");
}

Status CheckWhole(const json& value, const Place& place, const Shape& shape) {
  bool whole = value.is_number_integer();
  if (whole && !value.is_number_unsigned() && value.get<int64_t>() < 0) {
    whole = value.get<int64_t>() >= shape.least;
  } else if (whole) {
    const auto number = value.get<uint64_t>();
    whole = number <= shape.most && (shape.least <= 0 || number >= uint64_t(shape.least));
  }
  if (whole) return {};
  return Malformed(place, "is not a whole number from " + std::to_string(shape.least) + " to " +
                              std::to_string(shape.most));
}

Status ReadText(const json& value, const Place& place, size_t most, std::string& text) {
  if (!value.is_string()) return Malformed(place, "is not a text");
  text = value.get_ref<const std::string&>();
  if (place.source == Source::kRequest && text.size() > most) {
    return Malformed(place, "is longer than " + std::to_string(most) + " characters");
  }
  return {};
}

Status Codec<double>::Read(const json& value, const Place& place, double& number) {
  if (!value.is_number()) return Malformed(place, "is not a number");
  number = value.get<double>();
  return {};
}

Status CheckList(const json& value, const Place& place, size_t most) {
  const bool any = place.source == Source::kReply;
  if (value.is_array() && (any || value.size() <= most)) return {};
  return Malformed(
      place, "is not a list" + (any ? "" : " of at most " + std::to_string(most) + " entries"));
}

Status ReadFlag(const json& value, const Place& place, const WordsOfFlag& words, bool& flag) {
  const bool known = value.is_string() && (value == words.no || value == words.yes);
  flag = known && value == words.yes;
  if (known || (value.is_string() && place.source == Source::kReply)) return {};
  return Malformed(place, "is neither " + std::string(words.no) + " nor " + std::string(words.yes));
}

Status Codec<bool>::Read(const json& value, const Place& place, bool& flag) {
  if (!value.is_boolean()) return Malformed(place, "is neither true nor false");
  flag = value.get<bool>();
  return {};
}

Status Codec<Fraction>::Read(const json& value, const Place& place, Fraction& fraction) {
  const double number = value.is_number() ? value.get<double>() : -1;
  // Promises of an agent may add up to more than there is.
  const bool fits = number <= 1 || (place.source == Source::kReply && number <= 1000);
  if (!(number >= 0)) return Malformed(place, "is not a number from 0 to 1");
  if (!fits) {
    return Fail("bad_fraction", "'" + std::string(place.field) + "' is " + value.dump() +
                                    ", above 1: a share is a part of one GPU, from 0 to 1");
  }
  fraction = {static_cast<uint32_t>(std::llround(number * Fraction::kOne))};
  return {};
}

}  // namespace prorata::api
