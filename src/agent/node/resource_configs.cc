#include "agent/node/resource_configs.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>

#include "api/control.h"

namespace prorata::agent {

Status ResourceConfigs::Name(const std::vector<agent::ResourceConfigFile>& files) {
  for (const agent::ResourceConfigFile& named : files) {
    const auto device = devices_.Named(named.gpu, "--resource-config");
    if (!device) return std::unexpected(device.error());
    for (const auto& other : files_) {
      if (other->device != *device) continue;
      return Fail("bad_resource_config", "--resource-config: '" + other->watch->path() + "' and '" +
                                             named.path +
                                             "' are both for one GPU; give one file each");
    }
    auto& file = files_.emplace_back(std::make_unique<File>());
    file->device = *device;
    file->watch = std::make_unique<FileWatch>(
        loop_, named.path, [this, own = file.get()] { OnChange(*own); },
        [this, own = file.get()] { TryAgain(*own); });
  }
  return {};
}

Status ResourceConfigs::Start() {
  for (size_t device = 0; device < devices_.count(); ++device) {
    const bool has_file = std::any_of(files_.begin(), files_.end(), [device](const auto& file) {
      return file->device == device;
    });
    if (!has_file) shares_.EndAll(device);
  }
  for (const auto& file : files_) {
    file->watch->Start();  // first, so that no change goes by between the two
    if (auto ok = Load(*file); !ok) {
      if (!shares_.Any(file->device)) return ok;
      Report(*file, ok.error());
    }
  }
  return {};
}

Status ResourceConfigs::Load(File& file) {
  file.pending.reset();
  auto text = file.watch->Read(agent::kMaxResourceConfigBytes);
  if (!text) return std::unexpected(text.error());
  auto clients = agent::ParseResourceConfig(file.watch->path(), *text);
  if (!clients) return std::unexpected(clients.error());
  if (auto ok = Apply(file, *clients); !ok) {
    file.pending = std::move(*clients);
    return ok;
  }
  return {};
}

Status ResourceConfigs::Apply(File& file, const std::vector<agent::ResourceClient>& clients) {
  if (auto ok = shares_.Apply(file.device, file.watch->path(), clients); !ok) return ok;
  file.reported.clear();
  events_.Add(
      {.kind = api::EventKind::kResourceConfigApplied,
       .gpu = static_cast<uint32_t>(file.device),
       .uuid = devices_[file.device].uuid,
       .detail = "'" + file.watch->path() + "': " + std::to_string(clients.size()) + " client(s)"});
  spdlog::info("GPU {}: '{}' is in force, with {} clients", file.device, file.watch->path(),
               clients.size());
  return {};
}

void ResourceConfigs::OnChange(File& file) {
  if (auto ok = Load(file); !ok) Report(file, ok.error());
}

void ResourceConfigs::TryAgain(File& file) {
  if (!file.pending) return;
  const auto clients = *file.pending;
  if (auto ok = Apply(file, clients); ok) file.pending.reset();
}

// One that is gone is polled each second, and reported once.
void ResourceConfigs::Report(File& file, const Error& error) {
  if (error.code == "read" && file.reported == error.message) return;
  file.reported = error.message;
  events_.Add({.kind = api::EventKind::kResourceConfigRefused,
               .gpu = static_cast<uint32_t>(file.device),
               .uuid = devices_[file.device].uuid,
               .detail = error.message});
}

}  // namespace prorata::agent
