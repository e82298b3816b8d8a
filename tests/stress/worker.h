#pragma once

// One thread of the stress: what it has to allocate with, and what it met.

#include <algorithm>
#include <atomic>
#include <functional>
#include <initializer_list>
#include <optional>
#include <random>
#include <span>

#include "driver.h"
#include "exchange.h"

namespace prorata::stress {

// What a kind of allocation made; `release` gives all of it back. An empty one: nothing to release.
struct Held {
  std::function<void()> release;
};

// Counts of one process, in memory that outlives it.
inline constexpr int kMaxKinds = 32;
struct Tally {
  std::atomic<uint64_t> made[kMaxKinds] = {};
  std::atomic<uint64_t> refused[kMaxKinds] = {};
  std::atomic<uint64_t> errors{0};
  char first_error[200] = {};  // of whoever counted the first one
};

class Worker {
 public:
  // All must outlive the worker. `context` is current in its thread.
  Worker(const Driver& its_driver, Exchange* its_exchange, Tally* tally, CUcontext its_context,
         CUdevice its_device, uint64_t seed, uint64_t most_bytes)
      : driver(its_driver),
        exchange(*its_exchange),
        context(its_context),
        device(its_device),
        random(seed),
        tally_(*tally),
        most_bytes_(most_bytes) {}

  const Driver& driver;
  Exchange& exchange;
  const CUcontext context;
  const CUdevice device;
  CUstream stream = nullptr;    // its own, once made
  CUmemoryPool pool = nullptr;  // of its own, while it has one
  std::mt19937_64 random;

  // True: success. False after being out of memory, which is what a full share answers, and after
  // what the caller says may happen; anything else is counted as an error.
  bool Try(CUresult result, const char* what, std::initializer_list<CUresult> may = {});
  // What gives back must not fail.
  void Must(CUresult result, const char* what) {
    if (result != CUDA_SUCCESS) Note(result, what);
  }
  // Something that must hold does not.
  void Note(CUresult result, const char* what);
  // Whether any Try since the last Begin was out of memory.
  bool was_refused() const { return refused_; }
  void Begin() { refused_ = false; }

  // Sizes of every magnitude: a byte, a page, a slab, many slabs.
  uint64_t Bytes() {
    const uint64_t magnitude = uint64_t{1} << (random() % 40);
    return 1 + random() % std::min(magnitude, most_bytes_);
  }
  bool OneIn(uint64_t n) { return random() % n == 0; }

 private:
  Tally& tally_;
  uint64_t most_bytes_;
  bool refused_ = false;
};

struct Kind {
  const char* name;
  uint32_t weight;  // how often, against the others
  std::optional<Held> (*make)(Worker& worker);
};

// All kinds that there are. None, where the driver refused or another process's memory was gone.
std::span<const Kind> Kinds();

}  // namespace prorata::stress
