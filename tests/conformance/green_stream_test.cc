// Streams of green contexts: where their kernels run, and what waits for them.

#include <future>
#include <thread>

#include "green_fixture.h"

namespace prorata::conformance {
namespace {

class GreenStreamTest : public GreenTest {
 protected:
  struct Span {
    volatile uint64_t* word;  // the beginning, then the end
    bool Overlaps(const Span& other) const {
      return word[0] < other.word[1] && other.word[0] < word[1];
    }
  };
  // A kernel that fills whatever it may use, held until `gate` opens.
  Span Fill(Gate& gate, CUstream stream) {
    void* memory = nullptr;
    EXPECT_EQ(CUDA(cuMemHostAlloc)(&memory, 2 * sizeof(uint64_t), CU_MEMHOSTALLOC_DEVICEMAP),
              CUDA_SUCCESS);
    EXPECT_EQ(gate.Hold(stream), CUDA_SUCCESS);
    auto address = reinterpret_cast<CUdeviceptr>(memory);
    uint64_t ns = 5 * kMs;
    void* params[] = {&address, &ns};
    EXPECT_EQ(
        CUDA(cuLaunchKernel)(Kernel("stamp"), 4096, 1, 1, 1024, 1, 1, 0, stream, params, nullptr),
        CUDA_SUCCESS);
    return {static_cast<uint64_t*>(memory)};
  }
  void MakeTwo() {
    const auto groups = Split(2, all_.sm.minSmPartitionSize);
    first_ = NewGreen({groups[0]});
    second_ = NewGreen({groups[1]});
    Kernel("step");
    Kernel("stamp");
  }

  CUgreenCtx first_ = nullptr;
  CUgreenCtx second_ = nullptr;
};

constexpr char kStreamCreate[] = GREEN_API("cuGreenCtxStreamCreate");
constexpr char kRecord[] = GREEN_API("cuGreenCtxRecordEvent");
constexpr char kWait[] = GREEN_API("cuGreenCtxWaitEvent");

RULE_TEST(GreenStreamTest, PartsRunBesideEachOther,
          "kernels of green contexts with different SMs run at the same time, however large",
          GREEN_API("spatial partitions of the GPU")) {
  SIMULATED_ONLY("judges by when the machine ran them");
  MakeTwo();
  Gate& gate = NewGate();
  const Span a = Fill(gate, StreamOf(first_));
  const Span b = Fill(gate, StreamOf(second_));
  gate.Open();
  CUDA_OK(cuCtxSynchronize);
  EXPECT_TRUE(a.Overlaps(b));
}

RULE_TEST(GreenStreamTest, APartHasNoMoreThanItsSms,
          "kernels that fill the SMs of one green context run one after the other in it, though "
          "others of the device are free",
          GREEN_API("spatial partitions of the GPU")) {
  SIMULATED_ONLY("judges by when the machine ran them");
  MakeTwo();
  Gate& gate = NewGate();
  const Span a = Fill(gate, StreamOf(first_));
  const Span b = Fill(gate, StreamOf(first_));
  const Span c = Fill(gate, StreamOf(second_));
  gate.Open();
  CUDA_OK(cuCtxSynchronize);
  EXPECT_FALSE(a.Overlaps(b));
  EXPECT_TRUE(c.Overlaps(a)) << "and hold up no other";
}

RULE_TEST(GreenStreamTest, SmsAreNotReserved, "green contexts made of the same SMs share them",
          kStreamCreate) {
  SIMULATED_ONLY("judges by when the machine ran them");
  const auto group = Split(1, all_.sm.minSmPartitionSize);
  const CUgreenCtx one = NewGreen(group), same = NewGreen(group);
  Kernel("stamp");
  Gate& gate = NewGate();
  const Span a = Fill(gate, StreamOf(one));
  const Span b = Fill(gate, StreamOf(same));
  gate.Open();
  CUDA_OK(cuCtxSynchronize);
  EXPECT_FALSE(a.Overlaps(b));
}

RULE_TEST(GreenStreamTest, CooperativeKernelsMustFitThePart,
          "all blocks of a cooperative launch must be on the green context's SMs at once",
          DRIVER_API("Execution Control, cuLaunchCooperativeKernel")) {
  MakeTwo();
  const CUfunction function = Kernel("step");
  int per_sm = 0;
  CUDA_OK(cuOccupancyMaxActiveBlocksPerMultiprocessor, &per_sm, function, 1024, 0);
  CUdeviceptr word = NewWord(0);
  uint64_t factor = 0, term = 1, ns = 1000;
  void* params[] = {&word, &factor, &term, &ns};
  const unsigned most = static_cast<unsigned>(per_sm) * SmsOf(first_);
  CUDA_IS(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, cuLaunchCooperativeKernel, function, most + 1, 1,
          1, 1024, 1, 1, 0, StreamOf(first_), params);
  CUDA_OK(cuLaunchCooperativeKernel, function, most, 1, 1, 1024, 1, 1, 0, StreamOf(first_), params);
  CUDA_OK(cuCtxSynchronize);
}

RULE_TEST(GreenStreamTest, StreamsAreNonBlocking,
          "CU_STREAM_NON_BLOCKING must be specified for a green context's stream", kStreamCreate) {
  CUstream stream = nullptr;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuGreenCtxStreamCreate, &stream, NewGreen(), 0, 0);
}

RULE_TEST(GreenStreamTest, AStreamKnowsItsGreenContext,
          "a stream is of the green context that it was made in, or that was current when it was "
          "made; the default stream is of the current one; others are of none",
          STREAM_API("cuStreamGetGreenCtx")) {
  const CUgreenCtx green = NewGreen();
  const auto green_of = [](CUstream stream) {
    CUgreenCtx found = nullptr;
    EXPECT_EQ(CUDA(cuStreamGetGreenCtx)(stream, &found), CUDA_SUCCESS);
    return found;
  };
  const CUstream plain = NewStream(), made = StreamOf(green);
  CUDA_OK(cuCtxSetCurrent, ContextOf(green));
  const CUstream inside = NewStream(0);
  EXPECT_EQ(green_of(nullptr), green);
  CUDA_OK(cuCtxSetCurrent, ctx_);
  EXPECT_EQ(green_of(plain), nullptr);
  EXPECT_EQ(green_of(nullptr), nullptr);
  EXPECT_EQ(green_of(made), green);
  EXPECT_EQ(green_of(inside), green);
}

RULE_TEST(GreenStreamTest, AStreamKnowsBothItsContexts,
          "cuStreamGetCtx gives the green context's CUcontext; its second version gives the green "
          "context and the primary one",
          STREAM_API("cuStreamGetCtx, cuStreamGetCtx_v2")) {
  const CUgreenCtx green = NewGreen();
  const CUstream stream = StreamOf(green);
  CUcontext ctx = nullptr;
  CUDA_OK(cuStreamGetCtx, stream, &ctx);
  EXPECT_EQ(ctx, ContextOf(green));
  CUgreenCtx found = nullptr;
  CUDA_OK(cuStreamGetCtx_v2, stream, &ctx, &found);
  EXPECT_EQ(ctx, ctx_);
  EXPECT_EQ(found, green);
  CUDA_OK(cuStreamGetCtx_v2, NewStream(), &ctx, &found);
  EXPECT_EQ(ctx, ctx_);
  EXPECT_EQ(found, nullptr);
}

RULE_TEST(GreenStreamTest, ItsDefaultStreamIsItsOwn,
          "blocking streams of a green context wait for its default stream, and not for that of "
          "the primary context",
          kStreamCreate) {
  SIMULATED_ONLY("what a green context's default stream waits for is not documented");
  MakeTwo();
  const CUdeviceptr word = NewWord(0);
  CUDA_OK(cuCtxSetCurrent, ContextOf(first_));
  const CUstream blocking = NewStream(0);
  CUDA_OK(cuCtxSetCurrent, ctx_);
  Gate& theirs = NewGate();
  ASSERT_EQ(theirs.Hold(nullptr), CUDA_SUCCESS);  // the primary context's
  EXPECT_EQ(Step(blocking, word, 0, 3, 1000), CUDA_SUCCESS);
  EXPECT_TRUE(Finishes(blocking));
  CUDA_OK(cuCtxSetCurrent, ContextOf(first_));
  Gate& ours = NewGate();
  ASSERT_EQ(ours.Hold(nullptr), CUDA_SUCCESS);
  EXPECT_EQ(Step(nullptr, word, 0, 5, 2 * kMs), CUDA_SUCCESS);
  EXPECT_EQ(Step(blocking, word, 2, 0, 1000), CUDA_SUCCESS);
  ours.Open();
  CUDA_OK(cuStreamSynchronize, blocking);
  CUDA_OK(cuCtxSetCurrent, ctx_);
  theirs.Open();
  EXPECT_EQ(ReadWord(word), 10U);
}

RULE_TEST(GreenStreamTest, ARecordIsOfAllItsStreams,
          "cuGreenCtxRecordEvent captures what was submitted to all streams of the green context, "
          "and nothing that comes later",
          kRecord) {
  MakeTwo();
  const CUstream one = StreamOf(first_), two = StreamOf(first_);
  const CUevent event = NewEvent();
  const CUdeviceptr word = NewWord(0);
  Gate& first_gate = NewGate();
  Gate& second_gate = NewGate();
  Gate& later_gate = NewGate();
  ASSERT_EQ(first_gate.Hold(one), CUDA_SUCCESS);
  ASSERT_EQ(second_gate.Hold(two), CUDA_SUCCESS);
  CUDA_OK(cuGreenCtxRecordEvent, first_, event);
  ASSERT_EQ(later_gate.Hold(one), CUDA_SUCCESS);
  CUDA_IS(CUDA_ERROR_NOT_READY, cuEventQuery, event);
  first_gate.Open();
  EXPECT_EQ(Step(one, word, 0, 1, 1000), CUDA_SUCCESS);
  Settle();
  CUDA_IS(CUDA_ERROR_NOT_READY, cuEventQuery, event);
  second_gate.Open();
  CUDA_OK(cuEventSynchronize, event);
  CUDA_IS(CUDA_ERROR_NOT_READY, cuStreamQuery, one);
  later_gate.Open();
  CUDA_OK(cuStreamSynchronize, one);
}

RULE_TEST(GreenStreamTest, RecordsAreOfTheSamePrimaryContext,
          "the event must be of the green context's primary context: CUDA_ERROR_INVALID_HANDLE",
          kRecord) {
  const CUgreenCtx green = NewGreen();
  CUcontext other = nullptr;
  CUDA_OK(cuCtxCreate_v2, &other, 0, 0);
  const CUevent event = NewEvent();
  CUDA_IS(CUDA_ERROR_INVALID_HANDLE, cuGreenCtxRecordEvent, green, event);
  CUDA_OK(cuCtxDestroy_v2, other);
}

RULE_TEST(GreenStreamTest, AWaitHoldsAllItsStreams,
          "after cuGreenCtxWaitEvent all work submitted to the green context waits for the event, "
          "in streams made since, too; other contexts go on",
          kWait) {
  MakeTwo();
  const CUstream before = StreamOf(first_), recorded = NewStream(), other = StreamOf(second_);
  const CUevent event = NewEvent();
  const CUdeviceptr word = NewWord(0), after_word = NewWord(0), other_word = NewWord(0);
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(recorded), CUDA_SUCCESS);
  CUDA_OK(cuEventRecord, event, recorded);
  CUDA_OK(cuGreenCtxWaitEvent, first_, event);
  const CUstream after = StreamOf(first_);
  EXPECT_EQ(Step(before, word, 0, 1, 1000), CUDA_SUCCESS);
  EXPECT_EQ(Step(after, after_word, 0, 1, 1000), CUDA_SUCCESS);
  EXPECT_EQ(Step(other, other_word, 0, 1, 1000), CUDA_SUCCESS);
  EXPECT_TRUE(Finishes(other));
  Settle();
  CUDA_IS(CUDA_ERROR_NOT_READY, cuStreamQuery, before);
  CUDA_IS(CUDA_ERROR_NOT_READY, cuStreamQuery, after);
  gate.Open();
  EXPECT_TRUE(Finishes(before));
  EXPECT_TRUE(Finishes(after));
}

RULE_TEST(GreenStreamTest, NeitherIsForCaptures,
          "while a stream of the green context captures, both calls are "
          "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, and the capture is invalid",
          kRecord) {
  const CUgreenCtx green = NewGreen();
  const CUstream stream = StreamOf(green);
  const CUevent event = NewEvent();
  for (const bool record : {true, false}) {
    CUDA_OK(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    const CUresult result = record ? CUDA(cuGreenCtxRecordEvent)(green, event)
                                   : CUDA(cuGreenCtxWaitEvent)(green, event);
    EXPECT_EQ(result, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    CUgraph graph = nullptr;
    CUDA_IS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture, stream, &graph);
  }
}

RULE_TEST(GreenStreamTest, SynchronizingItWaitsForItself,
          "cuCtxSynchronize waits for the work of the green context that is current, and not for "
          "the primary one's",
          DRIVER_API("Context Management, cuCtxSynchronize")) {
  MakeTwo();
  const CUcontext inside = ContextOf(first_);
  const CUdeviceptr word = NewWord(0);
  CUstream mine = StreamOf(first_);
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(NewStream()), CUDA_SUCCESS);  // the primary context's
  EXPECT_EQ(Step(mine, word, 0, 7, 5 * kMs), CUDA_SUCCESS);
  CUDA_OK(cuStreamDestroy_v2, mine);  // its work still counts
  std::promise<void> done;
  std::thread waiter([&] {
    EXPECT_EQ(CUDA(cuCtxSetCurrent)(inside), CUDA_SUCCESS);
    EXPECT_EQ(CUDA(cuCtxSynchronize)(), CUDA_SUCCESS);
    done.set_value();
  });
  EXPECT_EQ(done.get_future().wait_for(Patience()), std::future_status::ready);
  gate.Open();
  waiter.join();
  EXPECT_EQ(ReadWord(word), 7U);
}

RULE_TEST(GreenStreamTest, SynchronizingThePrimaryContextWaitsForAll,
          "cuCtxSynchronize of the primary context waits for its green contexts, too",
          DRIVER_API("Context Management, cuCtxSynchronize")) {
  MakeTwo();
  const CUdeviceptr word = NewWord(0);
  EXPECT_EQ(Step(StreamOf(first_), word, 0, 7, 5 * kMs), CUDA_SUCCESS);
  CUDA_OK(cuCtxSynchronize);
  EXPECT_EQ(ReadWord(word), 7U);
}

RULE_TEST(GreenStreamTest, GraphsRunInTheirStreams,
          "a graph that was captured in a green context's stream is launched into one",
          DRIVER_API("Graph Management, cuGraphLaunch")) {
  MakeTwo();
  const CUstream stream = StreamOf(first_);
  const CUdeviceptr word = NewWord(1);
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  CUDA_OK(cuStreamBeginCapture_v2, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
  for (int i = 0; i < 3; ++i) ASSERT_EQ(Step(stream, word, 2, 1, 1000), CUDA_SUCCESS);
  CUDA_OK(cuStreamEndCapture, stream, &graph);
  CUDA_OK(cuGraphInstantiateWithFlags, &exec, graph, 0);
  for (const CUstream into : {stream, StreamOf(second_), NewStream()}) {
    CUDA_OK(cuGraphLaunch, exec, into);
    CUDA_OK(cuStreamSynchronize, into);
  }
  EXPECT_EQ(ReadWord(word), 1023U);
  CUDA_OK(cuGraphExecDestroy, exec);
  CUDA_OK(cuGraphDestroy, graph);
}

RULE_TEST(GreenStreamTest, StreamsAreLeftToBeDestroyed,
          "a stream outlives its green context only to be destroyed",
          GREEN_API("cuGreenCtxDestroy")) {
  const CUgreenCtx green = NewGreen();
  const CUstream stream = StreamOf(green);
  CUDA_OK(cuStreamSynchronize, stream);
  Destroy(green);
  EXPECT_NE(CUDA(cuStreamQuery)(stream), CUDA_SUCCESS);
  CUDA_IS(ButOnGpu(CUDA_SUCCESS, CUDA_ERROR_CONTEXT_IS_DESTROYED), cuStreamDestroy_v2, stream);
}

}  // namespace
}  // namespace prorata::conformance
