#include "api/fields.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <set>

#include "api/messages.h"

namespace prorata::api {
namespace {

using Random = std::mt19937_64;

// What a text may be: its words, else the forms that stand in backquotes, else anything.
std::string RandomText(const Shape& shape, Random& random) {
  std::vector<std::string> known;
  if (shape.words != nullptr) {
    for (const std::string_view word : shape.words()) known.emplace_back(word);
  }
  for (size_t from = shape.form.find('`'); from != shape.form.npos;) {
    const size_t end = shape.form.find('`', from + 1);
    known.emplace_back(shape.form.substr(from + 1, end - from - 1));
    from = shape.form.find('`', end + 1);
  }
  return known.empty() ? "text " + std::to_string(random() % 1000 + 1)
                       : known[random() % known.size()];
}

json RandomMessage(const Table& table, Random& random);

json RandomOne(const Shape& shape, Random& random) {
  switch (shape.kind) {
    case Shape::Kind::kFlag:
      return random() % 2 == 1;
    case Shape::Kind::kWhole: {
      if (random() % 4 == 0) return random() % 2 == 1 ? json(shape.most) : json(shape.least);
      const uint64_t span = shape.most - static_cast<uint64_t>(shape.least);
      const uint64_t value = static_cast<uint64_t>(shape.least) +
                             (span == ~uint64_t{0} ? random() : random() % (span + 1));
      return shape.least < 0 ? json(static_cast<int64_t>(value)) : json(value);
    }
    case Shape::Kind::kNumber:
      return static_cast<double>(random() % 999'999 + 1) / 1e6;
    case Shape::Kind::kText:
      return RandomText(shape, random);
    case Shape::Kind::kMessage:
      break;
  }
  return RandomMessage(*shape.table, random);
}

// Every field that a message may have, but for one of two that say the same.
json RandomMessage(const Table& table, Random& random) {
  json object = json::object();
  for (const Field& field : table.fields) {
    if (!field.instead_of.empty()) {
      if (random() % 2 == 1) continue;
      object.erase(std::string(field.instead_of));
    }
    json& value = object[std::string(field.name)];
    if (!field.shape.list) {
      value = RandomOne(field.shape, random);
      continue;
    }
    value = json::array();
    for (uint64_t i = 1 + random() % 3; i > 0; --i) value.push_back(RandomOne(field.shape, random));
  }
  return object;
}

void AllIn(const Table& table, std::set<const Table*>& all) {
  if (!all.insert(&table).second) return;
  for (const Field& field : table.fields) {
    if (field.shape.table != nullptr) AllIn(*field.shape.table, all);
  }
}

std::set<const Table*> AllTables() {
  std::set<const Table*> all;
  for (const Operation& operation : Operations()) AllIn(operation.table, all);
  for (const Table* table : Replies()) AllIn(*table, all);
  return all;
}

// A message of any table: its own copy, read and written again.
struct AnyMessage {
  const Table* table;
  json (*again)(const json&, Source);
};

template <typename M>
AnyMessage Of() {
  return {&TableOf<M>::kTable, [](const json& object, Source source) -> json {
            M message{};
            const auto ok = ReadMessage(TableOf<M>::kTable, object, {source}, &message);
            return ok ? WriteMessage(TableOf<M>::kTable, &message) : json(ok.error().message);
          }};
}

const std::vector<AnyMessage>& Messages() {
  static const std::vector<AnyMessage> all = {
      Of<TermsOnGpu>(),   Of<ShareSpec>(),    Of<ShareChange>(),   Of<StartWait>(),
      Of<HelloReply>(),   Of<ShareStatus>(),  Of<KeptBy>(),        Of<ContainerStatus>(),
      Of<ShareDevice>(),  Of<MemberStatus>(), Of<OutsideStatus>(), Of<WaitingShare>(),
      Of<DeviceStatus>(), Of<DeviceLink>(),   Of<Event>(),         Of<EventsReply>(),
      Of<TraceShare>(),   Of<TraceEntry>(),   Of<TraceReply>(),    Of<Error>()};
  return all;
}

// What a field is after it was read and written is what it was. (But the shares of a trace are put
// in their order, and some of its nanoseconds are microseconds in the agent.)
void ExpectKept(const Table& table, const json& before, const json& after) {
  for (const Field& field : table.fields) {
    const std::string name(field.name);
    if (field.when != nullptr || !before.contains(name) || after.contains(name)) continue;
    const json& value = before[name];  // as a new message has it
    EXPECT_TRUE(value == false || value == 0 || value == "one" || value == "shared")
        << table.name << "." << name << " is lost: " << value;
  }
  for (const auto& [key, value] : after.items()) {
    const auto field = std::ranges::find(table.fields, key, &Field::name);
    ASSERT_NE(field, table.fields.end()) << key;
    if (field->presence == Presence::kDerived || key == "lag_ns" || key == "held_ns") continue;
    if (field->shape.table == nullptr) {
      const json one = value.is_array() && value.size() == 1 ? value[0] : value;
      EXPECT_TRUE(before[key] == value || before[key] == json::array({value}) || before[key] == one)
          << table.name << "." << key << ": " << before[key] << ", then " << value;
    } else if (field->shape.list && field->shape.table != &TableOf<TraceShare>::kTable) {
      ASSERT_EQ(before[key].size(), value.size()) << key;
      for (size_t i = 0; i < value.size(); ++i) {
        ExpectKept(*field->shape.table, before[key][i], value[i]);
      }
    } else if (!field->shape.list) {
      ExpectKept(*field->shape.table, before[key], value);
    }
  }
}

TEST(Fields, EveryTableIsTested) {
  std::set<const Table*> tested;
  for (const AnyMessage& message : Messages()) tested.insert(message.table);
  for (const Operation& operation : Operations()) tested.insert(&operation.table);
  EXPECT_EQ(tested, AllTables());
}

#ifdef PRORATA_SANITIZED
constexpr uint64_t kSeeds = 60;
#else
constexpr uint64_t kSeeds = 300;
#endif

TEST(Fields, WhatIsWrittenIsReadAgain) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Random random(seed);
    for (const auto& [table, again] : Messages()) {
      const json before = RandomMessage(*table, random);
      const json once = again(before, Source::kReply);
      ASSERT_TRUE(once.is_object()) << table->name << ": " << once << " of " << before;
      ASSERT_EQ(again(once, Source::kReply), once) << "seed " << seed;
      ASSERT_NO_FATAL_FAILURE(ExpectKept(*table, before, once)) << "seed " << seed;
    }
  }
}

TEST(Fields, RequestsAreReadAgain) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    Random random(seed);
    for (const Operation& operation : Operations()) {
      json before = RandomMessage(operation.table, random);
      before["op"] = operation.table.name;
      const auto request = DecodeRequest(before.dump());
      ASSERT_TRUE(request) << request.error().message << ": " << before;
      json once = json::parse(EncodeRequest(*request));
      EXPECT_EQ(EncodeRequest(*DecodeRequest(once.dump())), once.dump());
      EXPECT_EQ(once["op"], operation.table.name);
      once.erase("op");
      ASSERT_NO_FATAL_FAILURE(ExpectKept(operation.table, before, once)) << "seed " << seed;
    }
  }
}

// Calls `change` with each object of a message, and with where a person finds it.
void ForEachObject(const Table& table, json& object, const std::string& where,
                   const std::function<void(const Table&, json&, const std::string&)>& change) {
  change(table, object, where);
  for (const Field& field : table.fields) {
    const std::string name(field.name);
    if (field.shape.table == nullptr || !object.contains(name)) continue;
    json& inner = field.shape.list ? object[name][0] : object[name];
    ForEachObject(*field.shape.table, inner,
                  (field.shape.list ? "an entry of '" : "'") + name + "'", change);
  }
}

void ExpectRefused(const json& request, const std::string& part) {
  const auto refused = DecodeRequest(request.dump());
  ASSERT_FALSE(refused) << request;
  EXPECT_EQ(refused.error().code, "malformed");
  EXPECT_NE(refused.error().message.find(part), std::string::npos)
      << refused.error().message << ", not " << part;
}

TEST(Fields, ARequestIsRefusedForAnyFieldThatIsWrong) {
  Random random(1);
  for (const Operation& operation : Operations()) {
    json request = RandomMessage(operation.table, random);
    const auto check = [&](const Table& table, json& object, const std::string& where) {
      json whole = object;
      object["no_such"] = 1;
      ExpectRefused(request, where + " has an unknown field 'no_such'");
      object = whole;
      for (const Field& field : table.fields) {
        const std::string name(field.name);
        if (!object.contains(name)) continue;
        object[name] = {{"neither", "text nor number nor list"}};
        ExpectRefused(request, field.shape.table != nullptr && !field.shape.list
                                   ? "unknown field 'neither'"
                                   : "'" + name + "' is n");
        object.erase(name);
        if (field.presence == Presence::kRequired)
          ExpectRefused(request, "'" + name + "' is missing");
        object = whole;
      }
    };
    request["op"] = operation.table.name;
    ForEachObject(operation.table, request, "the request", check);
  }
}

TEST(Fields, OfAReplyWhatIsNotKnownIsSkippedAndWhatIsWrongIsNamed) {
  Random random(1);
  for (const auto& [table, again] : Messages()) {
    const json whole = again(RandomMessage(*table, random), Source::kReply);
    json object = whole;
    object["of_tomorrow"] = 1;
    EXPECT_EQ(again(object, Source::kReply), whole) << table->name;
    for (const Field& field : table->fields) {
      const std::string name(field.name);
      if (field.presence == Presence::kDerived || !whole.contains(name)) continue;
      object = whole;
      object[name] = field.shape.kind == Shape::Kind::kNumber ? json("text") : json(0.5);
      const json refused = again(object, Source::kReply);
      ASSERT_TRUE(refused.is_string()) << table->name << "." << name;
      EXPECT_NE(refused.get<std::string>().find("'" + name + "'"), std::string::npos) << refused;
      object.erase(name);
      EXPECT_EQ(again(object, Source::kReply).is_object(), field.presence != Presence::kRequired)
          << table->name << "." << name;
    }
  }
}

TEST(Fields, AnAgentOfBeforeIsUnderstood) {
  ShareStatus whole;
  whole.devices.emplace_back().memory_limit_bytes = 5;
  json share = ToJson(whole);
  for (const char* name : {"allow_users", "gang", "runs_as_gang", "guaranteed"}) share.erase(name);
  for (const char* name : {"memory_request_bytes", "persistent_kernels"}) {
    share["devices"][0].erase(name);
  }
  ASSERT_TRUE(ShareFromJson(share)) << ShareFromJson(share).error().message;
  EXPECT_EQ(ShareFromJson(share)->devices[0].memory_request_bytes, 5u) << "all was set aside";
  DeviceStatus promised;
  promised.promised_bytes = 7;
  json device = ToJson(promised);
  EXPECT_EQ(device["set_aside_bytes"], 7) << "for readers of before";
  for (const char* name : {"limit_bytes", "borrowed_bytes", "driver_unresponsive_ms"}) {
    device.erase(name);
  }
  ASSERT_TRUE(DeviceFromJson(device)) << DeviceFromJson(device).error().message;
  EXPECT_EQ(DeviceFromJson(device)->limit_bytes, 7u);
}

// A number without a unit and a field without a description do not compile (fields.h).
TEST(Fields, NamesAreGivenOnce) {
  std::set<std::string_view> tables;
  for (const Table* table : AllTables()) {
    std::set<std::string_view> names;
    for (const Field& field : table->fields) {
      EXPECT_TRUE(names.insert(field.name).second) << table->name << "." << field.name;
      EXPECT_FALSE(field.what.empty()) << table->name << "." << field.name;
      if (!field.instead_of.empty()) {
        EXPECT_TRUE(names.contains(field.instead_of)) << field.instead_of;
      }
    }
    EXPECT_FALSE(table->name.empty() || table->what.empty());
    // An operation may be called as the message that it is answered by.
    const bool message =
        std::ranges::any_of(Messages(), [&](const AnyMessage& any) { return any.table == table; });
    if (message) {
      EXPECT_TRUE(tables.insert(table->name).second) << table->name;
    }
  }
}

TEST(Fields, MemoryIsSaidInOneWay) {
  for (const std::string field : {"memory", "memory_request"}) {
    ExpectRefused(
        {{"op", "create_share"}, {"share", {{field + "_bytes", 1 << 30}, {field + "_part", 0.5}}}},
        "'" + field + "_bytes' and '" + field + "_part' say the same twice");
  }
}

}  // namespace
}  // namespace prorata::api
