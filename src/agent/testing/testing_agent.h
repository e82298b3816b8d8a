#pragma once

// For tests of the agent: a machine whose NVML is a page that processes share, an agent in a
// process of its own (so that it can be killed), a client of the control socket, and a member as
// the client library is one, without a driver.

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "agent/server/agent.h"
#include "base/bytes.h"
#include "base/unique_fd.h"
#include "driver/nvml.h"
#include "shm/limits_file.h"
#include "shm/usage_file.h"
#include "wire/frame.h"

namespace prorata::agent::testing {

// What an agent answers who wants to join.
inline constexpr auto kWelcome = static_cast<uint16_t>(wire::MessageType::kWelcome);
inline constexpr auto kRefused = static_cast<uint16_t>(wire::MessageType::kRefused);

// Of the first device; the others differ in the first digit.
inline constexpr char kUuid[] = "GPU-11111111-2222-3333-4444-555555555555";

// What is on the device, by process, in memory that all processes of a test share. A process's
// entry counts until the process is dead.
struct DevicePage {
  static constexpr int kEntries = 256;
  struct Entry {
    std::atomic<int32_t> pid;
    std::atomic<uint64_t> bytes;
    std::atomic<uint32_t>
        percent;  // of the device's time, with time_figures; of dead processes too
  };
  Entry entries[kEntries];
  std::atomic<bool> no_figures;      // NVML has none per process
  std::atomic<bool> time_figures;    // NVML has some per process
  std::atomic<bool> hangs;           // no call of NVML comes back while this is so
  std::atomic<int> stuck_ms;         // see AgentProcess::StickLoop
  std::atomic<uint64_t> most_bytes;  // the referee: the most that ever was on the device at once

  static DevicePage* Make();
  Entry* EntryOf(pid_t pid);
  // Memory of this process grows or shrinks; counts the whole device afterwards.
  void Change(int64_t bytes);
  uint64_t Total();

 private:
  uint64_t Sum();
  int lock_fd = -1;  // one change at a time, or a sum would mix what was with what is
};

class PageNvml final : public driver::Nvml {
 public:
  // What is on the page is on the first device.
  explicit PageNvml(DevicePage* page, size_t count = 1, uint64_t total_bytes = 8 * kGiB);
  const std::vector<driver::NvmlDevice>& Devices() const override { return devices_; }
  Result<driver::NvmlMemory> Memory(size_t device) override;
  Result<std::vector<driver::NvmlProcess>> Processes(size_t device) override;
  Result<std::vector<driver::NvmlTimeSample>> TimeSamples(size_t device,
                                                          uint64_t since_us) override;

 private:
  void WaitWhileHung();

  DevicePage* page_;
  std::vector<driver::NvmlDevice> devices_;
};

// How long a test waits for what must come. An agent that is right is never near it, however busy
// the machine.
inline constexpr int kPatienceMs = 60'000;

class AgentProcess {
 public:
  AgentProcess(std::string dir, DevicePage* page) : dir_(std::move(dir)), page_(page) {}
  ~AgentProcess() { Kill(); }
  // Answers when the control socket listens, or with what the agent said.
  std::string Start(bool exit_when_idle = false, uint32_t dilation = 1);
  void Kill();  // SIGKILL
  // Whether it ends by itself within this time.
  bool WaitForEnd(int64_t ms = kPatienceMs);
  pid_t pid() const { return pid_; }
  // Of its machine; before the start.
  void SetDevices(size_t count) { devices_ = count; }
  // Keeps the agent's loop, and nothing else of it, from going on for so long.
  void StickLoop(int ms);
  std::vector<agent::Overcommit> overcommit = {};  // of the next Start
  uint32_t slow_disk_ms = 0;                       // likewise

 private:
  std::string dir_;
  DevicePage* page_;
  size_t devices_ = 1;
  pid_t pid_ = -1;
};

// A connected socket, or none.
UniqueFd ConnectTo(const std::string& path);
// Sends a frame with an optional descriptor. False: the peer is gone.
bool SendFrame(int fd, uint16_t type, const void* body, size_t bytes, int passed_fd = -1);
// The next frame within `ms`, or nothing (gone, or silent).
struct Received {
  uint16_t type = 0;
  std::string body;
};
std::optional<Received> ReceiveFrame(int fd, int ms = kPatienceMs);

// One request to the control socket; an empty object when it could not be had.
nlohmann::json Call(const std::string& dir, const nlohmann::json& request);

// A process that connects for others: to the agent they are it, as a process is on one share only.
class StandIn {
 public:
  StandIn();
  ~StandIn();  // killed, and waited for
  UniqueFd ConnectTo(const std::string& path);
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  UniqueFd socket_;
};

class TestMember {
 public:
  // `as`: on whose behalf it joins (null: this process), and outlives it.
  explicit TestMember(std::string folder, StandIn* as = nullptr)
      : folder_(std::move(folder)), as_(as) {}
  ~TestMember();

  uint32_t inner_pid = 0;  // as it tells when it joins

  // The type of the answer: kWelcome or kRefused; 0: none.
  uint16_t Join(uint64_t previous_slot = wire::kNoSlot);
  // Joins again as often as needed, after the agent was killed. False: not within kPatienceMs.
  bool Rejoin();

  // Charges as usage_file.h says, asking when the grant is too small. False: refused.
  bool Charge(uint64_t bytes);
  void Uncharge(uint64_t bytes) { usage().used_bytes -= bytes; }
  std::optional<wire::GrantReply> Ask(uint64_t needed_bytes);
  void Disconnect() { socket_.Reset(); }

  shm::DeviceUsage& usage(uint32_t device = 0) { return usage_->devices[device]; }
  shm::LimitsFile& limits() { return *limits_; }
  uint64_t grant() const { return limits_->grants[slot_].bytes[0]; }
  uint32_t lease() const { return limits_->devices[0].lease; }
  uint32_t sequence() const { return lease() >> shm::kLeaseSequenceShift; }
  uint64_t slot() const { return slot_; }
  int socket() const { return socket_.get(); }
  void Send(wire::MessageType type, uint32_t device = 0) {
    const uint32_t word = limits_->devices[device].lease;
    const wire::LeaseEvent event{device, word >> shm::kLeaseSequenceShift};
    SendFrame(socket_.get(), static_cast<uint16_t>(type), &event, sizeof event);
  }
  // The next frame of this type; others are skipped.
  std::optional<Received> Await(wire::MessageType type, int ms = kPatienceMs);

 private:
  bool MapLimits();

  std::string folder_;
  StandIn* as_;
  UniqueFd socket_;
  UniqueFd usage_fd_;
  shm::LimitsFile* limits_ = nullptr;
  shm::UsageFile* usage_ = nullptr;
  uint64_t slot_ = wire::kNoSlot;
  uint64_t next_request_ = 1;
};

// Waits for a condition; false: it did not come true within `ms`.
bool Eventually(const std::function<bool()>& condition, int ms = kPatienceMs);

// A new folder under /tmp, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace prorata::agent::testing
