#include "agent/runtime/file_watch.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "base/clock.h"
#include "base/unique_fd.h"

namespace prorata::agent {
namespace {

namespace fs = std::filesystem;
constexpr auto kLookEach = std::chrono::seconds(1);
constexpr uint32_t kEvents = IN_CLOSE_WRITE | IN_MOVED_TO | IN_CREATE | IN_ONLYDIR;

std::string FolderOf(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path().string() : ".";
}

}  // namespace

FileWatch::FileWatch(boost::asio::io_context& loop, std::string path,
                     std::function<void()> on_change, std::function<void()> on_poll)
    : path_(std::move(path)),
      on_change_(std::move(on_change)),
      on_poll_(std::move(on_poll)),
      inotify_(loop),
      timer_(loop) {}

FileWatch::~FileWatch() { *alive_ = false; }

FileWatch::Identity FileWatch::IdentityOf(const struct stat& info) {
  return {true, info.st_dev, info.st_ino, info.st_size,
          info.st_mtim.tv_sec * kNsPerS + info.st_mtim.tv_nsec};
}

FileWatch::Identity FileWatch::Poll() const {
  struct stat info;
  return ::stat(path_.c_str(), &info) == 0 ? IdentityOf(info) : Identity{};
}

Result<std::string> FileWatch::Read(size_t most_bytes) {
  read_ = {};
  // A pipe would keep the agent waiting for ever.
  const UniqueFd fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info;
  if (!fd || ::fstat(fd.get(), &info) != 0) {
    return FailErrno("read", "cannot read '" + path_ + "'", errno);
  }
  if (!S_ISREG(info.st_mode)) return Fail("read", "'" + path_ + "' is not a file");
  read_ = IdentityOf(info);
  std::string text(most_bytes + 1, '\0');
  size_t length = 0;
  while (length < text.size()) {
    const ssize_t got = ::read(fd.get(), text.data() + length, text.size() - length);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FailErrno("read", "cannot read '" + path_ + "'", errno);
    if (got == 0) break;
    length += static_cast<size_t>(got);
  }
  text.resize(length);
  return text;
}

void FileWatch::Start() {
  UniqueFd fd(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  if (fd) {
    inotify_.assign(fd.Release());
    WatchFolders();
    WaitForEvents();
  } else {
    spdlog::warn("changes of '{}' are seen within seconds only: no inotify ({})", path_,
                 std::strerror(errno));
  }
  PollLater();
}

// Again and again, for a folder may be another one by now; a watch that is there stays as it is.
void FileWatch::WatchFolders() {
  if (!inotify_.is_open()) return;
  std::map<int, std::string> now;
  auto watch = [&](const fs::path& file) {
    const int number =
        ::inotify_add_watch(inotify_.native_handle(), FolderOf(file).c_str(), kEvents);
    if (number >= 0) now[number] = file.filename().string();
  };
  watch(path_);
  std::error_code none;
  const fs::path real = fs::canonical(path_, none);
  if (!none) watch(real);
  for (const auto& [number, name] : watches_) {
    if (!now.contains(number)) ::inotify_rm_watch(inotify_.native_handle(), number);
  }
  watches_ = std::move(now);
}

void FileWatch::WaitForEvents() {
  inotify_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                      [this, alive = alive_](const boost::system::error_code& error) {
                        if (error || !*alive) return;
                        ReadEvents();
                        WaitForEvents();
                      });
}

void FileWatch::ReadEvents() {
  alignas(inotify_event) char buffer[8192];
  bool changed = false;
  while (true) {
    const ssize_t got = ::read(inotify_.native_handle(), buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    for (ssize_t at = 0; at < got;) {
      const auto* event = reinterpret_cast<const inotify_event*>(buffer + at);
      changed |= Concerns(event->wd, event->mask, event->len > 0 ? event->name : "");
      at += static_cast<ssize_t>(sizeof *event + event->len);
    }
  }
  if (!changed) return;
  on_change_();
  WatchFolders();
}

bool FileWatch::Concerns(int watch, uint32_t mask, const std::string& name) const {
  if ((mask & IN_Q_OVERFLOW) != 0) return true;
  const auto found = watches_.find(watch);
  const bool own = found != watches_.end() && found->second == name;
  if (own && (mask & (IN_CLOSE_WRITE | IN_MOVED_TO)) != 0) return true;
  if ((mask & (IN_CREATE | IN_MOVED_TO)) == 0) return false;
  // One that was made a moment ago is being written; its end will be reported.
  std::error_code none;
  if (own && !fs::is_symlink(path_, none)) return false;
  const Identity now = Poll();
  return now.there && !now.SameFile(read_);
}

void FileWatch::PollLater() {
  timer_.expires_after(kLookEach);
  timer_.async_wait([this, alive = alive_](const boost::system::error_code& stopped) {
    if (stopped || !*alive) return;
    WatchFolders();
    const Identity now = Poll();
    if (now == seen_ && now != read_) {
      on_change_();
    } else {
      on_poll_();
    }
    seen_ = now;
    PollLater();
  });
}

}  // namespace prorata::agent
