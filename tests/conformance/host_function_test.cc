// Host functions and stream callbacks: when they run, and what they may do.

#include <atomic>
#include <chrono>
#include <deque>
#include <thread>

#include "conformance.h"

namespace prorata::conformance {
namespace {

constexpr const char* kExecution = DRIVER_API("Execution Control, cuLaunchHostFunc");

// What a function found when it was called.
struct Call {
  std::atomic<int> calls = 0;
  CUresult inside = CUDA_SUCCESS;  // of a CUDA call made in it
  CUresult status = CUDA_ERROR_UNKNOWN;
  CUstream stream = nullptr;
  uint64_t seen = 0;
  const volatile uint64_t* word = nullptr;
  std::thread::id thread;
  std::atomic<int>* order = nullptr;
  int place = 0;
  int pause_ms = 0;  // before it looks
};

void Note(Call* call) {
  std::this_thread::sleep_for(std::chrono::milliseconds(call->pause_ms));
  CUdevice device;
  call->inside = CUDA(cuDeviceGet)(&device, 0);
  if (call->word != nullptr) call->seen = *call->word;
  if (call->order != nullptr) call->place = ++*call->order;
  call->thread = std::this_thread::get_id();
  ++call->calls;
}

void OnHost(void* data) { Note(static_cast<Call*>(data)); }

void OnCallback(CUstream stream, CUresult status, void* data) {
  auto* call = static_cast<Call*>(data);
  call->stream = stream;
  call->status = status;
  Note(call);
}

class HostFunctionTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    Kernel("step");
    stream_ = NewStream();
    word_ = HostWord(1);
    call_.word = word_;
  }
  CUresult StepWord(uint64_t value) { return Step(stream_, AddressOf(word_), 0, value, 5 * kMs); }

  CUstream stream_ = nullptr;
  volatile uint64_t* word_ = nullptr;
  // Stays: where a broken rule lets the stream go on, the function ends after the test.
  static inline std::deque<Call> all_calls_;
  Call& call_ = all_calls_.emplace_back();
};

RULE_TEST(HostFunctionTest, RunsAfterTheWorkBeforeIt,
          "a host function is called after the work enqueued before it", kExecution) {
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(stream_), CUDA_SUCCESS);
  ASSERT_EQ(StepWord(8), CUDA_SUCCESS);
  CUDA_OK(cuLaunchHostFunc, stream_, OnHost, &call_);
  gate.Open();
  CUDA_OK(cuStreamSynchronize, stream_);
  EXPECT_EQ(call_.seen, 8u);
}

RULE_TEST(HostFunctionTest, HoldsUpTheWorkBehindIt,
          "a host function blocks work added after it until it has returned", kExecution) {
  call_.pause_ms = 30;
  CUDA_OK(cuLaunchHostFunc, stream_, OnHost, &call_);
  ASSERT_EQ(Step(stream_, AddressOf(word_), 0, 9, 1000), CUDA_SUCCESS);
  CUDA_OK(cuStreamSynchronize, stream_);
  EXPECT_EQ(call_.seen, 1u);
  EXPECT_EQ(*word_, 9u);
}

RULE_TEST(HostFunctionTest, HoldsUpNothingInOtherStreams,
          "while a host function runs kernels of other streams are done", kExecution) {
  SIMULATED_ONLY("streams may run at the same time, and need not");
  static std::atomic<bool> over;
  over = false;
  const CUhostFn until_over = [](void* data) {
    while (!over) std::this_thread::yield();
    OnHost(data);
  };
  const CUstream other = NewStream();
  CUDA_OK(cuLaunchHostFunc, stream_, until_over, &call_);
  ASSERT_EQ(Step(other, AddressOf(word_), 0, 9, 1000), CUDA_SUCCESS);
  CUDA_OK(cuStreamSynchronize, other);
  EXPECT_EQ(*word_, 9u);
  EXPECT_EQ(call_.calls, 0);
  over = true;
  CUDA_OK(cuStreamSynchronize, stream_);
  EXPECT_EQ(call_.calls, 1);
}

RULE_TEST(HostFunctionTest, SynchronizeWaitsForIt,
          "a host function is an operation of its stream: who waits for the stream waits for it",
          kExecution) {
  call_.pause_ms = 30;
  CUDA_OK(cuLaunchHostFunc, stream_, OnHost, &call_);
  CUDA_OK(cuStreamSynchronize, stream_);
  EXPECT_EQ(call_.calls, 1);
}

RULE_TEST(HostFunctionTest, IsCalledOnce, "a host function is called once for each launch of it",
          kExecution) {
  CUDA_OK(cuLaunchHostFunc, stream_, OnHost, &call_);
  CUDA_OK(cuLaunchHostFunc, stream_, OnHost, &call_);
  CUDA_OK(cuStreamSynchronize, stream_);
  EXPECT_EQ(call_.calls, 2);
}

RULE_TEST(HostFunctionTest, FunctionsOfAStreamKeepTheirOrder,
          "host functions of one stream run in the order of their launches", kExecution) {
  std::atomic<int> order = 0;
  Call calls[8];
  for (Call& call : calls) {
    call.order = &order;
    CUDA_OK(cuLaunchHostFunc, stream_, OnHost, &call);
  }
  CUDA_OK(cuStreamSynchronize, stream_);
  for (int i = 0; i < 8; ++i) EXPECT_EQ(calls[i].place, i + 1);
}

RULE_TEST(HostFunctionTest, DoesNotRunInTheCallersThread,
          "cuLaunchHostFunc enqueues: the caller does not wait for the function", kExecution) {
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(stream_), CUDA_SUCCESS);
  CUDA_OK(cuLaunchHostFunc, stream_, OnHost, &call_);
  EXPECT_EQ(call_.calls, 0);
  gate.Open();
  CUDA_OK(cuStreamSynchronize, stream_);
  EXPECT_EQ(call_.calls, 1);
  EXPECT_NE(call_.thread, std::this_thread::get_id());
}

RULE_TEST(HostFunctionTest, MayNotCallCuda,
          "a host function must not make CUDA calls: they may be CUDA_ERROR_NOT_PERMITTED",
          kExecution) {
  SIMULATED_ONLY("the driver may refuse the call, and need not");
  CUDA_OK(cuLaunchHostFunc, stream_, OnHost, &call_);
  CUDA_OK(cuStreamSynchronize, stream_);
  EXPECT_EQ(call_.inside, CUDA_ERROR_NOT_PERMITTED);
}

RULE_TEST(HostFunctionTest, ARefusalEndsWithTheFunction,
          "CUDA calls of other threads are permitted while a host function runs", kExecution) {
  std::atomic<int> stage = 0;
  CUDA_OK(
      cuLaunchHostFunc, stream_,
      [](void* data) {
        auto* stage_seen = static_cast<std::atomic<int>*>(data);
        *stage_seen = 1;
        while (*stage_seen != 2) std::this_thread::yield();
      },
      &stage);
  while (stage != 1) std::this_thread::yield();
  EXPECT_EQ(CUDA(cuStreamQuery)(stream_), CUDA_ERROR_NOT_READY);
  stage = 2;
  CUDA_OK(cuStreamSynchronize, stream_);
}

RULE_TEST(HostFunctionTest, StreamsJoinedBeforeAreSynchronized,
          "the start of a host function synchronizes streams that were joined before it",
          kExecution) {
  const CUstream other = NewStream();
  const CUevent event = NewEvent();
  volatile uint64_t* word = HostWord(0);
  call_.word = word;
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(other), CUDA_SUCCESS);
  ASSERT_EQ(Step(other, AddressOf(word), 0, 5, 2 * kMs), CUDA_SUCCESS);
  CUDA_OK(cuEventRecord, event, other);
  CUDA_OK(cuStreamWaitEvent, stream_, event, 0);
  CUDA_OK(cuLaunchHostFunc, stream_, OnHost, &call_);
  // A driver that does not hold it up calls it before one that is launched later.
  Call later;
  const CUstream third = NewStream();
  CUDA_OK(cuLaunchHostFunc, third, OnHost, &later);
  CUDA_OK(cuStreamSynchronize, third);
  EXPECT_EQ(call_.calls, 0);
  gate.Open();
  CUDA_OK(cuStreamSynchronize, stream_);
  EXPECT_EQ(call_.seen, 5u);
}

RULE_TEST(HostFunctionTest, ACallbackRunsAfterTheWorkBeforeIt,
          "a callback is called after all items enqueued before it have completed",
          STREAM_API("cuStreamAddCallback")) {
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(stream_), CUDA_SUCCESS);
  ASSERT_EQ(StepWord(8), CUDA_SUCCESS);
  CUDA_OK(cuStreamAddCallback, stream_, OnCallback, &call_, 0);
  gate.Open();
  CUDA_OK(cuStreamSynchronize, stream_);
  EXPECT_EQ(call_.seen, 8u);
  EXPECT_EQ(call_.calls, 1);
}

RULE_TEST(HostFunctionTest, ACallbackHoldsUpTheWorkBehindIt,
          "a callback blocks later work in the stream until it is finished",
          STREAM_API("cuStreamAddCallback")) {
  call_.pause_ms = 30;
  CUDA_OK(cuStreamAddCallback, stream_, OnCallback, &call_, 0);
  ASSERT_EQ(Step(stream_, AddressOf(word_), 0, 9, 1000), CUDA_SUCCESS);
  CUDA_OK(cuStreamSynchronize, stream_);
  EXPECT_EQ(call_.seen, 1u);
}

RULE_TEST(HostFunctionTest, ACallbackIsReportedItsStreamAndThatAllIsWell,
          "a callback is passed its stream and CUDA_SUCCESS when no error came before",
          STREAM_API("cuStreamAddCallback")) {
  CUDA_OK(cuStreamAddCallback, stream_, OnCallback, &call_, 0);
  CUDA_OK(cuStreamSynchronize, stream_);
  EXPECT_EQ(call_.stream, stream_);
  EXPECT_EQ(call_.status, CUDA_SUCCESS);
}

RULE_TEST(HostFunctionTest, ACallbackMayNotCallCuda,
          "a CUDA call in a callback is CUDA_ERROR_NOT_PERMITTED",
          STREAM_API("cuStreamAddCallback")) {
  CUDA_OK(cuStreamAddCallback, stream_, OnCallback, &call_, 0);
  CUDA_OK(cuStreamSynchronize, stream_);
  EXPECT_EQ(call_.inside, CUDA_ERROR_NOT_PERMITTED);
}

RULE_TEST(HostFunctionTest, CallbacksHaveNoFlags,
          "the flags of cuStreamAddCallback are reserved and must be 0",
          STREAM_API("cuStreamAddCallback")) {
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuStreamAddCallback, stream_, OnCallback, &call_, 1);
  CUDA_OK(cuStreamSynchronize, stream_);
  EXPECT_EQ(call_.calls, 0);
}

}  // namespace
}  // namespace prorata::conformance
