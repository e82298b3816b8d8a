#include "sim/cuda/state.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "sim/cuda/context/green.h"
#include "sim/cuda/context/visible_devices.h"
#include "sim/cuda/faults.h"
#include "sim/cuda/graph/graph_memory.h"

namespace prorata::simgpu::driver {
namespace {

// The child of a fork shares nothing usable with the parent: no executor thread, a machine that
// knows it as another process, a mutex that may have been held. So once initialized, a process's
// children answer CUDA_ERROR_NOT_INITIALIZED to everything and touch none of it; as CUDA documents
// it. A program that forks before cuInit, or calls exec after, starts fresh.
enum class Init : int { kNo, kDone, kForked };
std::atomic<Init> g_init{Init::kNo};

pthread_key_t g_thread_key;
[[gnu::tls_model("initial-exec")]] thread_local Thread* t_thread = nullptr;

void DeleteThread(void* thread) {
  // Calls may still come from later destructors of the same thread: they get a new, empty state.
  t_thread = nullptr;
  delete static_cast<Thread*>(thread);
}

void ForkedChild() {
  if (g_init.load() == Init::kDone) g_init.store(Init::kForked);
}

CUuuid ParseUuid(const std::string& text) {
  CUuuid uuid{};
  size_t digit = 0;
  for (size_t i = text.starts_with("GPU-") ? 4 : 0; i < text.size() && digit < 32; ++i) {
    const char c = text[i];
    int value = -1;
    if (c >= '0' && c <= '9') value = c - '0';
    if (c >= 'a' && c <= 'f') value = c - 'a' + 10;
    if (c >= 'A' && c <= 'F') value = c - 'A' + 10;
    if (value < 0) continue;
    uuid.bytes[digit / 2] = static_cast<char>(uuid.bytes[digit / 2] << 4 | value);
    ++digit;
  }
  return uuid;
}

void AddDevice(Driver& driver, int machine_index) {
  const DeviceConfig& config = driver.machine->device(machine_index);
  auto device = std::make_unique<Device>();
  device->index = static_cast<int>(driver.devices.size());
  device->uuid = ParseUuid(config.uuid);
  unsigned domain = 0, bus = 0, slot = 0;
  std::sscanf(config.pci_bus_id.c_str(), "%x:%x:%x", &domain, &bus, &slot);
  device->pci_domain = static_cast<int>(domain);
  device->pci_bus = static_cast<int>(bus);
  device->pci_device = static_cast<int>(slot);
  device->primary.device = device->index;
  device->primary.primary = true;
  device->primary.id = driver.next_id++;
  // Twice the memory: room for holes between ranges of different sizes.
  device->arena = std::make_unique<Arena>(driver.machine->memory_fd(machine_index),
                                          2 * config.memory_bytes, config.slab_bytes);
  driver.contexts.insert(&device->primary);
  driver.machine_index.push_back(machine_index);
  driver.devices.push_back(std::move(device));
}

CUresult AttachMachine(Driver& driver) {
  auto config = FindMachineConfig();
  if (!config) {
    std::fprintf(stderr, "prorata simulated GPU: %s\n", config.error().message.c_str());
    return CUDA_ERROR_SYSTEM_NOT_READY;
  }
  std::this_thread::sleep_for(std::chrono::nanoseconds(
      static_cast<int64_t>(static_cast<double>(config->init_ns) * config->dilation)));
  auto machine = Machine::Attach(*config, FindStateFolder());
  if (!machine) {
    std::fprintf(stderr, "prorata simulated GPU: %s\n", machine.error().message.c_str());
    return CUDA_ERROR_SYSTEM_NOT_READY;
  }
  if (CUresult result = MeetFaults(**machine)) return result;
  std::vector<std::string> uuids;
  for (int i = 0; i < (*machine)->device_count(); ++i) uuids.push_back((*machine)->device(i).uuid);
  const char* const blocking = std::getenv("CUDA_LAUNCH_BLOCKING");
  driver.launches_block = blocking != nullptr && std::strcmp(blocking, "1") == 0;
  const std::vector<int> visible = VisibleDevices(std::getenv("CUDA_VISIBLE_DEVICES"), uuids);
  if (visible.empty()) return CUDA_ERROR_NO_DEVICE;
  driver.machine = std::move(*machine);
  for (int index : visible) AddDevice(driver, index);
  return CUDA_SUCCESS;
}

}  // namespace

Driver::Driver() : graph_memory(*new GraphMemory) {}

Driver& D() {
  static Driver* const driver = new Driver;
  return *driver;
}

Thread& Self() {
  if (t_thread) return *t_thread;
  static std::atomic<uint64_t> next_id{1};
  static const int key_error = pthread_key_create(&g_thread_key, DeleteThread);
  t_thread = new Thread;
  t_thread->id = next_id.fetch_add(1);
  if (key_error == 0) pthread_setspecific(g_thread_key, t_thread);
  return *t_thread;
}

bool Initialized() { return g_init.load(std::memory_order_acquire) == Init::kDone; }

CUresult EnterCall() {
  if (!Initialized()) return CUDA_ERROR_NOT_INITIALIZED;
  if (t_thread && t_thread->inside_callback > 0) return CUDA_ERROR_NOT_PERMITTED;
  return CUDA_SUCCESS;
}

CUresult EnterContext(Context** ctx) {
  if (CUresult result = EnterCall()) return result;
  Thread& self = Self();
  if (self.stack.empty() || !self.stack.back()) return CUDA_ERROR_INVALID_CONTEXT;
  *ctx = self.stack.back();
  if (!(*ctx)->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if ((*ctx)->green) *ctx = (*ctx)->green->primary;
  return ErrorOf(**ctx);
}

CUresult EnterDevice(CUdevice device) {
  if (CUresult result = EnterCall()) return result;
  if (device < 0 || device >= static_cast<int>(D().devices.size()))
    return CUDA_ERROR_INVALID_DEVICE;
  return CUDA_SUCCESS;
}

CUresult FromCode(Code code) {
  switch (code) {
    case Code::kOk:
      return CUDA_SUCCESS;
    case Code::kNotReady:
      return CUDA_ERROR_NOT_READY;
    case Code::kInvalidHandle:
      return CUDA_ERROR_INVALID_HANDLE;
    case Code::kInvalidValue:
      return CUDA_ERROR_INVALID_VALUE;
    case Code::kOutOfMemory:
    case Code::kOutOfResources:
      return CUDA_ERROR_OUT_OF_MEMORY;
    case Code::kTimedOut:
      return CUDA_ERROR_TIMEOUT;
    case Code::kDeviceLost:  // what programs meet when a GPU falls off the bus
    case Code::kOwn:
    case Code::kFull:
    case Code::kStuck:
    case Code::kShutdown:
      break;
  }
  return CUDA_ERROR_UNKNOWN;
}

CUresult FindEvent(CUevent event, EventRef* out) {
  auto found = D().events.find(event);
  if (found == D().events.end()) return CUDA_ERROR_INVALID_HANDLE;
  *out = found->second;
  return CUDA_SUCCESS;
}

Memory* FindMemory(uint64_t address) {
  auto& memory = D().memory;
  auto after = memory.upper_bound(address);
  if (after == memory.begin()) return nullptr;
  Memory& record = std::prev(after)->second;
  return address - record.base < record.bytes ? &record : nullptr;
}

bool DeviceRangeIsValid(uint64_t address, uint64_t bytes) {
  while (bytes > 0) {
    const Memory* record = FindMemory(address);
    if (!record || !record->readable) return false;
    const uint64_t here = std::min(bytes, record->base + record->bytes - address);
    address += here;
    bytes -= here;
  }
  return true;
}

bool ContextIsKnown(Context* ctx) {
  if (D().contexts.contains(ctx)) return true;
  return std::any_of(D().greens.begin(), D().greens.end(),
                     [&](const auto& green) { return &green.second->view == ctx; });
}

}  // namespace prorata::simgpu::driver

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

CUresult cuInit(unsigned int Flags) {
  if (Flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (g_init.load() == Init::kForked) return CUDA_ERROR_NOT_INITIALIZED;
  Driver& driver = D();
  std::lock_guard lock(driver.mutex);
  if (g_init.load() == Init::kDone) return CUDA_SUCCESS;
  if (CUresult result = AttachMachine(driver)) return result;
  static const int registered = pthread_atfork(nullptr, nullptr, ForkedChild);
  if (registered != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  g_init.store(Init::kDone, std::memory_order_release);
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* driverVersion) {
  if (!driverVersion) return CUDA_ERROR_INVALID_VALUE;
  // Asked before cuInit: from the configuration, not from the machine.
  static const int version = [] {
    auto config = FindMachineConfig();
    return config ? config->driver_version : CUDA_VERSION;
  }();
  *driverVersion = version;
  return CUDA_SUCCESS;
}
