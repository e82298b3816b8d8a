#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <string>

#include "base/result.h"

namespace prorata::simgpu {

// An open file in a program that may close descriptors which it did not open (daemons do: all of
// them) and get the same number for a file of its own. Writing or locking that one would be the
// worst answer, so:
//   - our number is far up, where open(2), which takes the lowest free one, does not get to soon;
//   - a number that is gone (EBADF) is replaced by opening the path again, if it is still that
//   file.
// Thread-safe.
class KeptFile {
 public:
  // Takes over `fd`, open on `path`.
  static std::unique_ptr<KeptFile> Keep(int fd, std::string path);
  ~KeptFile();
  KeptFile(const KeptFile&) = delete;
  KeptFile& operator=(const KeptFile&) = delete;

  int get() const { return fd_.load(); }
  // After EBADF: false when the path is another file by now, or Close was called.
  bool Reopen();
  void Close();

 private:
  KeptFile() = default;
  std::atomic<int> fd_{-1};
  std::string path_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

// A duplicate of `fd`, closed on exec, with a number far up; -1 when there is none.
int DuplicateFarUp(int fd);

}  // namespace prorata::simgpu
