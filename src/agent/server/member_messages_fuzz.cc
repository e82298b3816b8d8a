// Bytes as they come from the members' sockets of a share: framed, decoded, and done to its ledger
// with whatever their usage memories may say.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "agent/server/member_messages.h"
#include "policy/memory/ledger.h"

namespace {

using prorata::agent::DecodeMemberMessage;
using prorata::policy::Ledger;
using prorata::wire::FrameReader;

constexpr uint64_t kLimitBytes = uint64_t{1} << 30;
constexpr uint32_t kSlots = 4;

void Must(bool held) {
  if (!held) __builtin_trap();
}

// A share's account on one device. `used` is what its members' words say: a member writes anything
// at any moment, here what its messages carry.
class Account {
 public:
  Account() : ledger_(kLimitBytes, kSlots), used_(kSlots) {
    for (uint32_t slot = 0; slot < kSlots; ++slot) ledger_.Admit(slot);
  }

  void Request(uint32_t slot, uint64_t needed_bytes) {
    for (int round = 0; round < 8; ++round) {
      const auto decision = ledger_.Request(slot, needed_bytes, used_);
      Check();
      if (decision.verdict == Ledger::Verdict::kGranted) {
        Must(decision.grant_bytes >= needed_bytes && decision.grant_bytes <= kLimitBytes);
      }
      if (decision.verdict != Ledger::Verdict::kRecall) return;
      for (const uint32_t other : decision.recall) {
        Must(other < kSlots && other != slot);
        const uint64_t target = ledger_.RecallTarget(other, used_[other]);
        used_[other] += needed_bytes;  // a charge on its way
        const uint64_t kept = ledger_.FinishRecall(other, target, used_[other]);
        Must(kept == ledger_.grant_bytes(other));
        Check();
      }
    }
  }

  void SetUsed(uint32_t slot, uint64_t used_bytes) { used_[slot] = used_bytes; }

 private:
  void Check() const {
    uint64_t sum = 0;
    for (uint32_t slot = 0; slot < kSlots; ++slot) sum += ledger_.grant_bytes(slot);
    Must(sum == ledger_.granted_bytes() && sum <= kLimitBytes);
  }

  Ledger ledger_;
  std::vector<uint64_t> used_;
};

}  // namespace

// The first byte: how many devices the share has, 1 to 16 (shm::kMaxDevices).
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const uint32_t devices = 1 + data[0] % 16;
  ++data;
  --size;
  Account account;
  std::vector<uint8_t> buffer(prorata::wire::kFrameHeaderBytes +
                              prorata::wire::kMaxMemberBodyBytes);
  FrameReader reader(buffer.data(), buffer.size());
  while (true) {
    prorata::wire::FrameHeader header;
    const uint8_t* body = nullptr;
    const auto state = reader.Next(&header, &body);
    if (state == FrameReader::State::kBad) return 0;
    if (state == FrameReader::State::kFrame) {
      const auto message = DecodeMemberMessage(header, body, devices);
      if (!message) return 0;
      std::visit(
          [devices](const auto& m) {
            if constexpr (requires { m.device; }) Must(m.device < devices);
          },
          *message);
      if (const auto* request = std::get_if<prorata::wire::GrantRequest>(&*message)) {
        account.Request(static_cast<uint32_t>(request->id % kSlots), request->needed_bytes);
      } else if (const auto* made = std::get_if<prorata::wire::ContextMade>(&*message)) {
        account.SetUsed(static_cast<uint32_t>(made->id % kSlots), made->reserved_bytes);
      }
      continue;
    }
    if (size == 0) return 0;
    const size_t chunk = std::min(size, reader.SpaceBytes());
    std::memcpy(reader.Space(), data, chunk);
    reader.Filled(chunk);
    data += chunk;
    size -= chunk;
  }
}
