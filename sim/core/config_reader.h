#pragma once

#include <cmath>
#include <map>
#include <sstream>
#include <string>

#include "base/bytes.h"
#include "sim/core/config.h"

// Header only and without exceptions: this is linked into a library that lives in other programs.
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

namespace prorata::simgpu {

// Reads one table: each Read* names a key and its place; what nobody read is an error.
class Reader {
 public:
  Reader(const toml::table& table, std::string where) : table_(table), where_(std::move(where)) {}

  void String(const char* key, std::string* value, size_t limit) {
    const toml::node* node = Take(key);
    if (node == nullptr) return;
    const auto text = node->value_exact<std::string>();
    if (!text || text->empty() || text->size() > limit) {
      return RecordError(key, "a text of 1 to " + std::to_string(limit) + " characters");
    }
    *value = *text;
  }
  template <typename Int>
  void Integer(const char* key, Int* value, int64_t low, int64_t high) {
    const toml::node* node = Take(key);
    if (node == nullptr) return;
    const auto number = node->value_exact<int64_t>();
    if (!number || *number < low || *number > high) {
      return RecordError(
          key, "a whole number from " + std::to_string(low) + " to " + std::to_string(high));
    }
    *value = static_cast<Int>(*number);
  }
  void Flag(const char* key, bool* value) {
    const toml::node* node = Take(key);
    if (node == nullptr) return;
    const auto flag = node->value_exact<bool>();
    if (!flag) return RecordError(key, "true or false");
    *value = *flag;
  }
  void Bytes(const char* key, uint64_t* value) {
    const toml::node* node = Take(key);
    if (node == nullptr) return;
    if (const auto number = node->value_exact<int64_t>(); number && *number > 0) {
      *value = static_cast<uint64_t>(*number);
      return;
    }
    const auto text = node->value_exact<std::string>();
    const auto bytes = text ? ParseBytes(*text) : Fail("", "");
    if (!bytes) return RecordError(key, "a size such as \"16GiB\"");
    *value = *bytes;
  }
  // A number in the key's unit, stored in units of 1/scale of it.
  template <typename Int>
  void Scaled(const char* key, Int* value, double scale, double low, double high) {
    double number = 0;
    if (!Number(key, &number, low, high)) return;
    *value = static_cast<Int>(std::llround(number * scale));
  }
  bool Number(const char* key, double* value, double low, double high) {
    const toml::node* node = Take(key);
    if (node == nullptr) return false;
    const auto number = node->value<double>();
    if (!node->is_number() || !(*number >= low && *number <= high)) {
      std::ostringstream range;
      range << "a number from " << low << " to " << high;
      RecordError(key, range.str());
      return false;
    }
    *value = *number;
    return true;
  }
  void RecordError(const std::string& key, const std::string& expected) {
    if (error_.empty()) error_ = where_ + key + ": expected " + expected;
  }
  const toml::node* Take(const char* key) {
    taken_[key] = true;
    return table_.get(key);
  }
  // The first complaint, or an unknown key, or nothing.
  std::string Finish() {
    for (const auto& [key, node] : table_) {
      if (error_.empty() && !taken_.contains(std::string(key.str()))) {
        std::string known;
        for (const auto& [name, unused] : taken_) known += (known.empty() ? "" : ", ") + name;
        error_ = where_ + std::string(key.str()) + ": unknown setting; known here: " + known;
      }
    }
    return error_;
  }

 private:
  const toml::table& table_;
  std::string where_;
  std::map<std::string, bool> taken_;
  std::string error_;
};

// The `[[links]]` of a machine's file (config_links.cc): what was wrong, or nothing. The devices
// must have been read.
std::string ReadLinks(const toml::node& node, const std::string& file, MachineConfig* config);

}  // namespace prorata::simgpu
