#include "agent/containers/cache_hook.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "agent/containers/loader_cache.h"
#include "base/unique_fd.h"

namespace prorata::agent {
namespace {

using nlohmann::json;

constexpr char kCacheName[] = "ld.so.cache";
constexpr off_t kMaxCacheBytes = 16 << 20;

Result<std::string> RootOf(std::string_view state) {
  const json parsed = json::parse(state, nullptr, false);
  const auto bundle = parsed.is_object() ? parsed.find("bundle") : parsed.end();
  if (!parsed.is_object() || bundle == parsed.end() || !bundle->is_string()) {
    return Fail("hook",
                "standard input is not the state of a container that is being made (no "
                "\"bundle\"); container engines run this, people do not");
  }
  const std::string folder = bundle->get<std::string>();
  std::ifstream file(folder + "/config.json");
  const json config = json::parse(file, nullptr, false);
  const json root = config.is_object() ? config.value("root", json::object()) : json::object();
  const std::string path = root.is_object() && root.contains("path") && root["path"].is_string()
                               ? root["path"].get<std::string>()
                               : "";
  if (path.empty()) {
    return Fail("hook", "'" + folder + "/config.json' does not name the container's root");
  }
  return path.front() == '/' ? path : folder + "/" + path;
}

// A folder of the container's, wherever links in it lead, within its root.
UniqueFd OpenWithin(int root, const char* path) {
  open_how how{};
  how.flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
  how.resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS;
  return UniqueFd(static_cast<int>(::syscall(SYS_openat2, root, path, &how, sizeof how)));
}

Result<std::string> ReadAll(int fd, off_t size) {
  std::string bytes(static_cast<size_t>(size), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::read(fd, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return FailErrno("hook", "cannot read the container's ld.so.cache", errno);
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  bytes.resize(done);
  return bytes;
}

bool WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return true;
}

// Beside it and renamed: whoever has the former open keeps it.
Status ReplaceCache(int folder, const struct stat& former, std::string_view bytes) {
  const std::string temporary = ".ld.so.cache.prorata-" + std::to_string(::getpid());
  const UniqueFd file(::openat(folder, temporary.c_str(),
                               O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file.get() < 0) {
    return FailErrno("hook", "cannot write beside the container's ld.so.cache", errno);
  }
  // Its owner is the container's root, which may be nobody of this machine.
  const bool owned = ::fchown(file.get(), former.st_uid, former.st_gid) == 0 || errno == EPERM;
  if (owned && WriteAll(file.get(), bytes) && ::fchmod(file.get(), former.st_mode & 0777) == 0 &&
      ::renameat(folder, temporary.c_str(), folder, kCacheName) == 0) {
    return {};
  }
  const int error = errno;
  ::unlinkat(folder, temporary.c_str(), 0);
  return FailErrno("hook", "cannot replace the container's ld.so.cache", error);
}

}  // namespace

Status UpdateLoaderCache(std::string_view state, const std::vector<std::string>& libraries) {
  const auto path = RootOf(state);
  if (!path) return std::unexpected(path.error());
  const UniqueFd root(::open(path->c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (root.get() < 0) return FailErrno("hook", "cannot open the root '" + *path + "'", errno);
  const UniqueFd folder = OpenWithin(root.get(), "etc");
  if (folder.get() < 0 && errno == ENOENT) return {};
  if (folder.get() < 0) return FailErrno("hook", "cannot open etc in '" + *path + "'", errno);
  const UniqueFd file(
      ::openat(folder.get(), kCacheName, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (file.get() < 0 && errno == ENOENT) return {};
  struct stat former{};
  if (file.get() < 0 || ::fstat(file.get(), &former) != 0) {
    return FailErrno("hook", "cannot open etc/ld.so.cache in '" + *path + "'", errno);
  }
  if (!S_ISREG(former.st_mode) || former.st_size > kMaxCacheBytes) {
    return Fail("hook", "etc/ld.so.cache in '" + *path + "' is no cache of ldconfig's");
  }
  const auto bytes = ReadAll(file.get(), former.st_size);
  if (!bytes) return std::unexpected(bytes.error());
  const auto added = AddToLoaderCache(*bytes, libraries);
  if (!added) {
    return Fail("hook",
                "etc/ld.so.cache in '" + *path + "' is left as it is: " + added.error().message);
  }
  return ReplaceCache(folder.get(), former, *added);
}

}  // namespace prorata::agent
