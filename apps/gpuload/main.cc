// gpuload: a small workload on the driver API for tests, the demo and gpu-check.

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "apps/gpuload/gpu.h"
#include "apps/gpuload/kernels.h"
#include "apps/gpuload/memory.h"
#include "apps/gpuload/options.h"
#include "apps/gpuload/report.h"

namespace prorata::gpuload {
namespace {

std::atomic<bool> stop_requested = false;
static_assert(std::atomic<bool>::is_always_lock_free);  // a signal handler writes it

void RequestStop(int) { stop_requested = true; }

void CatchStopSignals() {
  struct sigaction action = {};
  action.sa_handler = RequestStop;
  ::sigaction(SIGTERM, &action, nullptr);
  ::sigaction(SIGINT, &action, nullptr);
}

nlohmann::json ToJson(const MemorySeen& seen) {
  return {{"free", seen.free_bytes},
          {"total", seen.total_bytes},
          {"device_total", seen.device_total_bytes}};
}

void Announce(const Options& options, const nlohmann::json& event) {
  if (options.announce) std::cout << event.dump() << std::endl;
}

Status RunMemory(const Gpu& gpu, const Options& options, nlohmann::json* report) {
  auto outcome = AllocateAll(gpu, options);
  if (!outcome) return std::unexpected(outcome.error());
  (*report)["allocations"] = outcome->allocations;
  (*report)["allocated_bytes"] = outcome->bytes;
  (*report)["refused"] =
      outcome->refused.empty() ? nlohmann::json() : nlohmann::json(outcome->refused);
  auto seen = SeeMemory(gpu);
  if (seen) (*report)["memory_held"] = ToJson(*seen);
  nlohmann::json event = *report;
  event["event"] = "allocated";
  Announce(options, event);
  return {};  // what is held stays until the process ends
}

Status RunStress(const Gpu& gpu, const Options& options, nlohmann::json* report) {
  Announce(options, {{"event", "stress"}});
  const StressOutcome outcome = Stress(gpu, options, stop_requested);
  (*report)["stress"] = {{"allocations", outcome.allocations},
                         {"frees", outcome.frees},
                         {"refused", outcome.refused},
                         {"peak_bytes", outcome.peak_bytes}};
  if (!outcome.first_error.empty()) return Fail("stress", outcome.first_error);
  return {};
}

Status RunKernels(const Gpu& gpu, const BusyKernel& kernel, const Options& options,
                  nlohmann::json* report) {
  Announce(options, {{"event", "kernels"}});
  const KernelOutcome outcome = LaunchKernels(gpu, kernel, options, stop_requested);
  if (options.every_us > 0) {
    nlohmann::json requests = nlohmann::json::array();
    for (const auto& request : outcome.requests) {
      requests.push_back({request.done_s, request.latency_us});
    }
    (*report)["requests"] = requests;
    Announce(options, {{"event", "requests"}, {"done_s_latency_us", requests}});
  }
  auto stamps = kernel.Read();
  if (!stamps) return std::unexpected(stamps.error());
  report->update(SummarizeStamps(*stamps));
  (*report)["image"] = kernel.image();
  (*report)["kernels"] = outcome.launches;
  (*report)["wall_s"] = outcome.wall_s;
  if (options.capture_beside) {
    (*report)["captures"] = outcome.captures;
    (*report)["captures_lost"] = outcome.captures_lost;
  }
  if (!options.stamps_file.empty()) {
    if (auto ok = WriteStamps(options.stamps_file, *stamps); !ok) return ok;
  }
  if (!outcome.first_error.empty()) return Fail("kernels", outcome.first_error);
  return {};
}

void WaitFor(const std::string& path) {
  while (!stop_requested && ::access(path.c_str(), F_OK) != 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

void Hold(double seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!stop_requested && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

// Announces how much memory the GPU has, whenever that is another amount than before.
void WatchMemory(const Gpu& gpu, const Options& options) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(options.hold_s);
  uint64_t total_bytes = 0;
  while (!stop_requested && std::chrono::steady_clock::now() < end) {
    const auto seen = SeeMemory(gpu);
    if (seen && seen->total_bytes != total_bytes) {
      total_bytes = seen->total_bytes;
      nlohmann::json event = ToJson(*seen);
      event["event"] = "memory";
      event["unix_ms"] = std::chrono::duration_cast<std::chrono::milliseconds>(
                             std::chrono::system_clock::now().time_since_epoch())
                             .count();
      Announce(options, event);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

Status Work(const Options& options, nlohmann::json* report) {
  auto gpu = OpenGpu(options);
  if (!gpu) return std::unexpected(gpu.error());
  (*report)["device"] = gpu->name;
  (*report)["uuid"] = gpu->uuid;
  (*report)["driver_version"] = gpu->driver_version;
  auto seen = SeeMemory(*gpu);
  if (!seen) return std::unexpected(seen.error());
  (*report)["memory"] = ToJson(*seen);
  if (options.fork_after_init) {
    const ForkedChild child = TryInForkedChild(gpu->driver);
    (*report)["forked_child"] = child.done ? nlohmann::json(child.exit_status) : nlohmann::json();
  }
  if (!options.wait_for.empty()) {
    Announce(options, {{"event", "ready"}, {"pid", ::getpid()}});
    WaitFor(options.wait_for);
  }
  if (options.delay_s > 0) Hold(options.delay_s * options.dilation);
  // The kernel's own memory first: an allocation until refused leaves none.
  const bool kernels = !options.stress && (options.seconds > 0 || options.kernels > 0);
  Result<BusyKernel> kernel;
  if (kernels) {
    kernel = BusyKernel::Make(*gpu, options);
    if (!kernel) return std::unexpected(kernel.error());
  }
  if (options.allocate_bytes > 0) {
    if (auto ok = RunMemory(*gpu, options, report); !ok) return ok;
  }
  if (options.stress) {
    if (auto ok = RunStress(*gpu, options, report); !ok) return ok;
  } else if (kernels) {
    if (auto ok = RunKernels(*gpu, *kernel, options, report); !ok) return ok;
  }
  Announce(options, {{"event", "done"}});
  if (options.watch_memory) {
    WatchMemory(*gpu, options);
  } else if (options.hold_s > 0) {
    Hold(options.hold_s);
  }
  return {};
}

}  // namespace
}  // namespace prorata::gpuload

int main(int argc, char** argv) {
  using namespace prorata::gpuload;
  const Parsed parsed = ParseOptions(argc, argv);
  if (parsed.exit_status >= 0) return parsed.exit_status;
  CatchStopSignals();
  nlohmann::json report = {{"pid", ::getpid()}};
  const prorata::Status done = Work(parsed.options, &report);
  if (!done) {
    report["error"] = done.error().code;
    report["message"] = done.error().message;
  }
  std::cout << report.dump() << std::endl;
  return done ? 0 : 1;
}
