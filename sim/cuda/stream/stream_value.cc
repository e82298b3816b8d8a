#include "sim/cuda/stream/stream_value.h"

#include <type_traits>

namespace prorata::simgpu::driver {
namespace {

template <typename T>
bool Satisfied(const ValueCall& call) {
  const T now = __atomic_load_n(reinterpret_cast<const T*>(call.address), __ATOMIC_ACQUIRE);
  const T value = static_cast<T>(call.value);
  if (Broken(Rule::kWaitValueHolds)) return true;
  switch (call.condition) {
    case CU_STREAM_WAIT_VALUE_EQ:
      return now == value;
    case CU_STREAM_WAIT_VALUE_AND:
      return Broken(Rule::kWaitValueAnd) ? (now & value) == value : (now & value) != 0;
    case CU_STREAM_WAIT_VALUE_NOR:
      return Broken(Rule::kWaitValueNor) ? (now | value) == 0 : static_cast<T>(~(now | value)) != 0;
    default:  // CU_STREAM_WAIT_VALUE_GEQ compares in a circle, so that counters may wrap
      if (Broken(Rule::kWaitValueIsCyclic)) return now >= value;
      return static_cast<std::make_signed_t<T>>(now - value) >= 0;
  }
}

template <typename T>
bool Run(const ValueCall& call) {
  if (call.wait) return Satisfied<T>(call);
  __atomic_store_n(reinterpret_cast<T*>(call.address), static_cast<T>(call.value),
                   __ATOMIC_RELEASE);
  return true;
}

}  // namespace

bool RunValue(const ValueCall& call) {
  return call.wide ? Run<uint64_t>(call) : Run<uint32_t>(call);
}

}  // namespace prorata::simgpu::driver
