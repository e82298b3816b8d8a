#include "client/entry/join.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "client/session/connection.h"
#include "client/session/heartbeat_watch.h"
#include "client/session/helper.h"
#include "client/session/share.h"

// Weak: musl has none, and its loader ends a program whose preloaded library wants one. Such a
// program cannot load the driver, which needs glibc, so there is nothing to mend after a fork.
extern "C" __attribute__((weak)) int __register_atfork(void (*)(), void (*)(), void (*)(), void*);
// What names a shared object to the C library; the compiler's start files would define it, but we
// are linked without them (but in a test program, PRORATA_HOSTED).
extern "C" __attribute__((visibility("hidden"))) void* __dso_handle;
#ifndef PRORATA_HOSTED
void* __dso_handle = &__dso_handle;
#endif

namespace prorata::client {

constinit Share g_share;

namespace {

constinit const std::atomic<uint32_t> g_never{kUngoverned};

}  // namespace

constinit std::atomic<const std::atomic<uint32_t>*> g_live{&g_never};

namespace {

constexpr int64_t kJoinWithinNs = 2'000'000'000;
constexpr int64_t kBusyAgentWithinNs = 60'000'000'000;
constexpr int64_t kTryEveryNs = 50'000'000;
constexpr size_t kPageBytes = 4096;

// kCalling: as kBusy, and the driver's cuInit was called.
enum : uint32_t { kFresh = 0, kBusy, kCalling, kDone };
std::atomic<uint32_t> g_join_state;
// Where on its stack this thread is in the driver's cuInit, which may load a tool that calls ours
// (CUDA_INJECTION64_PATH). Null: it is not, but for a program that has left it by siglongjmp.
__thread const void* t_in_drivers_init __attribute__((tls_model("initial-exec"))) = nullptr;
std::atomic<bool> g_watches_forks;
constinit const shm::GrantRow g_no_grants = {};
// If the memfd cannot be made; nothing is governed by it but it may be written.
constinit shm::UsageFile g_no_usage = {};

// The child after a fork: CUDA does not work there, once its parent has called the driver's cuInit.
// Its copy of the socket must not keep the connection of its parent alive, and locks may be held,
// and the driver be loaded, by threads that it does not have.
void AfterForkInChild() {
  g_live.store(&g_never);
  const int fd = g_share.socket.exchange(-1);
  if (fd >= 0) close(fd);
  if (g_share.usage_fd >= 0) close(g_share.usage_fd);
  g_share.usage_fd = -1;
  ForgetConnection();
  ForgetHelper();
  ForgetLoading();
  const uint32_t state = g_join_state.load();
  g_join_state.store(state >= kCalling ? kDone : kFresh);
}

// One thread at a time. False: there is no memory, and nothing has changed.
bool SetLive(uint32_t value) {
  static std::atomic<uint32_t>* word = nullptr;
  if (word == nullptr) {
    word = static_cast<std::atomic<uint32_t>*>(MapPages(kPageBytes));
    if (word == nullptr) return false;
    // A second net below the fork handler, for children made by clone() itself.
    madvise(word, kPageBytes, MADV_WIPEONFORK);
  }
  word->store(value);
  g_live.store(word, std::memory_order_release);
  return true;
}

bool MakeUsage() {
  if (g_share.usage != nullptr && g_share.usage_fd >= 0) return true;
  const int fd = memfd_create("prorata-usage", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  void* pages = MAP_FAILED;
  if (fd >= 0 && ftruncate(fd, sizeof(shm::UsageFile)) == 0 &&
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0) {
    pages = mmap(nullptr, sizeof(shm::UsageFile), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (pages == MAP_FAILED) {
    StderrMessage("cannot make the usage memory").Errno(errno).Print();
    if (fd >= 0) close(fd);
    return false;
  }
  madvise(pages, sizeof(shm::UsageFile), MADV_DONTFORK);
  g_share.usage = static_cast<shm::UsageFile*>(pages);
  g_share.usage->header.magic = shm::kUsageMagic;
  g_share.usage->header.version = shm::kUsageVersion;
  g_share.usage->header.size_bytes = sizeof(shm::UsageFile);
  g_share.usage_fd = fd;
  return true;
}

const char* ReasonText(wire::RefusedReason reason) {
  switch (reason) {
    case wire::RefusedReason::kVersion:
      return "this client library and the agent are of different versions";
    case wire::RefusedReason::kShareEnded:
      return "the share has ended";
    case wire::RefusedReason::kTooManyMembers:
      return "the share has as many processes as it can";
    case wire::RefusedReason::kNotAllowed:
      return "this process may not use it";
    case wire::RefusedReason::kOtherContainer:
      return "another container has it, until no process of that is left; `prorata ps` names it";
    default:
      return "the agent refused the request";
  }
}

void PrintRefused(const wire::Refused& refused) {
  const auto reason = static_cast<wire::RefusedReason>(refused.reason);
  StderrMessage line("cannot join the share ");
  line.Text(g_share.folder).Text(": ");
  if (reason != wire::RefusedReason::kOtherUser) return line.Text(ReasonText(reason)).Print();
  line.Text("it belongs to user ")
      .Number(refused.detail)
      .Text(", and this process runs as user ")
      .Number(geteuid())
      .Text(
          "; run it as that user, or let the owner make the share with `prorata run "
          "--allow-users ")
      .Number(geteuid())
      .Text("`")
      .Print();
}

// Joins within two seconds, or two more: an agent may be restarting just now. One whose heart beats
// is waited for longer: on a machine that is busy enough it answers late. Without a welcome there
// is no row of grants, so nothing could be allocated; better to say so here.
CUresult JoinOrPrint() {
  const int64_t start_ns = NowNs();
  const int64_t busy_until_ns = start_ns + kBusyAgentWithinNs;
  wire::Refused refused = {};
  JoinResult result;
  while ((result = JoinAgent(start_ns + kJoinWithinNs, &refused, busy_until_ns)) ==
             JoinResult::kNoAgent &&
         NowNs() <
             (HeartbeatLostNs() < kHeartStoodStillNs ? busy_until_ns : start_ns + kJoinWithinNs)) {
    const std::atomic<uint32_t> never{0};
    FutexWait(&never, 0, kTryEveryNs);
  }
  // This process may have stood still itself meanwhile, and the agent with it: a suspended machine.
  if (result == JoinResult::kNoAgent) {
    result = JoinAgent(NowNs() + kJoinWithinNs, &refused, busy_until_ns);
  }
  if (result == JoinResult::kJoined) return CUDA_SUCCESS;
  if (result == JoinResult::kRefused) {
    PrintRefused(refused);
    return CUDA_ERROR_NOT_PERMITTED;
  }
  StderrMessage("cannot join the share ")
      .Text(g_share.folder)
      .Text(": no agent answered on its socket for ")
      .Number(static_cast<uint64_t>((NowNs() - start_ns) / 1'000'000'000))
      .Text(" s; is the prorata agent running?")
      .Print();
  return CUDA_ERROR_SYSTEM_NOT_READY;
}

// Which device of the limits file each ordinal of the driver is. One that is not in the share (a
// driver that ignores CUDA_VISIBLE_DEVICES) stays kNoDevice: no memory can be had there.
void MapOrdinals() {
  const shm::LimitsFile& limits = *g_share.limits.load();
  const OwnCalls own;
  int count = 0;
  if (PRORATA_REAL(cuDeviceGetCount)(&count) != CUDA_SUCCESS) count = 0;
  g_share.ordinals = Min(static_cast<uint32_t>(Max(count, 0)), kMaxOrdinals);
  for (uint32_t i = 0; i < g_share.ordinals; ++i) {
    g_share.index_of_ordinal[i] = kNoDevice;
    CUdevice device = static_cast<CUdevice>(i);
    CUuuid uuid = {};
    PRORATA_REAL(cuDeviceGet)(&device, static_cast<int>(i));
    if (PRORATA_REAL(cuDeviceGetUuid_v2)(&uuid, device) != CUDA_SUCCESS &&
        PRORATA_REAL(cuDeviceGetUuid)(&uuid, device) != CUDA_SUCCESS) {
      continue;
    }
    for (uint32_t at = 0; at < g_share.device_count; ++at) {
      uint8_t want[16];
      if (!ParseUuid(limits.devices[at].uuid, want) || std::memcmp(want, uuid.bytes, 16) != 0) {
        continue;
      }
      g_share.index_of_ordinal[i] = at;
      g_share.ordinal_of_index[at] = device;
    }
  }
}

CUresult CallDriversInit(unsigned int flags) {
  g_join_state.store(kCalling);
  t_in_drivers_init = __builtin_frame_address(0);
  const CUresult result = PRORATA_REAL(cuInit)(flags);
  t_in_drivers_init = nullptr;
  return result;
}

bool IsCalledByDriversInit() {
  return t_in_drivers_init != nullptr && __builtin_frame_address(0) < t_in_drivers_init;
}

// The driver reads CUDA_VISIBLE_DEVICES in cuInit and never again, so it is ours only for that
// long.
CUresult InitializeShowing(const shm::LimitsFile& limits, unsigned int flags) {
  static char wanted[shm::kMaxDevices * 64];
  const char* own = getenv("CUDA_VISIBLE_DEVICES");
  if (!ComposeVisibleDevices(limits, own, wanted, sizeof wanted)) wanted[0] = 0;
  // However long: programs may have their own use for it.
  const size_t bytes = own != nullptr ? std::strlen(own) + 1 : 0;
  char* const kept = bytes != 0 ? static_cast<char*>(MapPages(bytes)) : nullptr;
  if (bytes != 0 && kept == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  if (kept != nullptr) std::memcpy(kept, own, bytes);
  setenv("CUDA_VISIBLE_DEVICES", wanted, 1);
  const CUresult result = CallDriversInit(flags);
  if (kept != nullptr) {
    setenv("CUDA_VISIBLE_DEVICES", kept, 1);
    UnmapPages(kept, bytes);
  } else {
    unsetenv("CUDA_VISIBLE_DEVICES");
  }
  return result;
}

// Programs call cuInit again and again: what is wrong with their share is said once.
bool FirstWord() {
  static std::atomic<bool> said;
  return !said.exchange(true);
}

// As the driver by itself, and nobody should take the program for held to limits: it may have lost
// a variable on its way (a cleaned environment, a launcher).
CUresult InitializeWithoutShare(unsigned int flags) {
  const CUresult result = CallDriversInit(flags);
  if (result != CUDA_SUCCESS || !FirstWord()) return result;
  StderrMessage(
      "this program has prorata's libcuda.so.1 and no share, so it runs with no limits and is not "
      "counted: PRORATA_SHARE is ")
      .Text(getenv("PRORATA_SHARE") != nullptr ? "empty" : "not set")
      .Text(
          " and there is no /run/prorata/share; start it by `prorata run`, or without "
          "LD_PRELOAD and LD_LIBRARY_PATH of prorata's")
      .Print();
  return result;
}

CUresult InitializeOnShare(unsigned int flags) {
  const char* why = nullptr;
  const shm::LimitsFile* limits = MapLimits(g_share.folder, &why);
  if (limits == nullptr) {
    if (FirstWord()) {
      StderrMessage("cannot use the share ")
          .Text(g_share.folder)
          .Text(": ")
          .Text(why)
          .Text("; PRORATA_SHARE must name a folder that the prorata agent made")
          .Print();
    }
    return CUDA_ERROR_SYSTEM_NOT_READY;
  }
  SetDilation(limits->header.dilation);
  g_share.limits.store(limits);
  g_share.grants.store(&g_no_grants);
  g_share.slot.store(wire::kNoSlot);
  g_share.device_count = limits->header.device_count;
  if (!MakeUsage()) {
    g_share.usage = &g_no_usage;
    return CUDA_ERROR_SYSTEM_NOT_READY;
  }
  // The agent works while the driver does.
  JoinAhead();
  CUresult result = InitializeShowing(*limits, flags);
  if (result != CUDA_SUCCESS) {
    GiveUpJoinAhead();
    return result;
  }
  MapOrdinals();
  // Else it would run without limits.
  if (Live() == kUngoverned && !SetLive(kUnjoined)) {
    GiveUpJoinAhead();
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  result = JoinOrPrint();
  if (result != CUDA_SUCCESS) return result;
  SetLive(kGoverned);
  ReportEarlyLookups();
  return CUDA_SUCCESS;
}

CUresult Initialize(unsigned int flags) {
  if (!DriverPresent()) return CUDA_ERROR_NO_DEVICE;
  switch (FindShareFolder(g_share.folder, sizeof g_share.folder)) {
    case ShareFolder::kNone:
      return InitializeWithoutShare(flags);
    case ShareFolder::kFound:
      return InitializeOnShare(flags);
    case ShareFolder::kTooLong:
      break;
  }
  if (FirstWord()) {
    StderrMessage(
        "cannot use the share that PRORATA_SHARE names: its path is too long, of more than ")
        .Number(sizeof g_share.folder - 1)
        .Text(" characters; set PRORATA_DIR to a shorter folder for the agent")
        .Print();
  }
  return CUDA_ERROR_SYSTEM_NOT_READY;
}

CUresult InitializeAndJoin(unsigned int flags) {
  WatchForks();
  for (;;) {
    uint32_t state = g_join_state.load(std::memory_order_acquire);
    if (state == kDone || IsCalledByDriversInit()) return PRORATA_REAL(cuInit)(flags);
    if (state != kFresh) {
      FutexWait(&g_join_state, state, 1'000'000'000);
    } else if (g_join_state.compare_exchange_strong(state, kBusy)) {
      const CUresult result = Initialize(flags);
      g_join_state.store(result == CUDA_SUCCESS ? kDone : kFresh, std::memory_order_release);
      FutexWakeAll(&g_join_state);
      return result;
    }
  }
}

}  // namespace

void WatchForks() {
  if (g_watches_forks.load(std::memory_order_acquire)) return;
  // Twice, where two threads are at it, does no harm; too late would.
  if (&__register_atfork != nullptr) {
    __register_atfork(nullptr, nullptr, AfterForkInChild, __dso_handle);
  }
  g_watches_forks.store(true, std::memory_order_release);
}

}  // namespace prorata::client

using namespace prorata::client;

CUresult cuInit(unsigned int Flags) { return InitializeAndJoin(Flags); }
