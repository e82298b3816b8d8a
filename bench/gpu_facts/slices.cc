#include <cstdint>

#include "bench/gpu_facts/figure.h"
#include "bench/gpu_facts/sections.h"
#include "bench/gpu_facts/timeline.h"
#include "bench/gpu_facts/worker.h"

namespace prorata::gpufacts {

Result<nlohmann::json> MeasureTimeSlice(const Bench& bench) {
  auto first = Worker::Start(bench.options, "slice");
  if (!first) return std::unexpected(first.error());
  auto second = Worker::Start(bench.options, "slice");
  if (!second) return std::unexpected(second.error());
  for (Worker* worker : {&*first, &*second}) {
    if (auto ready = worker->Hear("ready"); !ready) return std::unexpected(ready.error());
  }
  for (Worker* worker : {&*first, &*second}) GPUFACTS_TRY(worker->Notify());
  // The second waits in its write until the first is read; its kernels are over by then.
  auto a = first->HearStamps();
  if (!a) return std::unexpected(a.error());
  auto b = second->HearStamps();
  if (!b) return std::unexpected(b.error());
  Slices turns = ReadSlices(*a, *b);
  nlohmann::json facts = {{"kernel_us", bench.options.slice_kernel_us},
                          {"kernels", {a->size(), b->size()}},
                          {"first_share", turns.first_share}};
  if (turns.run_us.empty()) facts["note"] = "the two processes never alternated";
  facts["run"] = Figure("us", std::move(turns.run_us));
  facts["gap"] = Figure("us", std::move(turns.gap_us));
  facts["turn"] = Figure("us", std::move(turns.slice_us));
  return facts;
}

}  // namespace prorata::gpufacts
