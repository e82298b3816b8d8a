#include "agent/containers/specifications.h"

#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>

#include "agent/containers/share_edits.h"
#include "agent/runtime/replace_file.h"

namespace prorata::agent {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr char kPrefix[] = "prorata.dev-share-";

Status MakeFolder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error) return {};
  return Fail("cdi", "cannot make '" + folder + "', where container engines look for devices: " +
                         error.message() + "; `prorata agent --cdi-dir` names another folder");
}

Result<json> WriteOne(const ShareConfig& config, const std::string& nvml_path,
                      const ContainerOptions& options) {
  auto edits = EditsOf(config, nvml_path, options.library_folder);
  if (!edits) return std::unexpected(edits.error());
  if (!options.program.empty()) AddCacheHook(options.program, &*edits);
  json specification = CdiSpecification(config.name, *edits);
  if (auto ok = MakeFolder(options.cdi_folder); !ok) return std::unexpected(ok.error());
  const std::string path = options.cdi_folder + "/" + CdiFileName(config.name);
  if (auto ok = ReplaceFile(path, specification.dump(1) + "\n", 0644, "cdi"); !ok) {
    return Fail("cdi", ok.error().message + ", by which containers get share '" + config.name +
                           "'; `prorata agent --cdi-dir` names another folder");
  }
  return specification;
}

// Older than any writing takes.
bool IsOld(const fs::path& path) {
  std::error_code error;
  const auto written = fs::last_write_time(path, error);
  return !error && fs::file_time_type::clock::now() - written > std::chrono::minutes(1);
}

}  // namespace

Specifications::Specifications(Worker& disk, const std::string& runtime_dir, std::string nvml_path,
                               std::optional<ContainerOptions> options)
    : disk_(disk),
      shares_folder_(fs::weakly_canonical(runtime_dir).string() + "/shares/"),
      nvml_path_(std::move(nvml_path)),
      options_(nvml_path_.empty() ? std::nullopt : std::move(options)) {}

std::string Specifications::PathOf(const std::string& name) const {
  return options_->cdi_folder + "/" + CdiFileName(name);
}

// A file of this agent's folder mounts a share that lies there.
bool Specifications::IsOurs(const std::string& path) const {
  std::ifstream file(path);
  const json found = json::parse(file, nullptr, false);
  if (!found.is_object() || !found.contains("devices")) return false;
  const std::string mine = "\"hostPath\":\"" + shares_folder_;
  return found["devices"].dump().find(mine) != std::string::npos;
}

Status Specifications::MayName(const std::string& name) const {
  if (!options_) return {};
  if (auto ok = ValidateCdiName(name); !ok) return ok;
  const std::string path = PathOf(name);
  if (::access(path.c_str(), F_OK) != 0 || IsOurs(path)) return {};
  return Fail(
      "cdi", "there is a device prorata.dev/share=" + name + " already, of another agent, in '" +
                 path + "'; give the share another name, or remove that file if its agent is gone");
}

void Specifications::Write(const ShareConfig& config, Then then) {
  if (!options_) return then({});
  auto result = std::make_shared<Result<json>>(json());
  const bool queued =
      disk_.Run([result, config, nvml_path = nvml_path_,
                 options = *options_] { *result = WriteOne(config, nvml_path, options); },
                [this, result, name = config.name, then] {
                  if (*result) written_[name] = **result;
                  then(*result ? Status{} : Status(std::unexpected(result->error())));
                });
  if (!queued) then(Fail("cdi", "the disk does not answer; try again"));
}

void Specifications::Remove(const std::string& name) {
  if (!options_ || written_.erase(name) == 0) return;
  ::unlink(PathOf(name).c_str());
}

void Specifications::Restore(const std::vector<const ShareConfig*>& shares) {
  if (!options_) return;
  for (const ShareConfig* share : shares) {
    auto specification = WriteOne(*share, nvml_path_, *options_);
    if (specification) {
      written_[share->name] = std::move(*specification);
    } else {
      spdlog::error("share '{}' is no device for containers: {}", share->name,
                    specification.error().message);
    }
  }
  std::error_code none;
  std::vector<std::string> stale;
  for (const auto& entry : fs::directory_iterator(options_->cdi_folder, none)) {
    const std::string file = entry.path().filename().string();
    if (!file.starts_with(kPrefix)) continue;
    bool wanted = false;
    for (const auto& [name, specification] : written_) wanted |= file == CdiFileName(name);
    // What an agent left that was killed while it wrote, too; another may be writing just now.
    const bool left = file.ends_with(".new") && IsOld(entry.path());
    if (!wanted && (IsOurs(entry.path()) || left)) stale.push_back(entry.path());
  }
  for (const std::string& path : stale) ::unlink(path.c_str());
}

const json* Specifications::Find(const std::string& name) const {
  const auto found = written_.find(name);
  return found == written_.end() ? nullptr : &found->second;
}

}  // namespace prorata::agent
