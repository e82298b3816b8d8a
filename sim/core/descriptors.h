#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "sim/core/types.h"

namespace prorata::simgpu {

// File descriptors that stand for something in the shared state: they can be sent to another
// process, and what they name lives as long as anybody has one, be it only in a socket's buffer.
//
// Each is an open file description of its own file in the state folder:
//
//   export-N:  u64 magic | u64 handle | u64 cookie
//
// with a lock on its first byte that belongs to the description. So the kernel lets it go with the
// last duplicate, however that ends, and anybody can see whether it is held.
class Descriptors {
 public:
  explicit Descriptors(std::string folder) : folder_(std::move(folder)) {}

  // Under the machine's lock, as the next two.
  Result<UniqueFd> Make(uint32_t index, const ShareName& name) const;
  bool Held(uint32_t index) const;  // the file is gone, or nobody has its descriptor: false
  void Remove(uint32_t index) const;

  // False: no descriptor of ours.
  static bool Read(int fd, ShareName* name);

 private:
  std::string PathOf(uint32_t index) const;

  std::string folder_;
};

}  // namespace prorata::simgpu
