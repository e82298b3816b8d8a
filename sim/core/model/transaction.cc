#include "sim/core/model/transaction.h"

#include "base/check.h"
#include "sim/core/model/steps.h"

namespace prorata::simgpu {

void (*g_step)(Step) = nullptr;

namespace {

struct Footer {
  uint32_t offset;
  uint32_t size;
};

constexpr size_t Padded(size_t size) { return (size + 7) & ~size_t{7}; }

// Keeps the compiler from moving stores; the kernel orders the rest when it ends a process.
void StoreUsed(uint64_t* used, uint64_t value) {
  std::atomic_ref<uint64_t>(*used).store(value, std::memory_order_release);
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

}  // namespace

void Transaction::Remember(const void* bytes, size_t size) {
  At(Step::kBeforeLogged);
  const auto offset = static_cast<size_t>(static_cast<const unsigned char*>(bytes) - base_);
  PRORATA_CHECK(offset + size <= state_->size_bytes);
  const uint64_t used = state_->log_used;
  PRORATA_CHECK(used + Padded(size) + sizeof(Footer) <= kLogBytes);
  unsigned char* entry = state_->log + used;
  std::memcpy(entry, bytes, size);
  const Footer footer{static_cast<uint32_t>(offset), static_cast<uint32_t>(size)};
  std::memcpy(entry + Padded(size), &footer, sizeof footer);
  At(Step::kLogged);
  StoreUsed(&state_->log_used, used + Padded(size) + sizeof footer);
  At(Step::kCounted);
}

void Transaction::Commit() {
  if (empty()) return;
  At(Step::kBeforeCommit);
  StoreUsed(&state_->log_used, 0);
  At(Step::kCommitted);
}

void Transaction::Rollback() {
  while (state_->log_used != 0) {
    const uint64_t used = state_->log_used;
    Footer footer;
    std::memcpy(&footer, state_->log + used - sizeof footer, sizeof footer);
    const uint64_t start = used - sizeof footer - Padded(footer.size);
    At(Step::kBeforeRestored);
    std::memcpy(base_ + footer.offset, state_->log + start, footer.size);
    At(Step::kRestored);
    StoreUsed(&state_->log_used, start);
    At(Step::kUncounted);
  }
}

}  // namespace prorata::simgpu
