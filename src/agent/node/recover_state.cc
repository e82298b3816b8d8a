#include "agent/node/recover_state.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "agent/share/shared_files.h"
#include "api/control.h"

namespace prorata::agent {
namespace {

namespace fs = std::filesystem;

// A text of the file, whose end may be missing.
template <size_t kBytes>
std::string TextOf(const char (&text)[kBytes]) {
  return std::string(text, strnlen(text, kBytes));
}

std::optional<SavedShare> ShareIn(const fs::path& folder) {
  // Its own name is in it, and Adopt compares it with the one that is asked for.
  std::string name = folder.filename().string();
  for (char& c : name) c = c == '+' ? '/' : c;
  if (!api::ValidateShareName(name)) return std::nullopt;
  const auto limits = LimitsMapping::Adopt(folder / "limits", name);
  if (!limits) return std::nullopt;
  const shm::LimitsFile& file = *limits->get();
  const uint32_t devices = file.header.device_count;
  if (devices == 0 || devices > kMaxDevices) return std::nullopt;
  SavedShare share;
  share.ended = file.header.ended.load() != 0;
  share.config.name = name;
  share.config.owner_uid = ::geteuid();
  share.config.created_unix_s = ::time(nullptr);
  share.config.on_full.wait_ms = file.header.on_full_wait_ms.load();
  std::error_code none;
  const bool held = fs::exists(HeldMark(folder), none);
  std::string mark;
  std::getline(std::ifstream(HeldMark(folder)), mark);
  share.config.exclusive = mark == kExclusiveMark;
  share.config.life = held ? ShareLife::OfToken("") : ShareLife::OfProcess({});
  for (uint32_t i = 0; i < devices; ++i) {
    const shm::DeviceLimits& from = file.devices[i];
    DeviceOfShare& device = share.config.devices.emplace_back();
    device.uuid = TextOf(from.uuid);
    device.memory_bytes = from.memory_limit_bytes.load();
    device.memory_request_bytes =
        device.memory_bytes -
        std::min(device.memory_bytes, from.memory_beyond_request_bytes.load());
    device.compute.request = {std::min(from.compute_request_ppm.load(), Fraction::kOne)};
    device.compute.limit = {std::min(from.compute_limit_ppm.load(), Fraction::kOne)};
    device.compute.weight = std::clamp(from.compute_weight.load(), 1u, api::kMaxWeight);
  }
  return share;
}

}  // namespace

std::string HeldMark(const std::string& share_folder) { return share_folder + "/held"; }

void RemoveShareFolder(const std::string& share_folder) {
  ::unlink((share_folder + "/socket").c_str());
  const std::string limits = share_folder + "/limits";
  ::unlink(limits.c_str());
  ::unlink(LimitsMapping::BuildingName(limits).c_str());
  ::unlink(HeldMark(share_folder).c_str());
  ::rmdir(share_folder.c_str());
}

SavedState RecoverState(const std::string& runtime_dir) {
  SavedState state;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(runtime_dir + "/shares", none)) {
    if (auto share = ShareIn(entry.path())) state.shares.push_back(std::move(*share));
  }
  return state;
}

Status SetAside(const std::string& path) {
  const std::string aside = path + ".damaged";
  if (std::rename(path.c_str(), aside.c_str()) == 0) return {};
  return FailErrno(
      "state", "cannot rename the agent's damaged state '" + path + "' to '" + aside + "'", errno);
}

}  // namespace prorata::agent
