#include "tests/stream_fuzz/program.h"

#include <thread>

#include "tests/stream_fuzz/thread.h"

namespace prorata::stream_fuzz {

std::vector<std::string> RunProgram(const Device& device, uint64_t seed) {
  std::mt19937_64 random(seed);
  const size_t count = random() % 2 == 0 ? 1 : 2 + random() % 3;
  Shared shared{.device = device, .several = count > 1};
  for (size_t i = 0; i < count; ++i) shared.published.emplace_back();
  std::deque<Thread> threads;
  for (size_t i = 0; i < count; ++i) threads.emplace_back(&shared, seed, i);
  // The words are zero: filling device memory is not waited for, and non-blocking streams run
  // beside.
  device.driver->cuCtxSynchronize();
  std::vector<std::thread> running;
  for (Thread& thread : threads) running.emplace_back([&thread] { thread.Run(); });
  for (std::thread& thread : running) thread.join();
  std::vector<std::string> lines = {"all done " +
                                    std::to_string(device.driver->cuCtxSynchronize())};
  for (Thread& thread : threads) {
    thread.Finish();
    lines.insert(lines.end(), thread.lines().begin(), thread.lines().end());
  }
  return lines;
}

}  // namespace prorata::stream_fuzz
