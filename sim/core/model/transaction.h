#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "sim/core/model/state.h"

namespace prorata::simgpu {

// All writing to a State. The rules, given that the process may be killed between any two
// instructions and that the next holder of the lock sees its stores in program order:
//
//   1. the old bytes are in the log before `log_used` counts them;
//   2. `log_used` counts them before a mutable reference leaves Mut;
//   3. Commit sets `log_used` to 0 with one store, after all writes.
//
// So a log that is not empty when the lock is taken belongs to a dead owner, and Rollback restores
// the state of the last commit. Rollback restores an entry before uncounting it, hence may itself
// be killed and begun again. steps.h has the places where tests are killed.
//
// An entry in the log:  old bytes, padded to 8 | uint32 offset in State | uint32 size
class Transaction {
 public:
  explicit Transaction(State* state)
      : base_(reinterpret_cast<unsigned char*>(state)), state_(state) {}

  const State& state() const { return *state_; }

  template <typename T>
  T& Mut(const T& record) {
    static_assert(std::is_trivially_copyable_v<T>);
    Remember(&record, sizeof(T));
    return const_cast<T&>(record);
  }
  template <typename T>
  T* MutRange(const T* first, size_t count) {
    static_assert(std::is_trivially_copyable_v<T>);
    Remember(first, sizeof(T) * count);
    return const_cast<T*>(first);
  }

  void Commit();
  void Rollback();
  bool empty() const { return state_->log_used == 0; }

 private:
  void Remember(const void* bytes, size_t size);

  unsigned char* base_;
  State* state_;
};

}  // namespace prorata::simgpu
