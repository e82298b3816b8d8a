// A request as it comes from anybody who may open the control socket, and a reply as it comes from
// an agent of another version.

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "agent/share/validate_share.h"
#include "api/control.h"

namespace {

using namespace prorata;
using namespace prorata::api;
using namespace prorata::agent;

constexpr uint64_t kGiB = uint64_t{1} << 30;

void Must(bool held) {
  if (!held) __builtin_trap();
}

// Four devices: one that is partly promised, one that more may be promised of than it has, one that
// is full, and one that nobody has anything of.
std::vector<DeviceStatus> Machine() {
  std::vector<DeviceStatus> devices(4);
  for (uint32_t i = 0; i < devices.size(); ++i) {
    devices[i].index = i;
    devices[i].uuid = "GPU-" + std::to_string(i);
    devices[i].total_bytes = 16 * kGiB;
    devices[i].links.resize(devices.size());
  }
  devices[0].promised_bytes = 4 * kGiB;
  devices[0].promised_request = {300'000};
  devices[0].shares = 1;
  devices[1].overcommit = 2;
  devices[1].foreign_bytes = kGiB;
  devices[1].promised_bytes = 2 * kGiB;
  devices[1].limit_bytes = 20 * kGiB;
  devices[1].borrowed_bytes = 3 * kGiB;
  devices[1].shares = 1;
  devices[2].promised_bytes = 16 * kGiB;
  devices[2].promised_request = Fraction::One();
  devices[2].shares = 1;
  return devices;
}

void CheckTerms(const ShareTerms& terms) {
  Must(terms.memory_bytes > 0);
  Must(terms.memory_request_bytes <= terms.memory_bytes);
  Must(terms.compute_request.ppm <= terms.compute_limit.ppm);
  Must(terms.compute_limit.ppm > 0 && terms.compute_limit.ppm <= Fraction::kOne);
  Must(terms.weight > 0 && terms.weight <= kMaxWeight);
  Must(terms.priority >= kMinPriority && terms.priority <= kMaxPriority);
  Must(terms.yield_within_ns >= kMinYieldWithinNs && terms.yield_within_ns <= kMaxYieldWithinNs);
}

// What a share was granted on a device fits beside what was promised before.
void CheckFits(const ShareTerms& terms, const DeviceStatus& device) {
  CheckTerms(terms);
  const uint64_t left = device.total_bytes - device.foreign_bytes - device.promised_bytes;
  Must(terms.memory_bytes <= left);
  Must(terms.memory_request_bytes + device.borrowed_bytes <= left ||
       terms.memory_request_bytes == 0);
  Must(terms.compute_request.ppm <= Fraction::kOne - device.promised_request.ppm);
}

void CheckRequest(const ControlRequest& request) {
  // What was understood must be understood again, the same.
  const std::string text = EncodeRequest(request);
  const auto again = DecodeRequest(text);
  Must(again && again->op == request.op && EncodeRequest(*again) == text);

  const std::vector<DeviceStatus> machine = Machine();
  const std::vector<std::string> names = {"a", "b/c"};
  if (const auto share = ValidateShare(request.share, machine, names)) {
    std::set<size_t> distinct;
    for (const ValidShare::Device& on : share->devices) {
      Must(on.device < machine.size() && distinct.insert(on.device).second);
      CheckFits(on.terms, machine[on.device]);
    }
    Must(!distinct.empty() && distinct.size() <= kMaxGpusOfShare);
  }
  Must(!ValidateShare(request.share, {}, {}));

  const std::vector<ShareTerms> now(2, {2 * kGiB, {100'000}, Fraction::One(), 100, kGiB});
  const std::vector<DeviceStatus> on(machine.begin(), machine.begin() + 2);
  if (const auto changed = ValidateChange(request.change, now, on)) {
    Must(changed->size() == now.size());
    for (const ShareTerms& terms : *changed) CheckTerms(terms);
  }
}

// What is reported again is read again, the same.
template <typename Decode>
void CheckReply(const nlohmann::json& json, Decode decode) {
  if (const auto status = decode(json)) {
    const auto again = decode(ToJson(*status));
    Must(again && ToJson(*again) == ToJson(*status));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto request = DecodeRequest(text)) CheckRequest(*request);
  // What comes from an agent is not trusted either.
  const auto reply = nlohmann::json::parse(text.begin(), text.end(), nullptr, false);
  if (const auto event = EventFromJson(reply)) {
    const auto again = EventFromJson(ToJson(*event));
    Must(again && Words(*again) == Words(*event));
  }
  CheckReply(reply, ShareFromJson);
  CheckReply(reply, DeviceFromJson);
  CheckReply(reply, HelloFromJson);
  CheckReply(reply, TraceFromJson);
  [[maybe_unused]] const auto events = EventsFromJson(reply);
  (void)ErrorOfReply(reply);
  return 0;
}
