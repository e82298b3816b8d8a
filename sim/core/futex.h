#pragma once

#include <atomic>
#include <cstdint>

namespace prorata::simgpu {

// A word in memory that processes share. FutexWait returns when woken, when the word is not `seen`,
// after `timeout_ns` of real time (kForever: never), or for no reason: look again.
void FutexWait(std::atomic<uint32_t>* word, uint32_t seen, int64_t timeout_ns);
void FutexWakeAll(std::atomic<uint32_t>* word);

}  // namespace prorata::simgpu
