#include "agent/runtime/devices.h"

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "base/bytes.h"
#include "base/check.h"

namespace prorata::agent {
namespace {

constexpr size_t kRemembered = 8;
// How long whoever wants fresh figures waits; then those of before are reported.
constexpr auto kRefreshWithin = std::chrono::milliseconds(200);

// 518 MiB on an H100, 520 from the first kernel on (driver 580.159.04: bench/results); less on
// small devices.
uint64_t GuessedOverhead(uint64_t total_bytes) {
  return std::clamp<uint64_t>(total_bytes / 64, 16 * kMiB, 544 * kMiB);
}

// Members of all shares reserve what one of them made the agent learn: a liar that holds much
// beside a small charge must not make everybody's contexts fail. Where one really takes more, the
// rest is found when it is settled.
constexpr uint64_t kMaxGuesses = 4;

}  // namespace

Devices::Devices(boost::asio::io_context& loop, driver::Nvml& nvml)
    : loop_(loop),
      nvml_(nvml),
      learned_(count()),
      memory_(count()),
      processes_(count()),
      samples_(count()),
      worker_(loop, 3 * count()) {
  for (const driver::NvmlDevice& device : nvml.Devices()) used_bytes_.push_back(device.used_bytes);
}

std::optional<size_t> Devices::Find(std::string_view uuid) const {
  for (size_t i = 0; i < count(); ++i) {
    if ((*this)[i].uuid == uuid) return i;
  }
  return std::nullopt;
}

Result<size_t> Devices::Named(std::string_view gpu, std::string_view option) const {
  if (const auto device = Find(gpu)) return *device;
  for (size_t i = 0; i < count(); ++i) {
    if (std::to_string(i) == gpu) return i;
  }
  // No agent runs that `prorata gpus` could ask.
  return Fail("unknown_gpu", std::string(option) + ": there is no GPU '" + std::string(gpu) +
                                 "' here; `nvidia-smi -L` lists them");
}

template <typename T>
void Devices::Ask(Line<T>& line, std::function<Result<T>()> read, Then<T> then) {
  const bool busy = !line.under_way.empty();
  // A call that is under way may have looked before this was asked.
  (busy ? line.next : line.under_way).push_back({std::move(then), RealClock().NowNs()});
  if (!busy) Start(line, std::move(read));
}

template <typename T>
void Devices::Start(Line<T>& line, std::function<Result<T>()> read) {
  // Kept by the work alone: it may be left behind, with what it was to answer.
  auto answer = std::make_shared<Reading<T>>(Reading<T>{Fail("nvml", "NVML was not asked"), 0});
  const auto then = [this, &line, read, answer] {
    const auto asked = std::exchange(line.under_way, std::exchange(line.next, {}));
    if (!line.under_way.empty()) Start(line, read);
    for (const Asked<T>& one : asked) {
      answer->took_ns = RealClock().NowNs() - one.since_ns;
      one.then(*answer);
    }
  };
  // A line has one call in the queue at most, so there is always a place.
  PRORATA_CHECK(worker_.Run([answer, read] { answer->value = read(); }, then));
}

void Devices::ReadMemory(size_t device, Then<driver::NvmlMemory> then) {
  Ask<driver::NvmlMemory>(
      memory_[device], [nvml = &nvml_, device] { return nvml->Memory(device); },
      [this, device, then = std::move(then)](const Reading<driver::NvmlMemory>& reading) {
        if (reading.value) used_bytes_[device] = reading.value->used_bytes;
        then(reading);
      });
}

void Devices::ReadProcesses(size_t device, Then<ByProcess> then) {
  const auto read = [nvml = &nvml_, device]() -> Result<ByProcess> {
    auto list = nvml->Processes(device);
    if (!list) return std::unexpected(list.error());
    ByProcess by_process;
    for (const driver::NvmlProcess& process : *list) by_process[process.pid] = process.used_bytes;
    return by_process;
  };
  Ask<ByProcess>(processes_[device], read, std::move(then));
}

void Devices::ReadTimeSamples(size_t device, uint64_t since_us, Then<TimeSamples> then) {
  Ask<TimeSamples>(
      samples_[device],
      [nvml = &nvml_, device, since_us] { return nvml->TimeSamples(device, since_us); },
      std::move(then));
}

void Devices::Refresh(std::function<void()> then) {
  struct Refreshing {
    Refreshing(boost::asio::io_context& loop) : timer(loop) {}
    size_t left = 0;
    boost::asio::steady_timer timer;
    std::function<void()> then;
  };
  if (UnansweredNs() > 0) return then();
  auto refreshing = std::make_shared<Refreshing>(loop_);
  refreshing->left = count();
  refreshing->then = std::move(then);
  for (size_t device = 0; device < count(); ++device) {
    ReadMemory(device, [refreshing](const Reading<driver::NvmlMemory>&) {
      if (--refreshing->left == 0) refreshing->timer.cancel();
    });
  }
  refreshing->timer.expires_after(kRefreshWithin);
  refreshing->timer.async_wait(
      [refreshing](const boost::system::error_code&) { refreshing->then(); });
}

int64_t Devices::UnansweredNs() const {
  const int64_t busy_ns = worker_.BusyNs();
  return busy_ns < kSlowNs ? 0 : busy_ns;
}

uint64_t Devices::ContextOverhead(size_t device) const {
  const auto& learned = learned_[device];
  if (!learned.empty()) return *std::max_element(learned.begin(), learned.end());
  return GuessedOverhead((*this)[device].total_bytes);
}

void Devices::LearnContextOverhead(size_t device, uint64_t bytes) {
  const uint64_t most = kMaxGuesses * GuessedOverhead((*this)[device].total_bytes);
  learned_[device].push_back(std::min(bytes, most));
  if (learned_[device].size() > kRemembered) learned_[device].pop_front();
}

void Devices::AdoptContextOverhead(size_t device, uint64_t bytes) {
  const bool guessed = bytes == GuessedOverhead((*this)[device].total_bytes);
  if (bytes != 0 && !guessed && learned_[device].empty()) LearnContextOverhead(device, bytes);
}

}  // namespace prorata::agent
