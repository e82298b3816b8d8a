#include "sim/cluster/trace.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <tuple>
#include <unordered_map>

#define CSV_IO_NO_THREAD
#include <csv.h>

namespace prorata::sim::cluster {
namespace {

namespace placement = policy::placement;

// One file. `Columns` are named; those that begin with '?' may be missing.
template <size_t count>
class Table {
 public:
  using Row = std::array<std::string, count>;

  static Result<Table> Open(const std::string& path, const std::array<const char*, count>& names) {
    Table table;
    table.path_ = path;
    table.names_ = names;
    try {
      table.reader_ = std::make_unique<Reader>(path);
      std::apply([&](const auto*... name) { table.ReadHeader(name...); }, names);
    } catch (const io::error::base& error) {
      return Fail("bad_trace", table.Describe(error));
    }
    for (size_t i = 0; i < count; ++i) {
      if (names[i][0] != '?' && !table.Has(i)) {
        return Fail("bad_trace", path + ":1: there is no column '" + names[i] + "'");
      }
    }
    return table;
  }

  bool Has(size_t column) const { return reader_->has_column(Name(column)); }
  std::string Name(size_t column) const { return names_[column] + (names_[column][0] == '?'); }

  // False at the end.
  Result<bool> Next(Row* row) {
    for (std::string& cell : *row) cell.clear();
    try {
      return std::apply([&](auto&... cell) { return reader_->read_row(cell...); }, *row);
    } catch (const io::error::base& error) {
      return Fail("bad_trace", Describe(error));
    }
  }

  std::unexpected<Error> Bad(const std::string& what) const {
    return Fail("bad_trace", path_ + ":" + std::to_string(reader_->get_file_line()) + ": " + what);
  }

  // A whole number, in the column or (where it may be missing) `otherwise`.
  Status Read(const Row& row, size_t column, int64_t least, int64_t most, int64_t* value) const {
    const std::string& cell = row[column];
    if (names_[column][0] == '?' && cell.empty()) return {};
    const auto [end, code] = std::from_chars(cell.data(), cell.data() + cell.size(), *value);
    if (code != std::errc() || end != cell.data() + cell.size() || *value < least ||
        *value > most) {
      return Bad(Name(column) + ": '" + cell.substr(0, 40) + "' is not a whole number from " +
                 std::to_string(least) + " to " + std::to_string(most));
    }
    return {};
  }

 private:
  using Reader = io::CSVReader<count, io::trim_chars<' ', '\t'>, io::no_quote_escape<','>>;

  template <typename... Names>
  void ReadHeader(Names... name) {
    reader_->read_header(io::ignore_extra_column | io::ignore_missing_column,
                         std::string(name + (name[0] == '?'))...);
  }

  std::string Describe(const io::error::base& error) const {
    if (dynamic_cast<const io::error::can_not_open_file*>(&error) != nullptr) {
      return path_ + ": cannot be opened";
    }
    std::string line = "1";
    if (const auto* at = dynamic_cast<const io::error::with_file_line*>(&error);
        at != nullptr && at->file_line > 0) {
      line = std::to_string(at->file_line);
    }
    std::string what = "is not a line of a CSV file with these columns";
    if (dynamic_cast<const io::error::too_few_columns*>(&error) != nullptr) {
      what = "too few columns";
    } else if (dynamic_cast<const io::error::too_many_columns*>(&error) != nullptr) {
      what = "too many columns";
    } else if (dynamic_cast<const io::error::header_missing*>(&error) != nullptr) {
      what = "the file is empty";
    } else if (dynamic_cast<const io::error::duplicated_column_in_header*>(&error) != nullptr) {
      what = "a column is named twice";
    }
    return path_ + ":" + line + ": " + what;
  }

  std::string path_;
  std::array<const char*, count> names_;
  std::unique_ptr<Reader> reader_;
};

constexpr int64_t kMaxNodeCpuMilli = 100'000'000;
constexpr int64_t kMaxMib = int64_t{1} << 30;
constexpr int64_t kMaxSeconds = int64_t{1} << 40;

Result<uint8_t> ModelNumber(const std::string& name, std::vector<std::string>* models) {
  const auto at = std::ranges::find(*models, name);
  if (at == models->end()) {
    if (models->size() == placement::kMaxModels) {
      return Fail("bad_trace", "more than " + std::to_string(placement::kMaxModels) + " models");
    }
    models->push_back(name);
    return static_cast<uint8_t>(models->size() - 1);
  }
  return static_cast<uint8_t>(at - models->begin());
}

enum NodeColumn { kSn, kNodeCpu, kNodeMemory, kGpu, kModel, kNodeGpuMemory, kRack, kLinks };
constexpr std::array<const char*, 8> kNodeColumns = {
    "sn", "cpu_milli", "memory_mib", "gpu", "model", "?gpu_memory_mib", "?rack", "?links"};

Status FillNode(const Table<8>& table, const Table<8>::Row& row, bool cpu_nodes, Node* node,
                std::vector<std::string>* models) {
  int64_t cpu = 0, memory = 0, gpus = 0, gpu_memory = 0, rack = 0;
  for (const auto& [column, least, most, value] :
       {std::tuple{kNodeCpu, int64_t{1}, kMaxNodeCpuMilli, &cpu},
        std::tuple{kNodeMemory, int64_t{1}, kMaxMib, &memory},
        std::tuple{kGpu, int64_t{0}, int64_t{placement::kMaxGpusPerNode}, &gpus},
        std::tuple{kNodeGpuMemory, int64_t{0}, kMaxMib, &gpu_memory},
        std::tuple{kRack, int64_t{0}, int64_t{1} << 31, &rack}}) {
    if (auto ok = table.Read(row, column, least, most, value); !ok) return ok;
  }
  node->name = row[kSn];
  if (node->name.empty()) return table.Bad("sn: the node has no name");
  if (gpus == 0 && !cpu_nodes) {
    return table.Bad("node " + node->name + " has no GPU; --cpu-nodes allows such nodes");
  }
  if (gpus > 0 && row[kModel].empty()) {
    return table.Bad("model: node " + node->name + " has GPUs of no model");
  }
  node->links = row[kLinks];
  if (!node->links.empty() && node->links != "even" && node->links != "dgx1" &&
      node->links != "pcie2x4") {
    return table.Bad("links: '" + node->links + "' is not even, dgx1 or pcie2x4");
  }
  if ((node->links == "dgx1" || node->links == "pcie2x4") && gpus != 8) {
    return table.Bad("links: " + node->links + " is a node of 8 GPUs");
  }
  node->spec = {.cpu_milli = static_cast<int32_t>(cpu),
                .memory_mib = static_cast<int32_t>(memory),
                .gpu_count = static_cast<int32_t>(gpus),
                .gpu_memory_mib = static_cast<int32_t>(gpu_memory),
                .rack = static_cast<uint32_t>(rack)};
  if (gpus == 0) return {};
  const auto model = ModelNumber(row[kModel], models);
  if (!model) return table.Bad("model: " + model.error().message);
  node->spec.model = *model;
  return {};
}

enum PodColumn {
  kName,
  kPodCpu,
  kPodMemory,
  kNumGpu,
  kPodGpuMilli,
  kGpuSpec,
  kCreation,
  kDeletion,
  kPodGpuMemory
};
constexpr std::array<const char*, 9> kPodColumns = {
    "name",      "cpu_milli",      "memory_mib",     "num_gpu",        "gpu_milli",
    "?gpu_spec", "?creation_time", "?deletion_time", "?gpu_memory_mib"};

Status FillModels(const Table<9>& table, const std::string& spec,
                  const std::vector<std::string>& models, placement::Request* request) {
  if (spec.empty()) return {};
  request->models = 0;
  for (size_t from = 0; from <= spec.size();) {
    const size_t bar = std::min(spec.find('|', from), spec.size());
    const std::string name = spec.substr(from, bar - from);
    from = bar + 1;
    const auto at = std::ranges::find(models, name);
    if (at == models.end()) {
      std::string known;
      for (const std::string& model : models) known += (known.empty() ? "" : ", ") + model;
      return table.Bad("gpu_spec: no node has the model '" + name + "'; there are " + known);
    }
    request->models |= placement::ModelMask{1} << (at - models.begin());
  }
  return {};
}

Status FillPod(const Table<9>& table, const Table<9>::Row& row,
               const std::vector<std::string>& models, Pod* pod) {
  int64_t cpu = 0, memory = 0, gpus = 0, milli = 0, gpu_memory = 0, creation = 0, deletion = 0;
  for (const auto& [column, least, most, value] :
       {std::tuple{kPodCpu, int64_t{0}, kMaxNodeCpuMilli, &cpu},
        std::tuple{kPodMemory, int64_t{0}, kMaxMib, &memory},
        std::tuple{kNumGpu, int64_t{0}, int64_t{placement::kMaxGpusPerNode}, &gpus},
        std::tuple{kPodGpuMilli, int64_t{0}, int64_t{placement::kGpuMilli}, &milli},
        std::tuple{kPodGpuMemory, int64_t{0}, kMaxMib, &gpu_memory},
        std::tuple{kCreation, int64_t{0}, kMaxSeconds, &creation},
        std::tuple{kDeletion, int64_t{0}, kMaxSeconds, &deletion}}) {
    if (auto ok = table.Read(row, column, least, most, value); !ok) return ok;
  }
  pod->name = row[kName];
  if (pod->name.empty()) return table.Bad("name: the pod has no name");
  if ((gpus == 0) != (milli == 0)) {
    return table.Bad("num_gpu " + row[kNumGpu] + " and gpu_milli " + row[kPodGpuMilli] +
                     " contradict each other");
  }
  if (deletion < creation) return table.Bad("deletion_time is before creation_time");
  pod->request = {.cpu_milli = static_cast<int32_t>(cpu),
                  .memory_mib = static_cast<int32_t>(memory),
                  .gpu_count = static_cast<int32_t>(gpus),
                  .gpu_milli = static_cast<int32_t>(milli),
                  .gpu_memory_mib = static_cast<int32_t>(gpu_memory)};
  pod->arrival_s = creation;
  pod->run_s = deletion - creation;
  return FillModels(table, row[kGpuSpec], models, &pod->request);
}

}  // namespace

int64_t Nodes::GpuMilli() const {
  int64_t total = 0;
  for (const Node& node : nodes) total += int64_t{node.spec.gpu_count} * placement::kGpuMilli;
  return total;
}

Result<Nodes> ReadNodes(const std::string& path, bool cpu_nodes) {
  auto table = Table<8>::Open(path, kNodeColumns);
  if (!table) return std::unexpected(table.error());
  Nodes nodes;
  std::unordered_map<std::string, size_t> lines;
  Table<8>::Row row;
  for (;;) {
    const auto more = table->Next(&row);
    if (!more) return std::unexpected(more.error());
    if (!*more) break;
    Node node;
    if (auto ok = FillNode(*table, row, cpu_nodes, &node, &nodes.models); !ok) {
      return std::unexpected(ok.error());
    }
    const auto [at, added] = lines.try_emplace(node.name, nodes.nodes.size() + 2);
    if (!added) {
      return table->Bad("node " + node.name + " is already on line " + std::to_string(at->second));
    }
    nodes.nodes.push_back(std::move(node));
  }
  if (nodes.GpuMilli() == 0) return Fail("bad_trace", path + ": no node has a GPU");
  return nodes;
}

Result<Pods> ReadPods(const std::string& path, const std::vector<std::string>& models) {
  auto table = Table<9>::Open(path, kPodColumns);
  if (!table) return std::unexpected(table.error());
  Pods pods;
  pods.has_times = table->Has(kCreation) && table->Has(kDeletion);
  std::unordered_map<std::string, size_t> lines;
  Table<9>::Row row;
  for (;;) {
    const auto more = table->Next(&row);
    if (!more) return std::unexpected(more.error());
    if (!*more) break;
    Pod pod;
    if (auto ok = FillPod(*table, row, models, &pod); !ok) return std::unexpected(ok.error());
    if (row[kCreation].empty() || row[kDeletion].empty()) pods.has_times = false;
    const auto [at, added] = lines.try_emplace(pod.name, pods.pods.size() + 2);
    if (!added) {
      return table->Bad("pod " + pod.name + " is already on line " + std::to_string(at->second));
    }
    pods.pods.push_back(std::move(pod));
  }
  if (pods.pods.empty()) return Fail("bad_trace", path + ": there are no pods");
  NumberKinds(&pods);
  return pods;
}

void NumberKinds(Pods* pods) {
  using Key = std::tuple<int32_t, int32_t, int32_t, int32_t, int32_t, uint64_t>;
  std::map<Key, uint32_t> kinds;
  for (Pod& pod : pods->pods) {
    const placement::Request& r = pod.request;
    const Key key{r.cpu_milli, r.memory_mib, r.gpu_count, r.gpu_milli, r.gpu_memory_mib, r.models};
    pod.kind = kinds.try_emplace(key, static_cast<uint32_t>(kinds.size())).first->second;
  }
  pods->kinds = static_cast<uint32_t>(kinds.size());
}

}  // namespace prorata::sim::cluster
