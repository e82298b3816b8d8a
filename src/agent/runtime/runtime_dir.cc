#include "agent/runtime/runtime_dir.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "base/life_lock.h"

namespace prorata::agent {
namespace {

constexpr char kOtherFolder[] = "; set PRORATA_DIR to a folder that is yours alone";

Status MakeFolder(const std::string& path, mode_t mode) {
  if (::mkdir(path.c_str(), mode) != 0 && errno != EEXIST) {
    return FailErrno("runtime_dir", "cannot make the agent's folder '" + path + "'", errno);
  }
  struct stat info;
  // lstat: a link that somebody left in /tmp under our name must not lead us elsewhere.
  if (::lstat(path.c_str(), &info) != 0) {
    return FailErrno("runtime_dir", "cannot read the agent's folder '" + path + "'", errno);
  }
  if (!S_ISDIR(info.st_mode)) {
    return Fail("runtime_dir",
                "'" + path + "', where the agent would live, is not a folder" + kOtherFolder);
  }
  if (info.st_uid != ::geteuid()) {
    return Fail("runtime_dir", "'" + path + "', where the agent would live, belongs to user " +
                                   std::to_string(info.st_uid) + ", not to you" + kOtherFolder);
  }
  // mkdir's mode passed through the umask, and an older folder may be wider than it should.
  if (::chmod(path.c_str(), mode) != 0) {
    return FailErrno("runtime_dir", "cannot set the mode of '" + path + "'", errno);
  }
  return {};
}

}  // namespace

std::string RuntimeDir() {
  if (const char* dir = std::getenv("PRORATA_DIR"); dir != nullptr && *dir != '\0') return dir;
  if (::geteuid() == 0) return "/run/prorata";
  if (const char* dir = std::getenv("XDG_RUNTIME_DIR"); dir != nullptr && *dir != '\0') {
    return std::string(dir) + "/prorata";
  }
  return "/tmp/prorata-" + std::to_string(::geteuid());
}

Result<UniqueFd> TakeRuntimeDir(const std::string& path) {
  const mode_t mode = ::geteuid() == 0 ? 0755 : 0700;
  for (const std::string& folder : {path, path + "/shares"}) {
    if (auto ok = MakeFolder(folder, mode); !ok) return std::unexpected(ok.error());
  }
  auto lock = TakeLifeLock(path + "/lock");
  if (lock) return lock;
  if (lock.error().code != "locked") return Fail("runtime_dir", lock.error().message);
  return Fail("agent_running", "an agent is running already in '" + path +
                                   "'; use that one, or end it first (a GPU has one agent)");
}

}  // namespace prorata::agent
