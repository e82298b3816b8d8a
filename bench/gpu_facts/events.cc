#include <cstdint>

#include "bench/gpu_facts/bench.h"
#include "bench/gpu_facts/figure.h"
#include "bench/gpu_facts/sections.h"

namespace prorata::gpufacts {
namespace {

constexpr int kSamples = 200;
constexpr int kCalls = 16;  // in one sample, so that reading the clock weighs little

class Event {
 public:
  Event(const gpuload::Driver& driver, unsigned flags) : driver_(driver) {
    status_ = gpuload::Check(driver_, driver_.cuEventCreate(&event_, flags), "cuEventCreate");
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() {
    if (event_ != nullptr) driver_.cuEventDestroy_v2(event_);
  }
  const Status& status() const { return status_; }
  CUevent get() const { return event_; }

 private:
  const gpuload::Driver& driver_;
  CUevent event_ = nullptr;
  Status status_;
};

Status HasEvents(const gpuload::Driver& driver) {
  if (driver.cuEventCreate && driver.cuEventRecord && driver.cuEventQuery &&
      driver.cuEventSynchronize && driver.cuEventDestroy_v2) {
    return {};
  }
  return Fail("missing", "the driver lacks some of its functions for events");
}

// Each sample is the mean of kCalls calls in a row; `after` runs untimed between samples.
template <typename Call, typename After>
Result<nlohmann::json> Sample(const Bench& bench, CUresult expected, Call call, After after) {
  std::vector<double> samples;
  const double clock_ns = ClockCostNs();
  for (int i = 0; i < kSamples && !bench.TimeIsUp(); ++i) {
    bool as_expected = true;
    const double ns = HostNs([&] {
      for (int k = 0; k < kCalls; ++k) as_expected = (call() == expected) && as_expected;
    });
    if (as_expected) samples.push_back((ns - clock_ns) / kCalls);
    GPUFACTS_TRY(after());
  }
  return Figure("ns", std::move(samples));
}

Result<nlohmann::json> Record(const Bench& bench, const Stream& stream, unsigned flags) {
  const gpuload::Driver& driver = bench.gpu.driver;
  const Event event(driver, flags);
  GPUFACTS_TRY(event.status());
  return Sample(
      bench, CUDA_SUCCESS, [&] { return driver.cuEventRecord(event.get(), stream.get()); },
      [&] { return stream.Synchronize(); });
}

// Behind a kernel that outlasts a sample many times over. Samples in which the event became done
// are left out; the kernel is launched again when it is over.
Result<nlohmann::json> QueryPending(const Bench& bench, const Stream& stream) {
  const gpuload::Driver& driver = bench.gpu.driver;
  const Event event(driver, CU_EVENT_DISABLE_TIMING);
  GPUFACTS_TRY(event.status());
  auto kernel = MakeKernel(bench.gpu, 20'000, false);
  if (!kernel) return std::unexpected(kernel.error());
  const auto begin = [&]() -> Status {
    if (driver.cuEventQuery(event.get()) == CUDA_ERROR_NOT_READY) return {};
    GPUFACTS_TRY(kernel->Launch(stream.get()));
    GPULOAD_CALL(driver, cuEventRecord, event.get(), stream.get());
    return {};
  };
  GPUFACTS_TRY(begin());
  auto figure =
      Sample(bench, CUDA_ERROR_NOT_READY, [&] { return driver.cuEventQuery(event.get()); }, begin);
  GPUFACTS_TRY(stream.Synchronize());
  return figure;
}

}  // namespace

Result<nlohmann::json> MeasureEvents(const Bench& bench) {
  const gpuload::Driver& driver = bench.gpu.driver;
  GPUFACTS_TRY(HasEvents(driver));
  auto stream = Stream::Make(bench.gpu);
  if (!stream) return std::unexpected(stream.error());
  nlohmann::json facts;
  auto figure = Record(bench, *stream, CU_EVENT_DISABLE_TIMING);
  if (!figure) return figure;
  facts["record"] = *figure;
  figure = Record(bench, *stream, CU_EVENT_DEFAULT);
  if (!figure) return figure;
  facts["record_with_timing"] = *figure;

  const Event done(driver, CU_EVENT_DISABLE_TIMING);
  GPUFACTS_TRY(done.status());
  GPULOAD_CALL(driver, cuEventRecord, done.get(), stream->get());
  GPUFACTS_TRY(stream->Synchronize());
  const auto nothing = [] { return Status(); };
  figure = Sample(bench, CUDA_SUCCESS, [&] { return driver.cuEventQuery(done.get()); }, nothing);
  if (!figure) return figure;
  facts["query_done"] = *figure;
  figure =
      Sample(bench, CUDA_SUCCESS, [&] { return driver.cuEventSynchronize(done.get()); }, nothing);
  if (!figure) return figure;
  facts["synchronize_done"] = *figure;
  figure = QueryPending(bench, *stream);
  if (!figure) return figure;
  facts["query_pending"] = *figure;
  return facts;
}

}  // namespace prorata::gpufacts
