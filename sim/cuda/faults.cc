#include "sim/cuda/faults.h"

#include <errno.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "sim/cuda/stream/executor.h"

namespace prorata::simgpu::driver {
namespace {

constexpr std::array kKernelErrors = {
    CUDA_ERROR_ECC_UNCORRECTABLE,
    CUDA_ERROR_NVLINK_UNCORRECTABLE,
    CUDA_ERROR_ILLEGAL_ADDRESS,
    CUDA_ERROR_LAUNCH_TIMEOUT,
    CUDA_ERROR_ASSERT,
    CUDA_ERROR_HARDWARE_STACK_ERROR,
    CUDA_ERROR_ILLEGAL_INSTRUCTION,
    CUDA_ERROR_MISALIGNED_ADDRESS,
    CUDA_ERROR_INVALID_ADDRESS_SPACE,
    CUDA_ERROR_INVALID_PC,
    CUDA_ERROR_LAUNCH_FAILED,
};

// What a program meets when its GPU falls off the bus (seen with Xid 79; not documented).
constexpr CUresult kLostError = CUDA_ERROR_UNKNOWN;

struct Armed {
  explicit Armed(const FaultConfig& config) : fault(config) {}
  // Counts, and tells whether it is one of those meant.
  bool Next() {
    const uint64_t n = seen.fetch_add(1) + 1;
    return n >= fault.nth && n - fault.nth < fault.count;
  }
  const FaultConfig fault;
  CUresult error = CUDA_SUCCESS;
  std::atomic<uint64_t> seen{0};
};

struct Faults {
  bool met = false;
  std::vector<std::unique_ptr<Armed>> armed;  // fixed once met
  bool may_lose_device = false;
  std::atomic<CUresult> process_error{CUDA_SUCCESS};
};

// Leaked, as the Driver is.
Faults& F() {
  static Faults* const faults = new Faults;
  return *faults;
}

// CUDA_SUCCESS when there is no such name.
CUresult ErrorNamed(const std::string& name) {
  for (int code = 1; code <= CUDA_ERROR_UNKNOWN; ++code) {
    const char* text = nullptr;
    const auto error = static_cast<CUresult>(code);
    if (cuGetErrorName(error, &text) == CUDA_SUCCESS && name == text) return error;
  }
  return CUDA_SUCCESS;
}

CUresult PrintError(size_t index, const FaultConfig& fault, const char* expected) {
  std::fprintf(stderr, "prorata simulated GPU: faults[%zu].error: \"%s\" is not %s\n", index,
               fault.error.c_str(), expected);
  return CUDA_ERROR_SYSTEM_NOT_READY;
}

CUresult Arm(Machine& machine) {
  Faults& faults = F();
  for (size_t i = 0; i < machine.config().faults.size(); ++i) {
    const FaultConfig& fault = machine.config().faults[i];
    if (fault.kind == FaultKind::kDeviceLost) faults.may_lose_device = true;
    if (fault.after_ns >= 0) continue;  // the core's
    if (!fault.process.empty() && fault.process != program_invocation_short_name) continue;
    const uint32_t nth = machine.MeetFault(i);
    if (fault.nth_process != 0 && fault.nth_process != nth) continue;
    auto armed = std::make_unique<Armed>(fault);
    if (!fault.error.empty()) {
      armed->error = ErrorNamed(fault.error);
      if (armed->error == CUDA_SUCCESS) return PrintError(i, fault, "the name of a CUresult");
    }
    if (fault.kind == FaultKind::kContextError &&
        std::ranges::find(kKernelErrors, armed->error) == kKernelErrors.end()) {
      return PrintError(i, fault, "an error that a kernel can end with");
    }
    if (fault.kind == FaultKind::kInitFails && armed->error == CUDA_SUCCESS) {
      armed->error = CUDA_ERROR_SYSTEM_NOT_READY;
    }
    faults.armed.push_back(std::move(armed));
  }
  faults.met = true;
  return CUDA_SUCCESS;
}

bool IsOn(const Armed& armed, int ordinal) {
  return armed.fault.device < 0 || armed.fault.device == D().machine_index[ordinal];
}

}  // namespace

CUresult MeetFaults(Machine& machine) {
  if (!F().met) {
    if (CUresult result = Arm(machine)) return result;
  }
  for (const auto& armed : F().armed) {
    if (armed->fault.kind == FaultKind::kInitFails && armed->Next()) return armed->error;
  }
  return CUDA_SUCCESS;
}

bool RefusesAllocation(int ordinal, uint64_t bytes) {
  bool refuses = false;
  for (const auto& armed : F().armed) {
    if (armed->fault.kind != FaultKind::kAllocationRefused || !IsOn(*armed, ordinal)) continue;
    if (bytes <= armed->fault.above_bytes) continue;
    refuses |= armed->Next();
  }
  return refuses;
}

LaunchFault CountLaunch(int ordinal) {
  LaunchFault out;
  for (const auto& armed : F().armed) {
    const FaultKind kind = armed->fault.kind;
    if (kind == FaultKind::kAllocationRefused || kind == FaultKind::kInitFails) continue;
    if (!IsOn(*armed, ordinal) || !armed->Next()) continue;
    if (kind == FaultKind::kSlow) out.factor *= armed->fault.factor;
    if (kind == FaultKind::kContextError) out.error = armed->error;
    if (kind == FaultKind::kDeviceLost) out.loses_device = true;
    if (kind == FaultKind::kStall) {
      D().machine->StallDevice(D().machine_index[ordinal], armed->fault.for_ns);
    }
    if (kind == FaultKind::kLateLaunch || kind == FaultKind::kHang) {
      std::unique_lock lock(D().mutex, std::defer_lock);
      if (kind == FaultKind::kHang) lock.lock();
      std::this_thread::sleep_for(std::chrono::nanoseconds(armed->fault.for_ns));
    }
  }
  return out;
}

double CopyFactor(int ordinal) {
  double factor = 1;
  for (const auto& armed : F().armed) {
    if (armed->fault.kind != FaultKind::kSlow || !IsOn(*armed, ordinal)) continue;
    const uint64_t launches = armed->seen.load();
    const bool begun = launches >= armed->fault.nth || armed->fault.nth == 1;
    const uint64_t over = launches > armed->fault.nth ? launches - armed->fault.nth : 0;
    if (begun && over < armed->fault.count) factor *= armed->fault.factor;
  }
  return factor;
}

void Harm(Context* ctx, const LaunchFault& fault) {
  Driver& driver = D();
  if (fault.loses_device) {
    driver.machine->LoseDevice(driver.machine_index[ctx->device]);
    RunOutActions(ctx);
    return;
  }
  std::vector<std::pair<Context*, Handle>> harmed;
  {
    const std::lock_guard lock(driver.mutex);
    const bool whole_process = fault.error != CUDA_ERROR_ASSERT;
    if (whole_process) F().process_error = fault.error;
    for (Context* other : driver.contexts) {
      if (!other->alive || (other != ctx && !whole_process)) continue;
      other->sticky = fault.error;
      harmed.emplace_back(other, other->handle);
    }
  }
  for (const auto& [other, handle] : harmed) {
    RunOutActions(other);
    driver.machine->DropWork(handle);
  }
}

CUresult ErrorOfProcess() { return F().process_error.load(); }

CUresult ErrorOf(const Context& ctx) {
  if (const CUresult error = ctx.sticky) return error;
  if (F().may_lose_device && D().machine->Lost(D().machine_index[ctx.device])) return kLostError;
  return CUDA_SUCCESS;
}

}  // namespace prorata::simgpu::driver
