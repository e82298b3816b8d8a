#pragma once

// Reads a TOML table key by key; remembers the first complaint; a key that nobody asked for is one.

#include <cstdint>
#include <functional>
#include <set>
#include <sstream>
#include <string>

#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

namespace prorata::simulation {

class TomlReader {
 public:
  // `where` is what stands before a key in an error: "FILE: programs[0].".
  TomlReader(const toml::table& table, std::string where)
      : table_(table), where_(std::move(where)) {}

  const toml::node* Take(const char* key) {
    known_.insert(key);
    return table_.get(key);
  }
  bool Has(const char* key) const { return table_.contains(key); }

  void RecordError(const std::string& key, const std::string& expected) {
    if (error_.empty()) error_ = where_ + key + ": expected " + expected;
  }

  bool Text(const char* key, std::string* out) {
    const toml::node* node = Take(key);
    if (node == nullptr) return false;
    const auto text = node->value_exact<std::string>();
    if (!text || text->empty() || text->size() > 100) {
      RecordError(key, "a text of 1 to 100 characters");
      return false;
    }
    *out = *text;
    return true;
  }
  bool Bool(const char* key, bool* out) {
    const toml::node* node = Take(key);
    if (node == nullptr) return false;
    const auto value = node->value_exact<bool>();
    if (!value) {
      RecordError(key, "true or false");
      return false;
    }
    *out = *value;
    return true;
  }
  bool Integer(const char* key, int* out, int low, int high) {
    const toml::node* node = Take(key);
    if (node == nullptr) return false;
    const auto value = node->value_exact<int64_t>();
    if (!value || *value < low || *value > high) {
      RecordError(key,
                  "a whole number from " + std::to_string(low) + " to " + std::to_string(high));
      return false;
    }
    *out = static_cast<int>(*value);
    return true;
  }
  bool Number(const char* key, double* out, double low, double high) {
    const toml::node* node = Take(key);
    return node != nullptr && NumberIn(key, *node, out, low, high);
  }
  bool NumberIn(const char* key, const toml::node& node, double* out, double low, double high) {
    const auto value = node.value<double>();
    if (!node.is_number() || !(*value >= low && *value <= high)) {
      std::ostringstream range;
      range << "a number from " << low << " to " << high;
      RecordError(key, range.str());
      return false;
    }
    *out = *value;
    return true;
  }

  // Every table of the array of tables `key`.
  void Tables(const char* key,
              const std::function<void(const toml::table&, std::string where)>& f) {
    const toml::node* node = Take(key);
    if (node == nullptr) return;
    const toml::array* array = node->as_array();
    if (array == nullptr || !array->is_homogeneous(toml::node_type::table)) {
      return RecordError(key, std::string("[[") + key + "]] tables");
    }
    for (size_t i = 0; i < array->size(); ++i) {
      f(*array->get(i)->as_table(), where_ + key + "[" + std::to_string(i) + "].");
    }
  }

  // An error of a part that read itself.
  void Adopt(const std::string& error) {
    if (error_.empty()) error_ = error;
  }
  // The first complaint, or an unknown key, or nothing.
  std::string Finish() {
    for (const auto& [key, node] : table_) {
      if (!error_.empty() || known_.contains(std::string(key.str()))) continue;
      std::string known;
      for (const std::string& name : known_) known += (known.empty() ? "" : ", ") + name;
      error_ = where_ + std::string(key.str()) + ": unknown key; known here: " + known;
    }
    return error_;
  }

 private:
  const toml::table& table_;
  std::string where_;
  std::set<std::string> known_;
  std::string error_;
};

}  // namespace prorata::simulation
