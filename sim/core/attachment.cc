#include "sim/core/attachment.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/unique_fd.h"
#include "sim/core/model/steps.h"

namespace prorata::simgpu {

namespace {

// Every shared attachment of this copy of the code, for the fork handlers. Never destroyed:
// programs call the driver while exiting.
std::mutex& RegistryMutex() {
  static auto& mutex = *new std::mutex;
  return mutex;
}
std::vector<Attachment*>& Registry() {
  static auto& registry = *new std::vector<Attachment*>;
  return registry;
}

struct Layout {
  uint32_t owner_offset[kMaxDevices] = {};
  uint32_t used_offset[kMaxDevices] = {};
  uint32_t slab_count[kMaxDevices] = {};
  size_t size = 0;
};

Layout LayoutOf(const MachineConfig& config) {
  Layout layout;
  layout.size = sizeof(State);
  const auto take = [&](size_t bytes) {
    const size_t offset = layout.size;
    layout.size = (offset + bytes + 63) & ~size_t{63};
    return static_cast<uint32_t>(offset);
  };
  for (size_t i = 0; i < config.devices.size(); ++i) {
    const DeviceConfig& device = config.devices[i];
    layout.slab_count[i] = static_cast<uint32_t>(device.memory_bytes / device.slab_bytes);
    layout.owner_offset[i] = take(layout.slab_count[i] * sizeof(uint32_t));
    layout.used_offset[i] = take((layout.slab_count[i] / 64 + 1) * sizeof(uint64_t));
  }
  return layout;
}

void Fill(State* state, const MachineConfig& config, const Layout& layout) {
  const std::string text = CanonicalText(config);
  PRORATA_CHECK(text.size() < kConfigTextBytes);
  std::memcpy(state->config_text, text.c_str(), text.size() + 1);
  state->layout = kStateLayout;
  state->device_count = static_cast<uint32_t>(config.devices.size());
  state->size_bytes = layout.size;
  state->realtime_offset_us = (RealtimeNs() - RealClock().NowNs()) / kNsPerUs;
  for (size_t i = 0; i < config.devices.size(); ++i) {
    state->owner_offset[i] = layout.owner_offset[i];
    state->used_offset[i] = layout.used_offset[i];
    state->devices[i].slab_count = layout.slab_count[i];
  }
  state->magic = kStateMagic;
}

bool FileLock(int fd, short type) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_len = 1;
  int result;
  do {
    result = fcntl(fd, F_OFD_SETLKW, &lock);
  } while (result != 0 && errno == EINTR);
  return result == 0;
}

Result<UniqueFd> OpenIn(const std::string& folder, const std::string& name, int flags) {
  const std::string path = folder + "/" + name;
  UniqueFd fd(open(path.c_str(), flags | O_RDWR | O_CLOEXEC, 0666));
  if (!fd) return FailErrno("sim_state", "cannot open " + path, errno);
  return fd;
}

Status MakeFolder(const std::string& folder) {
  if (mkdir(folder.c_str(), 0777) == 0 || errno == EEXIST) return {};
  return FailErrno("sim_state",
                   "cannot make the state folder of the simulated GPU, " + folder +
                       " (PRORATA_SIM_STATE names another)",
                   errno);
}

// A sparse file of a given length, new.
Result<UniqueFd> MakeFile(const std::string& folder, const std::string& name, uint64_t size) {
  const std::string path = folder + "/" + name;
  unlink(path.c_str());
  At(Step::kFileGone);
  auto fd = OpenIn(folder, name, O_CREAT | O_EXCL);
  if (!fd) return fd;
  At(Step::kFileEmpty);
  if (ftruncate(fd->get(), static_cast<off_t>(size)) != 0) {
    return FailErrno("sim_state", "cannot size " + path, errno);
  }
  At(Step::kFileSized);
  return fd;
}

}  // namespace

std::unique_ptr<Attachment> Attachment::Local(const MachineConfig& config) {
  std::unique_ptr<Attachment> attachment(new Attachment);
  const Layout layout = LayoutOf(config);
  void* memory = mmap(nullptr, layout.size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  PRORATA_CHECK(memory != MAP_FAILED);
  attachment->state_ = static_cast<State*>(memory);
  attachment->size_ = layout.size;
  Fill(attachment->state_, config, layout);
  attachment->model_ = std::make_unique<Model>(attachment->state_, config);
  return attachment;
}

Result<std::unique_ptr<Attachment>> Attachment::Open(const MachineConfig& config,
                                                     const std::string& folder) {
  std::unique_ptr<Attachment> attachment(new Attachment);
  attachment->identity_ = Identity::Self();
  if (auto made = MakeFolder(folder); !made) return std::unexpected(made.error());
  At(Step::kFolder);
  auto gate = OpenIn(folder, "attach", O_CREAT);
  if (!gate) return std::unexpected(gate.error());
  int locked;
  do {
    locked = flock(gate->get(), LOCK_EX);
  } while (locked != 0 && errno == EINTR);
  if (locked != 0) return FailErrno("sim_state", "cannot lock " + folder + "/attach", errno);
  At(Step::kGate);
  auto opened = attachment->OpenFiles(config, folder);
  // By hand: a process forked meanwhile by another thread would keep a closed descriptor's lock.
  flock(gate->get(), LOCK_UN);
  if (!opened) return std::unexpected(opened.error());
  attachment->model_ = std::make_unique<Model>(attachment->state_, config);
  static const int registered = pthread_atfork(BeforeFork, AfterForkInParent, AfterForkInChild);
  (void)registered;
  const std::lock_guard lock(RegistryMutex());
  Registry().push_back(attachment.get());
  return attachment;
}

Status Attachment::OpenFiles(const MachineConfig& config, const std::string& folder) {
  auto presence = Presence::Open(folder + "/processes");
  if (!presence) return std::unexpected(presence.error());
  presence_ = *presence;
  descriptors_.emplace(folder);
  auto lock_fd = OpenIn(folder, "lock", O_CREAT);
  if (!lock_fd) return std::unexpected(lock_fd.error());
  lock_file_ = KeptFile::Keep(lock_fd->Release(), folder + "/lock");
  return JoinOrMake(config, folder);
}

Status Attachment::JoinOrMake(const MachineConfig& config, const std::string& folder) {
  UniqueFd fd(open((folder + "/machine").c_str(), O_RDWR | O_CLOEXEC));
  if (!fd)
    return errno == ENOENT ? Make(config, folder)
                           : FailErrno("sim_state", "cannot open " + folder + "/machine", errno);
  struct stat info{};
  if (fstat(fd.get(), &info) != 0 || info.st_size < static_cast<off_t>(sizeof(State))) {
    if (!presence_->AnyOther()) return Make(config, folder);
    return Fail("sim_layout", folder +
                                  "/machine was made by another version of the simulated GPU, and "
                                  "processes use it: end them, or set PRORATA_SIM_STATE");
  }
  size_ = static_cast<size_t>(info.st_size);
  void* memory = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED)
    return FailErrno("sim_state", "cannot map " + folder + "/machine", errno);
  state_ = static_cast<State*>(memory);
  const Layout layout = LayoutOf(config);
  const bool same_layout = state_->magic == kStateMagic && state_->layout == kStateLayout;
  const bool same = same_layout && state_->size_bytes == layout.size && size_ == layout.size &&
                    CanonicalText(config) == state_->config_text;
  if (!same) {
    if (presence_->AnyOther() || (same_layout && SelfIsRegistered())) {
      return Fail("sim_config",
                  "the simulated GPU in " + folder +
                      " runs with another configuration and processes use it: give this process "
                      "the same PRORATA_SIM_MACHINE, end the others, or set PRORATA_SIM_STATE");
    }
    if (same_layout) state_->retired.store(1);
    At(Step::kRetired);
    munmap(state_, size_);
    state_ = nullptr;
    return Make(config, folder);
  }
  // Somebody died when it had notified the observers and not yet made another.
  state_->retired.store(0);
  for (size_t i = 0; i < config.devices.size(); ++i) {
    auto memory_fd = OpenIn(folder, "device-" + std::to_string(i), 0);
    if (!memory_fd) return std::unexpected(memory_fd.error());
    KeepMemory(memory_fd->Release(), folder);
  }
  return {};
}

Status Attachment::Make(const MachineConfig& config, const std::string& folder) {
  const Layout layout = LayoutOf(config);
  // First, so that a kill on the way leaves none: an old state must not meet new memory files.
  unlink((folder + "/machine").c_str());
  At(Step::kOldGone);
  for (size_t i = 0; i < config.devices.size(); ++i) {
    auto fd = MakeFile(folder, "device-" + std::to_string(i), config.devices[i].memory_bytes);
    if (!fd) return std::unexpected(fd.error());
    KeepMemory(fd->Release(), folder);
  }
  auto fd = MakeFile(folder, "machine.new", layout.size);
  if (!fd) return std::unexpected(fd.error());
  void* memory = mmap(nullptr, layout.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd->get(), 0);
  if (memory == MAP_FAILED)
    return FailErrno("sim_state", "cannot map " + folder + "/machine.new", errno);
  state_ = static_cast<State*>(memory);
  size_ = layout.size;
  Fill(state_, config, layout);
  At(Step::kFilled);
  // Complete, so it may be seen.
  if (rename((folder + "/machine.new").c_str(), (folder + "/machine").c_str()) != 0) {
    return FailErrno("sim_state", "cannot rename " + folder + "/machine.new", errno);
  }
  At(Step::kShown);
  return {};
}

void Attachment::KeepMemory(int fd, const std::string& folder) {
  const std::string name = "/device-" + std::to_string(memory_files_.size());
  memory_files_.push_back(KeptFile::Keep(fd, folder + name));
}

// The asker's own locks do not show; see Presence, B.
bool Attachment::SelfIsRegistered() const {
  return std::any_of(std::begin(state_->processes), std::end(state_->processes),
                     [&](const ProcessRecord& process) {
                       return process.slot.life != Life::kFree &&
                              Identity{process.pid, process.pid_namespace, process.image} ==
                                  identity_;
                     });
}

Attachment::~Attachment() {
  {
    const std::lock_guard lock(RegistryMutex());
    std::erase(Registry(), this);
  }
  if (state_ != nullptr) munmap(state_, size_);
}

void Attachment::Lock() {
  mutex_.lock();
  if (shared()) {
    // Fails only in a forked child, which must not be here: its changes would be nobody's.
    PRORATA_CHECK(FileLock(lock_file_->get(), F_WRLCK) ||
                  (lock_file_->Reopen() && FileLock(lock_file_->get(), F_WRLCK)));
    At(Step::kLocked);
  }
  if (!model_->tx().empty()) model_->tx().Rollback();
}

void Attachment::Unlock() {
  if (shared()) {
    At(Step::kBeforeUnlocked);
    FileLock(lock_file_->get(), F_UNLCK);
    At(Step::kUnlocked);
  }
  mutex_.unlock();
}

void Attachment::Wipe(int device, const Extent& extent) const {
  if (!shared()) return;
  At(Step::kBeforeWiped);
  const auto punch = [&] {
    return fallocate(memory_files_[device]->get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                     static_cast<off_t>(extent.offset_bytes),
                     static_cast<off_t>(extent.length_bytes)) == 0;
  };
  // Not to be wiped any more only when the machine is history.
  if (!punch() && errno == EBADF && memory_files_[device]->Reopen()) punch();
  At(Step::kWiped);
}

void Attachment::BeforeFork() { RegistryMutex().lock(); }
void Attachment::AfterForkInParent() { RegistryMutex().unlock(); }
void Attachment::AfterForkInChild() {
  for (Attachment* attachment : Registry()) attachment->lock_file_->Close();
  Registry().clear();
  RegistryMutex().unlock();
}

}  // namespace prorata::simgpu
