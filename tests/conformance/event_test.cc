// Events: what a record captures, who waits for it, what can be asked of it.

#include <time.h>

#include <atomic>

#include "conformance.h"

namespace prorata::conformance {
namespace {

class EventTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    Kernel("step");
    word_ = NewWord(0);
    first_ = NewStream();
    second_ = NewStream();
    gate_ = &NewGate();
  }
  void HoldFirst() { ASSERT_EQ(gate_->Hold(first_), CUDA_SUCCESS); }

  CUdeviceptr word_ = 0;
  CUstream first_ = nullptr;
  CUstream second_ = nullptr;
  Gate* gate_ = nullptr;
};

RULE_TEST(EventTest, AStreamWaitsForTheRecordedWork,
          "cuStreamWaitEvent makes future work of the stream wait for the work the event captured",
          STREAM_API("cuStreamWaitEvent")) {
  const CUevent event = NewEvent();
  HoldFirst();
  ASSERT_EQ(Step(first_, word_, 0, 7, 2 * kMs), CUDA_SUCCESS);
  CUDA_OK(cuEventRecord, event, first_);
  CUDA_OK(cuStreamWaitEvent, second_, event, 0);
  ASSERT_EQ(Step(second_, word_, 2, 0, 1000), CUDA_SUCCESS);
  gate_->Open();
  CUDA_OK(cuCtxSynchronize);
  EXPECT_EQ(ReadWord(word_), 14u);
}

RULE_TEST(EventTest, WorkBeforeTheWaitDoesNotWait,
          "cuStreamWaitEvent concerns work submitted after it, not what the stream has already",
          STREAM_API("cuStreamWaitEvent")) {
  const CUevent event = NewEvent();
  const CUevent before = NewEvent();
  HoldFirst();
  CUDA_OK(cuEventRecord, event, first_);
  ASSERT_EQ(Step(second_, word_, 0, 3, 1000), CUDA_SUCCESS);
  CUDA_OK(cuEventRecord, before, second_);
  CUDA_OK(cuStreamWaitEvent, second_, event, 0);
  CUDA_OK(cuEventSynchronize, before);
  EXPECT_EQ(ReadWord(word_), 3u);
  gate_->Open();
}

RULE_TEST(EventTest, WaitingDoesNotBlockTheCaller,
          "the wait of cuStreamWaitEvent is performed on the device: the call returns at once",
          STREAM_API("cuStreamWaitEvent")) {
  const CUevent event = NewEvent();
  HoldFirst();
  CUDA_OK(cuEventRecord, event, first_);
  CUDA_OK(cuStreamWaitEvent, second_, event, 0);
  Settle();
  CUDA_IS(CUDA_ERROR_NOT_READY, cuStreamQuery, second_);
  gate_->Open();
}

RULE_TEST(EventTest, LaterWorkOfTheStreamIsNotCaptured,
          "uses of the stream after cuEventRecord do not modify the event",
          EVENT_API("cuEventRecord")) {
  const CUevent event = NewEvent();
  CUDA_OK(cuEventRecord, event, first_);
  HoldFirst();
  CUDA_OK(cuStreamWaitEvent, second_, event, 0);
  EXPECT_TRUE(Finishes(second_));
  CUDA_OK(cuEventSynchronize, event);
  gate_->Open();
}

RULE_TEST(EventTest, AWaitUsesTheRecordOfItsTime,
          "cuStreamWaitEvent uses the most recent record at the time of the call, and is not "
          "affected by later ones",
          EVENT_API("cuEventRecord")) {
  const CUevent event = NewEvent();
  const CUstream third = NewStream();
  Gate& second_gate = NewGate();
  // The second stream comes to its wait after the event was recorded anew, behind closed gates.
  ASSERT_EQ(second_gate.Hold(second_), CUDA_SUCCESS);
  CUDA_OK(cuEventRecord, event, third);
  CUDA_OK(cuStreamWaitEvent, second_, event, 0);
  HoldFirst();
  CUDA_OK(cuEventRecord, event, first_);
  second_gate.Open();
  EXPECT_TRUE(Finishes(second_));
  gate_->Open();
}

RULE_TEST(EventTest, ANewRecordReplacesTheOld,
          "cuEventRecord can be called again and overwrites the previously captured state",
          EVENT_API("cuEventRecord")) {
  const CUevent event = NewEvent();
  CUDA_OK(cuEventRecord, event, second_);
  CUDA_OK(cuEventSynchronize, event);
  HoldFirst();
  CUDA_OK(cuEventRecord, event, first_);
  Settle();
  CUDA_IS(CUDA_ERROR_NOT_READY, cuEventQuery, event);
  gate_->Open();
  CUDA_OK(cuEventSynchronize, event);
}

RULE_TEST(EventTest, AnOlderRecordDoesNotCompleteTheNewer,
          "an event recorded again is complete when the work of the last record is, whatever the "
          "earlier ones do",
          EVENT_API("cuEventRecord")) {
  const CUevent event = NewEvent();
  Gate& second_gate = NewGate();
  ASSERT_EQ(second_gate.Hold(second_), CUDA_SUCCESS);
  CUDA_OK(cuEventRecord, event, second_);
  HoldFirst();
  CUDA_OK(cuEventRecord, event, first_);
  second_gate.Open();
  EXPECT_TRUE(Finishes(second_));
  Settle();
  CUDA_IS(CUDA_ERROR_NOT_READY, cuEventQuery, event);
  gate_->Open();
  CUDA_OK(cuEventSynchronize, event);
}

RULE_TEST(EventTest, ANeverRecordedEventIsComplete,
          "before the first record an event represents an empty set of work: cuEventQuery succeeds",
          EVENT_API("cuEventRecord")) {
  CUDA_OK(cuEventQuery, NewEvent());
}

RULE_TEST(EventTest, ANeverRecordedEventIsNotWaitedFor,
          "waiting for an event that was never recorded waits for an empty set of work",
          EVENT_API("cuEventRecord")) {
  const CUevent event = NewEvent();
  CUDA_OK(cuEventSynchronize, event);
  CUDA_OK(cuStreamWaitEvent, second_, event, 0);
  EXPECT_TRUE(Finishes(second_));
}

RULE_TEST(EventTest, AWaitForANeverRecordedEventStaysEmpty,
          "a wait that was submitted before the first record does not wait for it",
          EVENT_API("cuEventRecord")) {
  const CUevent event = NewEvent();
  Gate& second_gate = NewGate();
  ASSERT_EQ(second_gate.Hold(second_), CUDA_SUCCESS);
  CUDA_OK(cuStreamWaitEvent, second_, event, 0);
  HoldFirst();
  CUDA_OK(cuEventRecord, event, first_);
  second_gate.Open();
  EXPECT_TRUE(Finishes(second_));
  gate_->Open();
}

RULE_TEST(EventTest, QuerySaysNotReadyWhileWorkIsPending,
          "cuEventQuery returns CUDA_ERROR_NOT_READY while captured work is incomplete",
          EVENT_API("cuEventQuery")) {
  const CUevent event = NewEvent();
  HoldFirst();
  CUDA_OK(cuEventRecord, event, first_);
  Settle();
  CUDA_IS(CUDA_ERROR_NOT_READY, cuEventQuery, event);
  gate_->Open();
  CUDA_OK(cuEventSynchronize, event);
  CUDA_OK(cuEventQuery, event);
}

RULE_TEST(EventTest, SynchronizeWaitsForTheRecord,
          "cuEventSynchronize waits until all work captured in the event is complete",
          EVENT_API("cuEventSynchronize")) {
  const CUevent event = NewEvent();
  volatile uint64_t* word = HostWord(0);
  ASSERT_EQ(Step(first_, AddressOf(word), 0, 6, 20 * kMs), CUDA_SUCCESS);
  CUDA_OK(cuEventRecord, event, first_);
  CUDA_OK(cuEventSynchronize, event);
  EXPECT_EQ(*word, 6u);
}

RULE_TEST(EventTest, SynchronizeDoesNotWaitForLaterWork,
          "cuEventSynchronize waits for what was captured, not for what the stream got later",
          EVENT_API("cuEventSynchronize")) {
  const CUevent event = NewEvent();
  ASSERT_EQ(Step(first_, word_, 0, 6, kMs), CUDA_SUCCESS);
  CUDA_OK(cuEventRecord, event, first_);
  HoldFirst();
  CUDA_OK(cuEventSynchronize, event);
  Settle();
  CUDA_IS(CUDA_ERROR_NOT_READY, cuStreamQuery, first_);
  gate_->Open();
}

RULE_TEST(EventTest, WithBlockingSyncTheCallerSleeps,
          "waiting for an event with CU_EVENT_BLOCKING_SYNC blocks the calling thread instead of "
          "spinning",
          EVENT_API("cuEventSynchronize, CU_EVENT_BLOCKING_SYNC")) {
  const CUevent event = NewEvent(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
  const auto used_ns = [] {
    timespec used{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return static_cast<uint64_t>(used.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(used.tv_nsec);
  };
  ASSERT_EQ(Step(first_, word_, 0, 6, 300 * kMs), CUDA_SUCCESS);
  CUDA_OK(cuEventRecord, event, first_);
  const uint64_t before = used_ns();
  CUDA_OK(cuEventSynchronize, event);
  EXPECT_LT(used_ns() - before, 100 * kMs);
}

RULE_TEST(EventTest, ElapsedTimeIsThatBetweenTheRecords,
          "cuEventElapsedTime computes the time between two records in milliseconds",
          EVENT_API("cuEventElapsedTime")) {
  const CUevent begin = NewEvent(0);
  const CUevent end = NewEvent(0);
  float ms = 0;
  CUDA_OK(cuEventRecord, begin, first_);
  ASSERT_EQ(Step(first_, word_, 0, 7, 30 * kMs), CUDA_SUCCESS);
  CUDA_OK(cuEventRecord, end, first_);
  CUDA_OK(cuEventSynchronize, end);
  CUDA_OK(cuEventElapsedTime_v2, &ms, begin, end);
  EXPECT_GE(ms, 29.9f);
  EXPECT_LT(ms, 10'000.0f);
}

RULE_TEST(EventTest, ElapsedTimeIsNegativeBackwards,
          "cuEventElapsedTime is signed: from the later record to the earlier it is negative",
          EVENT_API("cuEventElapsedTime")) {
  const CUevent begin = NewEvent(0);
  const CUevent end = NewEvent(0);
  float ms = 0;
  CUDA_OK(cuEventRecord, begin, first_);
  ASSERT_EQ(Step(first_, word_, 0, 7, 5 * kMs), CUDA_SUCCESS);
  CUDA_OK(cuEventRecord, end, first_);
  CUDA_OK(cuEventSynchronize, end);
  CUDA_OK(cuEventElapsedTime_v2, &ms, end, begin);
  EXPECT_LE(ms, -4.9f);
}

RULE_TEST(EventTest, ElapsedTimeNeedsCompleteRecords,
          "cuEventElapsedTime is CUDA_ERROR_NOT_READY while one of the events is not complete",
          EVENT_API("cuEventElapsedTime")) {
  const CUevent begin = NewEvent(0);
  const CUevent end = NewEvent(0);
  float ms = 0;
  CUDA_OK(cuEventRecord, begin, first_);
  HoldFirst();
  CUDA_OK(cuEventRecord, end, first_);
  Settle();
  CUDA_IS(CUDA_ERROR_NOT_READY, cuEventElapsedTime_v2, &ms, begin, end);
  gate_->Open();
}

RULE_TEST(EventTest, ElapsedTimeNeedsRecords,
          "cuEventElapsedTime is CUDA_ERROR_INVALID_HANDLE if an event was never recorded",
          EVENT_API("cuEventElapsedTime")) {
  const CUevent begin = NewEvent(0);
  const CUevent end = NewEvent(0);
  float ms = 0;
  CUDA_OK(cuEventRecord, begin, first_);
  CUDA_OK(cuEventSynchronize, begin);
  CUDA_IS(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime_v2, &ms, begin, end);
  CUDA_IS(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime_v2, &ms, end, begin);
}

RULE_TEST(EventTest, ElapsedTimeNeedsTiming,
          "cuEventElapsedTime is CUDA_ERROR_INVALID_HANDLE if an event was created with "
          "CU_EVENT_DISABLE_TIMING",
          EVENT_API("cuEventElapsedTime")) {
  const CUevent begin = NewEvent(0);
  const CUevent untimed = NewEvent(CU_EVENT_DISABLE_TIMING);
  float ms = 0;
  CUDA_OK(cuEventRecord, begin, first_);
  CUDA_OK(cuEventRecord, untimed, first_);
  CUDA_OK(cuEventSynchronize, untimed);
  CUDA_IS(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime_v2, &ms, begin, untimed);
}

RULE_TEST(EventTest, TheRecordIsOfTheEventsContext,
          "cuEventRecord: event and stream must be of one context, else CUDA_ERROR_INVALID_HANDLE",
          EVENT_API("cuEventRecord")) {
  const CUevent event = NewEvent();
  CUcontext other = nullptr;
  CUDA_OK(cuCtxCreate_v2, &other, 0, 0);
  CUDA_IS(CUDA_ERROR_INVALID_HANDLE, cuEventRecord, event, NewStream());
  CUDA_OK(cuCtxDestroy_v2, other);
  CUDA_OK(cuCtxSetCurrent, ctx_);
}

RULE_TEST(EventTest, AWaitMayBeForAnEventOfAnotherContext,
          "cuStreamWaitEvent: the event may be of a different context than the stream",
          STREAM_API("cuStreamWaitEvent")) {
  const CUevent event = NewEvent();
  std::atomic<int> order = 0;
  int places[2] = {0, 0};
  struct Call {
    std::atomic<int>* order;
    int* place;
  } here = {&order, &places[0]}, there = {&order, &places[1]};
  const auto note = [](void* data) {
    auto* call = static_cast<Call*>(data);
    *call->place = ++*call->order;
  };
  HoldFirst();
  CUDA_OK(cuLaunchHostFunc, first_, note, &here);
  CUDA_OK(cuEventRecord, event, first_);
  CUcontext other = nullptr;
  CUDA_OK(cuCtxCreate_v2, &other, 0, 0);
  const CUstream waiter = NewStream();
  CUDA_OK(cuStreamWaitEvent, waiter, event, 0);
  CUDA_OK(cuLaunchHostFunc, waiter, note, &there);
  gate_->Open();
  EXPECT_TRUE(Finishes(waiter));
  EXPECT_EQ(places[0], 1);
  EXPECT_EQ(places[1], 2);
  CUDA_OK(cuCtxDestroy_v2, other);
  CUDA_OK(cuCtxSetCurrent, ctx_);
}

RULE_TEST(EventTest, DestroyDoesNotWait,
          "cuEventDestroy of an event that is not complete does not block on its completion",
          EVENT_API("cuEventDestroy")) {
  const CUevent event = NewEvent();
  HoldFirst();
  CUDA_OK(cuEventRecord, event, first_);
  CUDA_OK(cuEventDestroy_v2, event);
  Settle();
  CUDA_IS(CUDA_ERROR_NOT_READY, cuStreamQuery, first_);
  gate_->Open();
  EXPECT_TRUE(Finishes(first_));
}

RULE_TEST(EventTest, AWaitOutlivesItsEvent,
          "a stream that waits for an event goes on waiting when the event is destroyed",
          EVENT_API("cuEventDestroy")) {
  const CUevent event = NewEvent();
  HoldFirst();
  ASSERT_EQ(Step(first_, word_, 0, 7, 2 * kMs), CUDA_SUCCESS);
  CUDA_OK(cuEventRecord, event, first_);
  CUDA_OK(cuStreamWaitEvent, second_, event, 0);
  CUDA_OK(cuEventDestroy_v2, event);
  ASSERT_EQ(Step(second_, word_, 2, 0, 1000), CUDA_SUCCESS);
  gate_->Open();
  CUDA_OK(cuCtxSynchronize);
  EXPECT_EQ(ReadWord(word_), 14u);
}

RULE_TEST(EventTest, AnEventOutlivesItsStream,
          "an event recorded in a stream that is destroyed is complete when the stream's work is",
          STREAM_API("cuStreamDestroy")) {
  const CUevent event = NewEvent();
  HoldFirst();
  CUDA_OK(cuEventRecord, event, first_);
  CUDA_OK(cuStreamDestroy_v2, first_);
  Settle();
  CUDA_IS(CUDA_ERROR_NOT_READY, cuEventQuery, event);
  gate_->Open();
  CUDA_OK(cuEventSynchronize, event);
}

RULE_TEST(EventTest, ARecordInTheLegacyStreamCapturesBlockingStreams,
          "a record in the legacy stream is an action there: it waits on all blocking streams",
          DEFAULT_STREAMS("Legacy")) {
  const CUevent event = NewEvent();
  const CUstream blocking = NewStream(CU_STREAM_DEFAULT);
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(blocking), CUDA_SUCCESS);
  CUDA_OK(cuEventRecord, event, nullptr);
  Settle();
  CUDA_IS(CUDA_ERROR_NOT_READY, cuEventQuery, event);
  gate.Open();
  CUDA_OK(cuEventSynchronize, event);
}

RULE_TEST(EventTest, AWaitInTheLegacyStreamHoldsUpBlockingStreams,
          "cuStreamWaitEvent in the legacy stream is an action there: blocking streams wait for it",
          DEFAULT_STREAMS("Legacy")) {
  const CUevent event = NewEvent();
  const CUstream blocking = NewStream(CU_STREAM_DEFAULT);
  HoldFirst();
  ASSERT_EQ(Step(first_, word_, 0, 7, 2 * kMs), CUDA_SUCCESS);
  CUDA_OK(cuEventRecord, event, first_);
  CUDA_OK(cuStreamWaitEvent, nullptr, event, 0);
  ASSERT_EQ(Step(blocking, word_, 2, 0, 1000), CUDA_SUCCESS);
  gate_->Open();
  CUDA_OK(cuCtxSynchronize);
  EXPECT_EQ(ReadWord(word_), 14u);
}

RULE_TEST(EventTest, PtszRecordsAreInThePerThreadStream,
          "cuEventRecord_ptsz with stream 0 records in the calling thread's default stream",
          DEFAULT_STREAMS("Per-thread")) {
  const CUevent event = NewEvent();
  Gate& gate = NewGate();
  ASSERT_EQ(gate.Hold(CU_STREAM_PER_THREAD), CUDA_SUCCESS);
  CUDA_OK(cuEventRecord_ptsz, event, nullptr);
  Settle();
  CUDA_IS(CUDA_ERROR_NOT_READY, cuEventQuery, event);
  gate.Open();
  CUDA_OK(cuEventSynchronize, event);
}

RULE_TEST(EventTest, UnknownFlagsAreRefused,
          "cuEventCreate takes the flags of CUevent_flags and nothing else",
          EVENT_API("cuEventCreate")) {
  CUevent event;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuEventCreate, &event, 64);
}

RULE_TEST(EventTest, EventsForOtherProcessesHaveNoTiming,
          "CU_EVENT_INTERPROCESS must be given together with CU_EVENT_DISABLE_TIMING",
          EVENT_API("cuEventCreate")) {
  CUevent event;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuEventCreate, &event, CU_EVENT_INTERPROCESS);
}

RULE_TEST(EventTest, ExternalRecordsAreForCapturesOnly,
          "CU_EVENT_RECORD_EXTERNAL outside of a capture is CUDA_ERROR_ILLEGAL_STATE",
          EVENT_API("cuEventRecordWithFlags; the error as an H100's driver 580.159.04 has it")) {
  CUDA_IS(CUDA_ERROR_ILLEGAL_STATE, cuEventRecordWithFlags, NewEvent(), first_,
          CU_EVENT_RECORD_EXTERNAL);
}

RULE_TEST(EventTest, ExternalWaitsAreForCapturesOnly,
          "CU_EVENT_WAIT_EXTERNAL outside of a capture is CUDA_ERROR_ILLEGAL_STATE",
          STREAM_API("cuStreamWaitEvent; the error as an H100's driver 580.159.04 has it")) {
  const CUevent event = NewEvent();
  CUDA_OK(cuEventRecord, event, first_);
  CUDA_IS(CUDA_ERROR_ILLEGAL_STATE, cuStreamWaitEvent, second_, event, CU_EVENT_WAIT_EXTERNAL);
}

RULE_TEST(EventTest, HandlesOfNoEventAreRefused,
          "a handle that is no event's, or not any more, is CUDA_ERROR_INVALID_HANDLE",
          DRIVER_API("Data types, CUDA_ERROR_INVALID_HANDLE")) {
  SIMULATED_ONLY("a driver may follow such a handle and crash");
  const CUevent event = NewEvent();
  CUDA_OK(cuEventDestroy_v2, event);
  CUDA_IS(CUDA_ERROR_INVALID_HANDLE, cuEventRecord, event, first_);
  CUDA_IS(CUDA_ERROR_INVALID_HANDLE, cuEventQuery, reinterpret_cast<CUevent>(0x1000));
}

}  // namespace
}  // namespace prorata::conformance
