#pragma once

// A message of the control socket is described by one table of its fields, one line each. The table
// is what writes the message as JSON, reads it, refuses what is wrong in it, and documents it
// (docs/reference/control.md). To add a field to a message: the member, and its line in the table.
//
//   constexpr Field kMember[] = {
//       Required<&MemberStatus::pid>("pid", "the process", kId),
//       Optional<&MemberStatus::command>("command", "as in /proc/PID/comm"),
//   };
//   template <>
//   constinit const Table TableOf<MemberStatus>::kTable = {"member", "A process.", kMember};
//
// How a member is written follows from its type, whose Codec is below; a second template argument
// says otherwise: Required<&M::weight, Between<1, 100>>(...). A number has a unit, by which is
// meant that it does not compile without. Fields are read in the order of the table.
//
// Include it in sources that have tables, and in no header. Pure; thread-safe.

#include <concepts>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "api/allowed_users.h"
#include "api/gang.h"
#include "api/on_full.h"
#include "base/fraction.h"
#include "base/result.h"

namespace prorata::api {

using nlohmann::json;

// Who wrote what is read. Of a request, a field or word that is not known is refused: a misspelt
// limit must not be a share without one. A reply may be of an agent of another version: what is not
// known there is left out.
enum class Source : uint8_t { kRequest, kReply };

// Where a value lies, for errors about it.
struct Place {
  Source source = Source::kReply;
  std::string_view field = {};  // empty: the whole message
  bool entry = false;           // of the list that is there
};

// "malformed", "'weight' " and then `why`.
std::unexpected<Error> Malformed(const Place& place, const std::string& why);

enum class Presence : uint8_t {
  kRequired,   // always written; a message without it is no message
  kDefaulted,  // always written; absent, the member is as a new one's (IfAbsent)
  kOptional,   // written if it is not as a new one's
  kDerived,    // written, and not read: for readers of another kind
};

struct Unit {
  std::string_view name;
};
inline constexpr Unit kBytes = {"bytes"}, kNs = {"ns"}, kMs = {"ms"}, kSeconds = {"s"};
inline constexpr Unit kUnixMs = {"ms since 1970"}, kUnixNs = {"ns since 1970"};
inline constexpr Unit kUnixSeconds = {"s since 1970"};
inline constexpr Unit kRatio = {"ratio"}, kCount = {"count"}, kId = {"id"}, kRank = {"rank"},
                      kParts = {"parts"};

struct Table;

// What a value looks like in JSON, for the reference and for tests.
struct Shape {
  enum class Kind : uint8_t { kFlag, kWhole, kNumber, kText, kMessage };
  Kind kind = Kind::kText;
  int64_t least = 0;  // kWhole
  uint64_t most = 0;
  std::vector<std::string_view> (*words)() = nullptr;  // kText: all that it may be
  std::string_view form = {};                          // kText, kNumber: what else it is, in words
  const Table* table = nullptr;                        // kMessage
  bool list = false;                                   // a list of them
};

struct Field {
  std::string_view name = {};
  std::string_view what = {};
  Unit unit = {};
  Presence presence = Presence::kRequired;
  Shape shape = {};
  std::string_view instead_of = {};  // a field that says the same in another way
  // The message, untyped: the engine in fields.cc is compiled once.
  const void* (*fresh)() = nullptr;  // a new message
  bool (*present)(const void*) = nullptr;
  json (*write)(const void*) = nullptr;
  Status (*read)(const json&, const Place&, void*) = nullptr;
  bool (*when)(const void*) = nullptr;  // else it is neither written nor read
  void (*if_absent)(void*) = nullptr;
};

struct Table {
  std::string_view name;
  std::string_view what;
  std::span<const Field> fields;
  // What is wrong with a request's fields together; "": nothing.
  std::string (*check)(const void*) = nullptr;
};

// Every message has one; they are declared in messages.h.
template <typename Message>
struct TableOf {
  static const Table kTable;
};

json WriteMessage(const Table& table, const void* message);
Status ReadMessage(const Table& table, const json& value, const Place& place, void* message);
// "agent_reply", of a message that another process sent.
std::unexpected<Error> Unreadable(const Table& table, const Error& why);

template <typename Message>
Result<Message> ReadReply(const json& value) {
  Message message{};
  const Status ok = ReadMessage(TableOf<Message>::kTable, value, {}, &message);
  if (!ok) return Unreadable(TableOf<Message>::kTable, ok.error());
  return message;
}

// ---- How values are written and read ----

inline constexpr size_t kMaxTextLength = 256;  // any name or UUID; an error repeats what it got
inline constexpr uint64_t kMaxWhole = uint64_t{1} << 62;  // of bytes and sequences in a request

Status CheckWhole(const json& value, const Place& place, const Shape& shape);
Status ReadText(const json& value, const Place& place, size_t most, std::string& text);
Status CheckList(const json& value, const Place& place, size_t most);

// A message of its own.
template <typename T>
struct Codec {
  static constexpr Shape kShape = {.kind = Shape::Kind::kMessage, .table = &TableOf<T>::kTable};
  static json Write(const T& value) { return WriteMessage(TableOf<T>::kTable, &value); }
  static Status Read(const json& from, const Place& place, T& value) {
    return ReadMessage(TableOf<T>::kTable, from, place, &value);
  }
};

template <auto kLeast, auto kMost>
struct Between {
  static constexpr Shape kShape = {
      .kind = Shape::Kind::kWhole, .least = int64_t{kLeast}, .most = uint64_t{kMost}};
  static json Write(std::integral auto value) { return value; }
  template <std::integral T>
  static Status Read(const json& from, const Place& place, T& value) {
    const Status ok = CheckWhole(from, place, kShape);
    if (ok) value = from.get<T>();
    return ok;
  }
};
template <std::integral T>
struct Codec<T> : Between<std::numeric_limits<T>::min(), std::numeric_limits<T>::max()> {};

// Two words for a flag.
struct WordsOfFlag {
  std::string_view no, yes;
};
Status ReadFlag(const json& value, const Place& place, const WordsOfFlag& words, bool& flag);
template <const WordsOfFlag& kWords>
struct FlagAs {
  static constexpr Shape kShape = {
      .words = [] { return std::vector<std::string_view>{kWords.no, kWords.yes}; }};
  static json Write(bool value) { return value ? kWords.yes : kWords.no; }
  static Status Read(const json& from, const Place& place, bool& value) {
    return ReadFlag(from, place, kWords, value);
  }
};

template <>
struct Codec<bool> {
  static constexpr Shape kShape = {.kind = Shape::Kind::kFlag};
  static json Write(bool value) { return value; }
  static Status Read(const json& from, const Place& place, bool& value);
};
template <>
struct Codec<double> {
  static constexpr Shape kShape = {.kind = Shape::Kind::kNumber};
  static json Write(double value) { return value; }
  static Status Read(const json& from, const Place& place, double& value);
};
template <>
struct Codec<Fraction> {
  static constexpr Shape kShape = {.kind = Shape::Kind::kNumber, .form = "from 0 to 1"};
  static json Write(Fraction value) { return value.value(); }
  static Status Read(const json& from, const Place& place, Fraction& value);
};
template <>
struct Codec<std::string> {
  static constexpr Shape kShape = {};
  static json Write(const std::string& value) { return value; }
  static Status Read(const json& from, const Place& place, std::string& value) {
    return ReadText(from, place, kMaxTextLength, value);
  }
};

// A value that has a form as text. What a reply says in a form of tomorrow leaves it as it is.
template <auto kParse, auto kFormat, size_t kMost = kMaxTextLength>
struct TextAs {
  static json Write(const auto& value) { return kFormat(value); }
  static Status Read(const json& from, const Place& place, auto& value) {
    std::string text;
    if (auto ok = ReadText(from, place, kMost, text); !ok) return ok;
    auto parsed = kParse(text);
    if (parsed) value = std::move(*parsed);
    if (parsed || place.source == Source::kReply) return {};
    return std::unexpected(parsed.error());
  }
};
template <>
struct Codec<OnFull> : TextAs<ParseOnFull, FormatOnFull> {
  static constexpr Shape kShape = {.form = "`fail`, `wait` or `wait=30s`"};
};
template <>
struct Codec<Gang> : TextAs<ParseGang, FormatGang> {
  static constexpr Shape kShape = {.form = "`auto`, `always` or `never`"};
};
template <>
struct Codec<AllowedUsers>
    : TextAs<ParseAllowedUsers, FormatAllowedUsers, std::numeric_limits<size_t>::max()> {
  static constexpr Shape kShape = {.form = "`all`, user ids as `1000,1001`, or nothing: nobody"};
};

// The names of an enumeration, as a specialization with `kAll`, an array of pairs.
template <typename E>
struct Names;

template <typename E>
std::string_view NameIn(E value) {
  for (const auto& [known, name] : Names<E>::kAll) {
    if (known == value) return name;
  }
  return "unknown";
}

template <typename E>
std::optional<E> ValueIn(std::string_view name) {
  for (const auto& [value, known] : Names<E>::kAll) {
    if (known == name) return value;
  }
  return std::nullopt;
}

// What is not known is refused, too, in a reply that makes no sense without (kStrict).
template <typename E, bool kStrict = false>
struct NameAs {
  static constexpr Shape kShape = {.words = [] {
    std::vector<std::string_view> words;
    for (const auto& [value, name] : Names<E>::kAll) words.push_back(name);
    return words;
  }};
  static json Write(E value) { return NameIn(value); }
  static Status Read(const json& from, const Place& place, E& value) {
    std::string name;
    if (auto ok = ReadText(from, place, kMaxTextLength, name); !ok) return ok;
    const auto known = ValueIn<E>(name);
    if (known) value = *known;
    if (known || (!kStrict && place.source == Source::kReply)) return {};
    return Malformed(place, "is '" + name + "', which is not known");
  }
  // Of a list, what is not known is left out.
  static bool Skips(const json& from) {
    return from.is_string() && !ValueIn<E>(from.get_ref<const std::string&>());
  }
};
template <typename E>
  requires std::is_enum_v<E>
struct Codec<E> : NameAs<E> {};

template <typename Inner, size_t kMost = std::numeric_limits<size_t>::max()>
struct ListOf {
  static constexpr Shape kShape = [] {
    Shape shape = Inner::kShape;
    shape.list = true;
    return shape;
  }();
  template <typename T>
  static json Write(const std::vector<T>& list) {
    json written = json::array();
    for (const T& one : list) written.push_back(Inner::Write(one));
    return written;
  }
  template <typename T>
  static Status Read(const json& from, const Place& place, std::vector<T>& list) {
    Status ok = CheckList(from, place, kMost);
    for (auto entry = from.begin(); ok && entry != from.end(); ++entry) {
      if constexpr (requires { Inner::Skips(*entry); }) {
        if (Inner::Skips(*entry)) continue;
      }
      ok = Inner::Read(*entry, {place.source, place.field, true}, list.emplace_back());
    }
    return ok;
  }
};
template <typename T>
struct Codec<std::vector<T>> : ListOf<Codec<T>> {};

// ---- The lines of a table ----

template <typename Message>
struct FieldOf : Field {
  // Only of messages for which `kWhen` holds.
  template <bool (*kWhen)(const Message&)>
  constexpr FieldOf When() const {
    FieldOf field = *this;
    field.when = [](const void* message) { return kWhen(*static_cast<const Message*>(message)); };
    return field;
  }
  // What the member is in a message that does not have the field.
  template <void (*kSet)(Message&)>
  constexpr FieldOf IfAbsent() const {
    FieldOf field = *this;
    field.if_absent = [](void* message) { kSet(*static_cast<Message*>(message)); };
    return field;
  }
  // Another way to say what the field `other` says; both together are refused.
  constexpr FieldOf InsteadOf(std::string_view other) const {
    FieldOf field = *this;
    field.instead_of = other;
    return field;
  }
};

template <typename T>
struct MemberType;
template <typename M, typename T>
struct MemberType<T M::*> {
  using Message = M;
  using Value = T;
};
template <typename M, typename T>
struct MemberType<std::optional<T> M::*> : MemberType<T M::*> {
  static constexpr bool kOptional = true;
};
template <auto kMember>
using CodecOf = Codec<typename MemberType<decltype(kMember)>::Value>;
template <auto kMember>
inline constexpr bool kIsOptional = requires { MemberType<decltype(kMember)>::kOptional; };

template <typename Message>
const void* Fresh() {
  static const Message kMessage{};
  return &kMessage;
}

template <typename Message>
constexpr FieldOf<Message> MakeField(Presence presence, std::string_view name,
                                     std::string_view what, Unit unit, const Shape& shape) {
  const bool number = shape.kind == Shape::Kind::kWhole || shape.kind == Shape::Kind::kNumber;
  if (number == unit.name.empty()) throw "a number has a unit, and nothing else has";
  if (what.empty()) throw "a field has a description";
  return {{name, what, unit, presence, shape, {}, &Fresh<Message>}};
}

// Whether a member says something that a new message's does not.
template <auto kMember, typename How>
bool IsPresent(const auto& message) {
  const auto& value = message.*kMember;
  if constexpr (requires { How::Present(*value); }) {
    return value && How::Present(*value);
  } else if constexpr (kIsOptional<kMember>) {
    return value.has_value();
  } else if constexpr (requires { value.empty(); }) {
    return !value.empty();
  } else if constexpr (std::equality_comparable<decltype(value)>) {
    return value != std::remove_cvref_t<decltype(message)>{}.*kMember;
  } else {
    return true;
  }
}

template <auto kMember, typename How>
constexpr auto FieldOfMember(Presence presence, std::string_view name, std::string_view what,
                             Unit unit) {
  using Message = typename MemberType<decltype(kMember)>::Message;
  auto field = MakeField<Message>(presence, name, what, unit, How::kShape);
  field.present = [](const void* message) {
    return IsPresent<kMember, How>(*static_cast<const Message*>(message));
  };
  field.write = [](const void* message) -> json {
    const auto& value = static_cast<const Message*>(message)->*kMember;
    if constexpr (kIsOptional<kMember>)
      return How::Write(*value);
    else
      return How::Write(value);
  };
  field.read = [](const json& from, const Place& place, void* message) -> Status {
    auto& value = static_cast<Message*>(message)->*kMember;
    if constexpr (kIsOptional<kMember>)
      return How::Read(from, place, value.emplace());
    else
      return How::Read(from, place, value);
  };
  return field;
}

template <auto kMember, typename How = CodecOf<kMember>>
constexpr auto Required(std::string_view name, std::string_view what, Unit unit = {}) {
  return FieldOfMember<kMember, How>(Presence::kRequired, name, what, unit);
}
template <auto kMember, typename How = CodecOf<kMember>>
constexpr auto Defaulted(std::string_view name, std::string_view what, Unit unit = {}) {
  return FieldOfMember<kMember, How>(Presence::kDefaulted, name, what, unit);
}
template <auto kMember, typename How = CodecOf<kMember>>
constexpr auto Optional(std::string_view name, std::string_view what, Unit unit = {}) {
  return FieldOfMember<kMember, How>(Presence::kOptional, name, what, unit);
}
// What a function of the message says.
template <typename Message, auto kFunction>
constexpr Field Derived(std::string_view name, std::string_view what, Unit unit = {}) {
  using How = Codec<decltype(kFunction(std::declval<const Message&>()))>;
  auto field = MakeField<Message>(Presence::kDerived, name, what, unit, How::kShape);
  field.write = [](const void* message) -> json {
    return How::Write(kFunction(*static_cast<const Message*>(message)));
  };
  return field;
}

}  // namespace prorata::api
