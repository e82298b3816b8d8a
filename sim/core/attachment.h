#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "sim/core/config.h"
#include "sim/core/descriptors.h"
#include "sim/core/kept_file.h"
#include "sim/core/model/model.h"
#include "sim/core/model/state.h"
#include "sim/core/presence.h"

namespace prorata::simgpu {

// One process's hold on a machine: the mapped State, the lock, the memory files, the record locks.
//
// The folder:
//   attach      flock'ed while somebody joins or makes the machine
//   lock        the machine's lock (see Lock); never replaced
//   processes   record locks, a byte per slot; never replaced
//   machine     the State; renamed into place when complete
//   device-N    the memory of device N, sparse
//   export-N    what a file descriptor of export N is of (descriptors.h)
//
// Lock order: attach's flock, then this object's mutex, then the file lock.
class Attachment {
 public:
  static Result<std::unique_ptr<Attachment>> Open(const MachineConfig& config,
                                                  const std::string& folder);
  static std::unique_ptr<Attachment> Local(const MachineConfig& config);
  ~Attachment();
  Attachment(const Attachment&) = delete;
  Attachment& operator=(const Attachment&) = delete;

  // Excludes other threads and processes; rolls back what a dead owner left.
  //
  // An open-file-description lock and not a robust mutex: the kernel marks a robust mutex as
  // orphaned by comparing thread ids as each task's own pid namespace counts them, so the death of
  // one container's thread 1, waiting, would free a lock that another container's thread 1 holds.
  // The price is about a microsecond per call. A fork would share the description and so keep a
  // dead parent's lock; an atfork handler closes it in the child.
  void Lock();
  void Unlock();

  bool shared() const { return presence_.has_value(); }
  State* state() const { return state_; }
  Model& model() { return *model_; }
  const Presence& presence() const { return *presence_; }
  const Descriptors& descriptors() const { return *descriptors_; }
  const Identity& identity() const { return identity_; }
  int memory_fd(int device) const { return shared() ? memory_files_[device]->get() : -1; }
  // Gives the pages of a piece of memory back; it reads as zeros then. Nothing when local.
  void Wipe(int device, const Extent& extent) const;

 private:
  Attachment() = default;
  Status OpenFiles(const MachineConfig& config, const std::string& folder);
  Status JoinOrMake(const MachineConfig& config, const std::string& folder);
  Status Make(const MachineConfig& config, const std::string& folder);
  void KeepMemory(int fd, const std::string& folder);
  bool SelfIsRegistered() const;
  static void BeforeFork();
  static void AfterForkInParent();
  static void AfterForkInChild();

  State* state_ = nullptr;
  size_t size_ = 0;
  std::unique_ptr<Model> model_;
  std::mutex mutex_;
  std::unique_ptr<KeptFile> lock_file_;
  std::optional<Presence> presence_;
  std::optional<Descriptors> descriptors_;
  Identity identity_;
  std::vector<std::unique_ptr<KeptFile>> memory_files_;
};

}  // namespace prorata::simgpu
