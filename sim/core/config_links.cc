#include "sim/core/config_reader.h"

namespace prorata::simgpu {

namespace {

template <typename Value>
struct Named {
  const char* name;
  Value value;
};

constexpr Named<LinkType> kTypes[] = {{"host", LinkType::kHost},
                                      {"pcie-switch", LinkType::kPcieSwitch},
                                      {"nvlink", LinkType::kNvlink}};
constexpr Named<Topology> kTopologies[] = {{"single", Topology::kSingle},
                                           {"multiple", Topology::kMultiple},
                                           {"hostbridge", Topology::kHostBridge},
                                           {"node", Topology::kNode},
                                           {"system", Topology::kSystem}};

template <typename Value, size_t count>
void ReadNamed(Reader* reader, const char* key, const Named<Value> (&known)[count], Value* value) {
  std::string text;
  reader->String(key, &text, 31);
  if (text.empty()) return;
  std::string names;
  for (const auto& [name, meaning] : known) {
    if (text == name) {
      *value = meaning;
      return;
    }
    names += std::string(names.empty() ? "\"" : ", \"") + name + "\"";
  }
  reader->RecordError(key, "one of " + names);
}

LinkConfig DefaultLink(LinkType type) {
  LinkConfig link;
  link.type = type;
  switch (type) {
    case LinkType::kHost:
      break;
    case LinkType::kPcieSwitch:
      link.bytes_per_s = 50'000'000'000;  // assumed: PCIe 5.0 x16, as to the host
      link.topology = Topology::kSingle;
      break;
    case LinkType::kNvlink:
      // H100 and H200 (SXM) data sheets: 18 links, 900 GB/s for both directions together.
      link.bytes_per_s = 450'000'000'000;
      link.nvlinks = 18;
      link.topology = Topology::kNode;
      break;
  }
  return link;
}

// The two devices; -1 and -1 for all pairs.
bool ReadPair(const toml::node* node, int device_count, LinkConfig* link) {
  link->a = link->b = -1;
  if (node == nullptr) return true;
  const toml::array* pair = node->as_array();
  if (pair == nullptr || pair->size() != 2) return false;
  const auto first = pair->get(0)->value_exact<int64_t>();
  const auto second = pair->get(1)->value_exact<int64_t>();
  if (!first || !second || *first == *second) return false;
  if (std::min(*first, *second) < 0 || std::max(*first, *second) >= device_count) return false;
  link->a = static_cast<int>(std::min(*first, *second));
  link->b = static_cast<int>(std::max(*first, *second));
  return true;
}

void Connect(const LinkConfig& link, int a, int b, MachineConfig* config) {
  LinkConfig made = link;
  made.a = a;
  made.b = b;
  for (LinkConfig& known : config->links) {
    if (known.a != a || known.b != b) continue;
    known = made;
    return;
  }
  config->links.push_back(made);
}

}  // namespace

std::string ReadLinks(const toml::node& node, const std::string& file, MachineConfig* config) {
  const toml::array* tables = node.as_array();
  if (tables == nullptr) return file + "links: expected [[links]] tables";
  const auto device_count = static_cast<int>(config->devices.size());
  for (size_t i = 0; i < tables->size(); ++i) {
    const std::string where = file + "links[" + std::to_string(i) + "].";
    const toml::table* table = tables->get(i)->as_table();
    if (table == nullptr) return where + ": expected a table";
    Reader reader(*table, where);
    LinkType type = LinkType::kHost;
    ReadNamed(&reader, "type", kTypes, &type);
    LinkConfig link = DefaultLink(type);
    if (!ReadPair(reader.Take("devices"), device_count, &link)) {
      reader.RecordError("devices", "two different devices by their indices, such as [0, 1]");
    }
    reader.Scaled("gb_per_s", &link.bytes_per_s, 1e9, 0.001, 1e6);
    reader.Integer("nvlinks", &link.nvlinks, type == LinkType::kNvlink ? 1 : 0,
                   type == LinkType::kNvlink ? kMaxNvlinks : 0);
    ReadNamed(&reader, "topology", kTopologies, &link.topology);
    if (const std::string error = reader.Finish(); !error.empty()) return error;
    for (int a = 0; a < device_count; ++a) {
      for (int b = a + 1; b < device_count; ++b) {
        if (link.a == -1 || (link.a == a && link.b == b)) Connect(link, a, b, config);
      }
    }
  }
  return "";
}

const LinkConfig& MachineConfig::LinkBetween(int a, int b) const {
  static const LinkConfig host;
  for (const LinkConfig& link : links) {
    if (link.a == std::min(a, b) && link.b == std::max(a, b)) return link;
  }
  return host;
}

uint64_t MachineConfig::BytesPerSecond(int from, int to) const {
  const LinkConfig& link = LinkBetween(from, to);
  if (link.bytes_per_s != 0) return link.bytes_per_s;
  return std::min(devices[from].d2h_bytes_per_s, devices[to].h2d_bytes_per_s);
}

}  // namespace prorata::simgpu
