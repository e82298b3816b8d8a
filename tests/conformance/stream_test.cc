// The order of work within a stream and between the kinds of streams.

#include <thread>

#include "conformance.h"

namespace prorata::conformance {
namespace {

// Two streams that step the same word. The earlier work is held by a gate until the later has been
// submitted: what does not wait for it is done first, and shows.
class StreamTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    Kernel("step");
    word_ = NewWord(0);
    other_word_ = NewWord(0);
  }

  // Whether work in `later` waits for older work in `earlier`.
  bool Waits(CUstream earlier, CUstream later) {
    Gate& gate = NewGate();
    EXPECT_EQ(gate.Hold(earlier), CUDA_SUCCESS);
    EXPECT_EQ(Step(earlier, word_, 0, 5, 2 * kMs), CUDA_SUCCESS);
    EXPECT_EQ(Step(later, word_, 2, 0, 1000), CUDA_SUCCESS);
    gate.Open();
    EXPECT_EQ(CUDA(cuCtxSynchronize)(), CUDA_SUCCESS);
    return ReadWord(word_) == 10;
  }
  // Whether work in `later` runs while older work in `earlier` is held up.
  bool Passes(CUstream earlier, CUstream later) {
    Gate& gate = NewGate();
    EXPECT_EQ(gate.Hold(earlier), CUDA_SUCCESS);
    EXPECT_EQ(Step(later, other_word_, 0, 3, 1000), CUDA_SUCCESS);
    const bool passed = Finishes(later);
    gate.Open();
    return passed;
  }

  CUdeviceptr word_ = 0;
  CUdeviceptr other_word_ = 0;
};

RULE_TEST(StreamTest, OneStreamRunsInOrder,
          "operations of one stream run in the order in which they were submitted",
          GUIDE("Asynchronous Concurrent Execution, Streams")) {
  const CUstream stream = NewStream();
  for (uint64_t i = 0; i < 20; ++i) {
    // The longer ones first: unordered, the last to be submitted would not be the last to run.
    ASSERT_EQ(Step(stream, word_, i % 2 ? 3 : 2, i, (20 - i) * 50'000), CUDA_SUCCESS);
  }
  CUDA_OK(cuStreamSynchronize, stream);
  uint64_t expected = 0;
  for (uint64_t i = 0; i < 20; ++i) expected = expected * (i % 2 ? 3 : 2) + i;
  EXPECT_EQ(ReadWord(word_), expected);
}

RULE_TEST(StreamTest, CopiesAndFillsKeepTheOrderOfKernels,
          "copies and fills take their place in the order of the stream they are submitted to",
          GUIDE("Asynchronous Concurrent Execution, Streams")) {
  const CUstream stream = NewStream();
  volatile uint64_t* seen = HostWord(1);
  ASSERT_EQ(Step(stream, word_, 0, 7, 5 * kMs), CUDA_SUCCESS);
  CUDA_OK(cuMemcpyDtoHAsync_v2, const_cast<uint64_t*>(seen), word_, 8, stream);
  CUDA_OK(cuMemsetD32Async, word_, 9, 1, stream);
  ASSERT_EQ(Step(stream, word_, 2, 0, 1000), CUDA_SUCCESS);
  CUDA_OK(cuStreamSynchronize, stream);
  EXPECT_EQ(*seen, 7u);
  EXPECT_EQ(ReadWord(word_), 18u);
}

RULE_TEST(StreamTest, NonBlockingStreamsRunBesideEachOther,
          "work of different streams has no order but what events give it",
          GUIDE("Asynchronous Concurrent Execution, Streams")) {
  const CUstream first = NewStream();
  EXPECT_TRUE(Passes(first, NewStream()));
}

RULE_TEST(StreamTest, BlockingStreamsRunBesideEachOther,
          "blocking streams are ordered against the legacy stream, not against each other",
          DEFAULT_STREAMS("Legacy")) {
  const CUstream first = NewStream(CU_STREAM_DEFAULT);
  EXPECT_TRUE(Passes(first, NewStream(CU_STREAM_DEFAULT)));
}

RULE_TEST(StreamTest, TheLegacyStreamWaitsForBlockingStreams,
          "an action in the legacy stream first waits on all blocking streams of the context",
          DEFAULT_STREAMS("Legacy")) {
  EXPECT_TRUE(Waits(NewStream(CU_STREAM_DEFAULT), nullptr));
}

RULE_TEST(StreamTest, BlockingStreamsWaitForTheLegacyStream,
          "after an action in the legacy stream all blocking streams wait on it",
          DEFAULT_STREAMS("Legacy")) {
  EXPECT_TRUE(Waits(nullptr, NewStream(CU_STREAM_DEFAULT)));
}

RULE_TEST(StreamTest, TheLegacyStreamStandsBetweenTwoBlockingStreams,
          "work in the legacy stream separates what blocking streams got before it from what they "
          "get after it",
          DEFAULT_STREAMS("Legacy")) {
  const CUstream before = NewStream(CU_STREAM_DEFAULT);
  const CUstream after = NewStream(CU_STREAM_DEFAULT);
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(before), CUDA_SUCCESS);
  ASSERT_EQ(Step(before, word_, 0, 5, 2 * kMs), CUDA_SUCCESS);
  ASSERT_EQ(Step(nullptr, other_word_, 0, 1, 1000), CUDA_SUCCESS);
  ASSERT_EQ(Step(after, word_, 2, 0, 1000), CUDA_SUCCESS);
  gate.Open();
  CUDA_OK(cuCtxSynchronize);
  EXPECT_EQ(ReadWord(word_), 10u);
}

RULE_TEST(StreamTest, TheLegacyStreamDoesNotWaitForNonBlockingStreams,
          "CU_STREAM_NON_BLOCKING: work in the legacy stream does not wait for work in this stream",
          STREAM_API("cuStreamCreate, CU_STREAM_NON_BLOCKING")) {
  EXPECT_TRUE(Passes(NewStream(), nullptr));
}

RULE_TEST(StreamTest, NonBlockingStreamsDoNotWaitForTheLegacyStream,
          "CU_STREAM_NON_BLOCKING: work in this stream does not wait for work in the legacy stream",
          STREAM_API("cuStreamCreate, CU_STREAM_NON_BLOCKING")) {
  EXPECT_TRUE(Passes(nullptr, NewStream()));
}

RULE_TEST(StreamTest, ThePerThreadStreamWaitsForTheLegacyStream,
          "the per-thread default stream is no non-blocking stream: it waits for the legacy stream",
          DEFAULT_STREAMS("Per-thread")) {
  EXPECT_TRUE(Waits(CU_STREAM_LEGACY, CU_STREAM_PER_THREAD));
}

RULE_TEST(StreamTest, TheLegacyStreamWaitsForThePerThreadStream,
          "the per-thread default stream is no non-blocking stream: the legacy stream waits for it",
          DEFAULT_STREAMS("Per-thread")) {
  EXPECT_TRUE(Waits(CU_STREAM_PER_THREAD, CU_STREAM_LEGACY));
}

RULE_TEST(StreamTest, ThePerThreadStreamDoesNotWaitForBlockingStreams,
          "the per-thread default stream does not synchronize with streams that were created",
          DEFAULT_STREAMS("Per-thread")) {
  EXPECT_TRUE(Passes(NewStream(CU_STREAM_DEFAULT), CU_STREAM_PER_THREAD));
}

RULE_TEST(StreamTest, PerThreadStreamsOfTwoThreadsRunBesideEachOther,
          "every thread's per-thread default stream is its own: they do not wait for each other",
          DEFAULT_STREAMS("Per-thread")) {
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(CU_STREAM_PER_THREAD), CUDA_SUCCESS);
  bool passed = false;
  std::thread([&] {
    ASSERT_EQ(CUDA(cuCtxSetCurrent)(ctx_), CUDA_SUCCESS);
    ASSERT_EQ(Step(CU_STREAM_PER_THREAD, word_, 0, 3, 1000), CUDA_SUCCESS);
    passed = Finishes(CU_STREAM_PER_THREAD);
  }).join();
  gate.Open();
  EXPECT_TRUE(passed);
}

RULE_TEST(StreamTest, NullMeansTheLegacyStream,
          "stream 0 of the plain functions is the legacy default stream",
          DEFAULT_STREAMS("Legacy")) {
  unsigned long long null_id = 0;
  unsigned long long legacy_id = 1;
  CUDA_OK(cuStreamGetId, nullptr, &null_id);
  CUDA_OK(cuStreamGetId, CU_STREAM_LEGACY, &legacy_id);
  EXPECT_EQ(null_id, legacy_id);
}

RULE_TEST(StreamTest, NullOfPtszFunctionsMeansThePerThreadStream,
          "stream 0 of functions with _ptsz is the calling thread's default stream",
          DRIVER_API("API synchronization behavior; cuda.h, CUDA_API_PER_THREAD_DEFAULT_STREAM")) {
  unsigned long long null_id = 0;
  unsigned long long own_id = 1;
  CUDA_OK(cuStreamGetId_ptsz, nullptr, &null_id);
  CUDA_OK(cuStreamGetId, CU_STREAM_PER_THREAD, &own_id);
  EXPECT_EQ(null_id, own_id);
}

RULE_TEST(StreamTest, PtszFunctionsReachTheLegacyStreamByItsHandle,
          "CU_STREAM_LEGACY is the legacy stream in functions with _ptsz, too",
          DEFAULT_STREAMS("Legacy")) {
  unsigned long long by_handle = 0;
  unsigned long long legacy_id = 1;
  CUDA_OK(cuStreamGetId_ptsz, CU_STREAM_LEGACY, &by_handle);
  CUDA_OK(cuStreamGetId, nullptr, &legacy_id);
  EXPECT_EQ(by_handle, legacy_id);
}

RULE_TEST(StreamTest, PtszWorkDoesNotWaitForBlockingStreams,
          "work that a _ptsz function submits to stream 0 is in the per-thread stream",
          DEFAULT_STREAMS("Per-thread")) {
  const CUstream blocking = NewStream(CU_STREAM_DEFAULT);
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(blocking), CUDA_SUCCESS);
  CUDA_OK(cuMemsetD32Async_ptsz, word_, 6, 1, nullptr);
  EXPECT_TRUE(Finishes(CU_STREAM_PER_THREAD));
  gate.Open();
  EXPECT_EQ(ReadWord(word_), 6u);
}

RULE_TEST(StreamTest, EveryThreadHasADefaultStreamOfItsOwn,
          "the per-thread default stream is local to the thread and the context",
          DEFAULT_STREAMS("Per-thread")) {
  unsigned long long mine = 0;
  unsigned long long others = 0;
  CUDA_OK(cuStreamGetId, CU_STREAM_PER_THREAD, &mine);
  std::thread([&] {
    ASSERT_EQ(CUDA(cuCtxSetCurrent)(ctx_), CUDA_SUCCESS);
    EXPECT_EQ(CUDA(cuStreamGetId)(CU_STREAM_PER_THREAD, &others), CUDA_SUCCESS);
  }).join();
  EXPECT_NE(others, mine);
}

RULE_TEST(StreamTest, QuerySaysNotReadyWhileWorkIsPending,
          "cuStreamQuery returns CUDA_ERROR_NOT_READY while operations of the stream are pending",
          STREAM_API("cuStreamQuery")) {
  const CUstream stream = NewStream();
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(stream), CUDA_SUCCESS);
  Settle();
  CUDA_IS(CUDA_ERROR_NOT_READY, cuStreamQuery, stream);
  gate.Open();
  CUDA_OK(cuStreamSynchronize, stream);
}

RULE_TEST(StreamTest, QuerySaysSuccessWhenAllIsDone,
          "cuStreamQuery returns CUDA_SUCCESS when all operations of the stream have completed",
          STREAM_API("cuStreamQuery")) {
  const CUstream stream = NewStream();
  CUDA_OK(cuStreamQuery, stream);
  ASSERT_EQ(Step(stream, word_, 0, 4, kMs), CUDA_SUCCESS);
  EXPECT_TRUE(Finishes(stream));
  EXPECT_EQ(ReadWord(word_), 4u);
}

RULE_TEST(StreamTest, SynchronizeWaitsForTheStream,
          "cuStreamSynchronize waits until the device has completed all operations of the stream",
          STREAM_API("cuStreamSynchronize")) {
  const CUstream stream = NewStream();
  volatile uint64_t* word = HostWord(1);
  ASSERT_EQ(Step(stream, AddressOf(word), 0, 8, 20 * kMs), CUDA_SUCCESS);
  CUDA_OK(cuStreamSynchronize, stream);
  EXPECT_EQ(*word, 8u);
}

RULE_TEST(StreamTest, SynchronizeDoesNotWaitForOtherStreams,
          "cuStreamSynchronize waits for the operations of that stream, not of others",
          STREAM_API("cuStreamSynchronize")) {
  const CUstream held = NewStream();
  const CUstream stream = NewStream();
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(held), CUDA_SUCCESS);
  ASSERT_EQ(Step(stream, word_, 0, 8, kMs), CUDA_SUCCESS);
  CUDA_OK(cuStreamSynchronize, stream);
  Settle();
  CUDA_IS(CUDA_ERROR_NOT_READY, cuStreamQuery, held);
  gate.Open();
}

RULE_TEST(StreamTest, ContextSynchronizeWaitsForAllStreams,
          "cuCtxSynchronize blocks until the context has completed all preceding tasks, those of "
          "non-blocking streams as well",
          DRIVER_API("Context Management, cuCtxSynchronize")) {
  volatile uint64_t* first = HostWord(0);
  volatile uint64_t* second = HostWord(0);
  ASSERT_EQ(Step(NewStream(), AddressOf(first), 0, 1, 10 * kMs), CUDA_SUCCESS);
  ASSERT_EQ(Step(NewStream(CU_STREAM_DEFAULT), AddressOf(second), 0, 2, 10 * kMs), CUDA_SUCCESS);
  CUDA_OK(cuCtxSynchronize);
  EXPECT_EQ(*first, 1u);
  EXPECT_EQ(*second, 2u);
}

RULE_TEST(StreamTest, DestroyDoesNotWaitForTheStream,
          "cuStreamDestroy returns at once while the device is still doing work in the stream",
          STREAM_API("cuStreamDestroy")) {
  const CUstream stream = NewStream();
  Gate& gate = NewGate();
  volatile uint64_t* word = HostWord(0);
  ASSERT_EQ(gate.Hold(stream), CUDA_SUCCESS);
  ASSERT_EQ(Step(stream, AddressOf(word), 0, 4, kMs), CUDA_SUCCESS);
  CUDA_OK(cuStreamDestroy_v2, stream);
  EXPECT_EQ(*word, 0u);
  gate.Open();
  CUDA_OK(cuCtxSynchronize);
}

RULE_TEST(
    StreamTest, WorkOfADestroyedStreamStillRuns,
    "work submitted to a stream that is destroyed is completed; the stream's resources go then",
    STREAM_API("cuStreamDestroy")) {
  const CUstream stream = NewStream();
  ASSERT_EQ(Step(stream, word_, 0, 4, 10 * kMs), CUDA_SUCCESS);
  CUDA_OK(cuStreamDestroy_v2, stream);
  CUDA_OK(cuCtxSynchronize);
  EXPECT_EQ(ReadWord(word_), 4u);
}

RULE_TEST(StreamTest, TheLegacyStreamWaitsForADestroyedBlockingStream,
          "work of a destroyed blocking stream keeps its order against the legacy stream",
          STREAM_API("cuStreamDestroy")) {
  const CUstream stream = NewStream(CU_STREAM_DEFAULT);
  ASSERT_EQ(Step(stream, word_, 0, 4, 10 * kMs), CUDA_SUCCESS);
  CUDA_OK(cuStreamDestroy_v2, stream);
  ASSERT_EQ(Step(nullptr, word_, 2, 0, 1000), CUDA_SUCCESS);
  CUDA_OK(cuStreamSynchronize, nullptr);
  EXPECT_EQ(ReadWord(word_), 8u);
}

RULE_TEST(StreamTest, SynchronousCopiesWaitForBlockingStreams,
          "a synchronous copy is work in the legacy stream: it waits for blocking streams",
          DRIVER_API("API synchronization behavior, Memcpy")) {
  const CUstream blocking = NewStream(CU_STREAM_DEFAULT);
  ASSERT_EQ(Step(blocking, word_, 0, 12, 20 * kMs), CUDA_SUCCESS);
  EXPECT_EQ(ReadWord(word_), 12u);
}

RULE_TEST(StreamTest, SynchronousCopiesDoNotWaitForNonBlockingStreams,
          "a synchronous copy is work in the legacy stream: it does not wait for non-blocking ones",
          DRIVER_API("API synchronization behavior, Memcpy")) {
  const CUstream held = NewStream();
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(held), CUDA_SUCCESS);
  EXPECT_EQ(ReadWord(word_), 0u);
  Settle();
  CUDA_IS(CUDA_ERROR_NOT_READY, cuStreamQuery, held);
  gate.Open();
}

RULE_TEST(
    StreamTest, AHigherPriorityGoesFirst,
    "waiting kernels of a stream with a higher priority are run before those with a lower one",
    STREAM_API("cuStreamCreateWithPriority")) {
  SIMULATED_ONLY("priorities are a hint, and a GPU may run both at once");
  int least = 0;
  int greatest = 0;
  CUDA_OK(cuCtxGetStreamPriorityRange, &least, &greatest);
  CUstream low;
  CUstream high;
  CUDA_OK(cuStreamCreateWithPriority, &low, CU_STREAM_NON_BLOCKING, least);
  CUDA_OK(cuStreamCreateWithPriority, &high, CU_STREAM_NON_BLOCKING, greatest);
  const CUevent low_done = NewEvent(0);
  const CUevent high_done = NewEvent(0);
  // Fills the device, so that the next must wait.
  const auto launch = [&](CUstream stream) {
    uint64_t factor = 1;
    uint64_t term = 0;
    uint64_t ns = 10 * kMs;
    void* params[] = {&word_, &factor, &term, &ns};
    return CUDA(cuLaunchKernel)(Kernel("step"), 10'000, 1, 1, 1024, 1, 1, 0, stream, params,
                                nullptr);
  };
  // By one event, not each by the gate: both begin at the same moment, however late the gate is
  // seen.
  const CUstream held = NewStream();
  const CUevent begin = NewEvent();
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(held), CUDA_SUCCESS);
  CUDA_OK(cuEventRecord, begin, held);
  for (const CUstream stream : {low, high}) CUDA_OK(cuStreamWaitEvent, stream, begin, 0);
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(launch(low), CUDA_SUCCESS);
    ASSERT_EQ(launch(high), CUDA_SUCCESS);
  }
  CUDA_OK(cuEventRecord, low_done, low);
  CUDA_OK(cuEventRecord, high_done, high);
  gate.Open();
  CUDA_OK(cuCtxSynchronize);
  float ms = 0;
  CUDA_OK(cuEventElapsedTime_v2, &ms, high_done, low_done);
  EXPECT_GT(ms, 0);
}

}  // namespace
}  // namespace prorata::conformance
