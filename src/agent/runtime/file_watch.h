#pragma once

// Tells when what is to be read at a path is another than before, however it was changed: written
// in place, replaced by rename, or, as a ConfigMap is, reached over a symbolic link in its folder
// that is swapped.
//
//   A. inotify on the file's folder, and on the folder of what it links to: written and closed, or
//      moved here, or the same path leads to another file now. At once.
//   B. A poll each second: what no event reported (a folder that was replaced, a network's file
//      system, no inotify to be had), once it has been the same for two looks. A file that is being
//      written is thereby not read half; one that is gone is not missed while an editor replaces
//      it.
//
// Not thread-safe: the agent's loop.

#include <sys/stat.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/result.h"

namespace prorata::agent {

class FileWatch {
 public:
  // `on_change` is called from the loop, not before Start, and may Read.
  FileWatch(boost::asio::io_context& loop, std::string path, std::function<void()> on_change,
            std::function<void()> on_poll);
  ~FileWatch();
  FileWatch(const FileWatch&) = delete;
  FileWatch& operator=(const FileWatch&) = delete;

  const std::string& path() const { return path_; }
  // All of it, if that is no more than `most_bytes` (what is longer has one byte more). "read".
  Result<std::string> Read(size_t most_bytes);
  void Start();

 private:
  // What file it is, and of when; nothing of it if there is none.
  struct Identity {
    bool there = false;
    dev_t device = 0;
    ino_t inode = 0;
    off_t size = 0;
    int64_t changed_ns = 0;
    bool SameFile(const Identity& other) const {
      return there == other.there && device == other.device && inode == other.inode;
    }
    bool operator==(const Identity&) const = default;
  };
  static Identity IdentityOf(const struct stat& info);
  Identity Poll() const;

  void WatchFolders();
  void WaitForEvents();
  void ReadEvents();
  bool Concerns(int watch, uint32_t mask, const std::string& name) const;
  void PollLater();

  const std::string path_;
  std::function<void()> on_change_;
  std::function<void()> on_poll_;
  boost::asio::posix::stream_descriptor inotify_;
  boost::asio::steady_timer timer_;
  std::map<int, std::string> watches_;  // of a folder: the file's name in it
  Identity read_;                       // as it was last read
  Identity seen_;                       // at the last look
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace prorata::agent
