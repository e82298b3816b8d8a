// Order within and between streams, events, host functions, waiting for words of memory.

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "driver.h"

namespace prorata::simgpu {
namespace {

constexpr uint64_t kMs = 1'000'000;

using StreamTest = DriverTest;

TEST_F(StreamTest, OneStreamRunsInOrder) {
  CUstream stream;
  CUDA_OK(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
  const CUdeviceptr word = NewWord(1);
  for (uint64_t i = 0; i < 20; ++i) {
    ASSERT_EQ(Step(stream, word, i % 2 ? 3 : 2, i, 10'000), CUDA_SUCCESS);
  }
  CUDA_OK(cuStreamSynchronize, stream);
  uint64_t expected = 1;
  for (uint64_t i = 0; i < 20; ++i) expected = expected * (i % 2 ? 3 : 2) + i;
  EXPECT_EQ(ReadWord(word), expected);
}

TEST_F(StreamTest, TheLegacyStreamWaitsForBlockingStreamsOnly) {
  CUstream blocking;
  CUstream free_running;
  CUDA_OK(cuStreamCreate, &blocking, CU_STREAM_DEFAULT);
  CUDA_OK(cuStreamCreate, &free_running, CU_STREAM_NON_BLOCKING);
  const CUdeviceptr word = NewWord(0);
  const CUdeviceptr other = NewWord(0);
  ASSERT_EQ(Step(free_running, other, 0, 1, 400 * kMs), CUDA_SUCCESS);
  ASSERT_EQ(Step(blocking, word, 0, 5, 5 * kMs), CUDA_SUCCESS);
  ASSERT_EQ(Step(nullptr, word, 2, 0, 1000), CUDA_SUCCESS);
  CUDA_OK(cuStreamSynchronize, nullptr);
  CUDA_IS(CUDA_ERROR_NOT_READY, cuStreamQuery, free_running);
  CUDA_OK(cuStreamSynchronize, free_running);
  EXPECT_EQ(ReadWord(word), 10u);
}

TEST_F(StreamTest, EventsOrderStreamsAndMeasureThem) {
  CUstream first;
  CUstream second;
  CUevent begin;
  CUevent done;
  CUDA_OK(cuStreamCreate, &first, CU_STREAM_NON_BLOCKING);
  CUDA_OK(cuStreamCreate, &second, CU_STREAM_NON_BLOCKING);
  CUDA_OK(cuEventCreate, &begin, 0);
  CUDA_OK(cuEventCreate, &done, 0);
  float ms = 0;
  CUDA_IS(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime_v2, &ms, begin, done);
  CUDA_OK(cuEventQuery, done);  // never recorded: nothing to wait for
  const CUdeviceptr word = NewWord(0);
  CUDA_OK(cuEventRecord, begin, first);
  ASSERT_EQ(Step(first, word, 0, 7, 30 * kMs), CUDA_SUCCESS);
  CUDA_OK(cuEventRecord, done, first);
  CUDA_IS(CUDA_ERROR_NOT_READY, cuEventQuery, done);
  CUDA_IS(CUDA_ERROR_NOT_READY, cuEventElapsedTime_v2, &ms, begin, done);
  CUDA_OK(cuStreamWaitEvent, second, done, 0);
  ASSERT_EQ(Step(second, word, 2, 0, 1000), CUDA_SUCCESS);
  CUDA_OK(cuStreamSynchronize, second);
  EXPECT_EQ(ReadWord(word), 14u);
  CUDA_OK(cuEventElapsedTime_v2, &ms, begin, done);
  EXPECT_GE(ms, 30.0f);
  CUevent untimed;
  CUDA_OK(cuEventCreate, &untimed, CU_EVENT_DISABLE_TIMING);
  CUDA_OK(cuEventRecord, untimed, first);
  CUDA_IS(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime_v2, &ms, begin, untimed);
  CUDA_OK(cuEventDestroy_v2, done);
  CUDA_IS(CUDA_ERROR_INVALID_HANDLE, cuEventRecord, done, first);
}

struct HostCall {
  std::atomic<int> calls = 0;
  CUresult inside = CUDA_SUCCESS;
  uint64_t seen = 0;
  CUdeviceptr word = 0;
};

void OnHost(void* data) {
  auto* call = static_cast<HostCall*>(data);
  size_t free_bytes;
  size_t total;
  call->inside = CUDA(cuMemGetInfo_v2)(&free_bytes, &total);
  call->seen = *reinterpret_cast<uint64_t*>(call->word);
  ++call->calls;
}

void OnCallback(CUstream, CUresult status, void* data) {
  if (status == CUDA_SUCCESS) OnHost(data);
}

TEST_F(StreamTest, HostFunctionsRunInOrderAndMayNotCallCuda) {
  HostCall function;
  HostCall callback;
  function.word = callback.word = NewWord(1);
  CUstream stream;
  CUDA_OK(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
  ASSERT_EQ(Step(stream, function.word, 0, 8, 10 * kMs), CUDA_SUCCESS);
  CUDA_OK(cuLaunchHostFunc, stream, OnHost, &function);
  CUDA_OK(cuStreamAddCallback, stream, OnCallback, &callback, 0);
  ASSERT_EQ(Step(stream, function.word, 0, 9, 1000), CUDA_SUCCESS);
  CUDA_OK(cuStreamSynchronize, stream);
  EXPECT_EQ(function.calls, 1);
  EXPECT_EQ(callback.calls, 1);
  EXPECT_EQ(function.seen, 8u);
  EXPECT_EQ(callback.seen, 8u);
  EXPECT_EQ(function.inside, CUDA_ERROR_NOT_PERMITTED);
  EXPECT_EQ(ReadWord(function.word), 9u);
}

TEST_F(StreamTest, EveryThreadHasADefaultStreamOfItsOwn) {
  const CUdeviceptr word = NewWord(0);
  unsigned long long mine = 0;
  unsigned long long legacy = 0;
  unsigned long long others = 0;
  CUDA_OK(cuStreamGetId_ptsz, nullptr, &mine);
  CUDA_OK(cuStreamGetId, nullptr, &legacy);
  EXPECT_NE(mine, legacy);
  unsigned long long named = 0;
  CUDA_OK(cuStreamGetId, CU_STREAM_PER_THREAD, &named);
  EXPECT_EQ(named, mine);
  CUDA_OK(cuStreamGetId_ptsz, CU_STREAM_LEGACY, &named);
  EXPECT_EQ(named, legacy);
  std::thread thread([&] {
    ASSERT_EQ(CUDA(cuCtxSetCurrent)(ctx_), CUDA_SUCCESS);
    EXPECT_EQ(CUDA(cuStreamGetId_ptsz)(nullptr, &others), CUDA_SUCCESS);
  });
  thread.join();
  EXPECT_NE(others, mine);
  CUDA_OK(cuMemsetD32Async_ptsz, word, 6, 1, nullptr);
  CUDA_OK(cuStreamSynchronize_ptsz, nullptr);
  EXPECT_EQ(ReadWord(word), 6u);
}

TEST_F(StreamTest, WordsAreWrittenAndWaitedFor) {
  const CUdeviceptr flag = NewWord(0);
  const CUdeviceptr word = NewWord(1);
  CUstream waiter;
  CUstream writer;
  CUDA_OK(cuStreamCreate, &waiter, CU_STREAM_NON_BLOCKING);
  CUDA_OK(cuStreamCreate, &writer, CU_STREAM_NON_BLOCKING);
  CUDA_OK(cuStreamWaitValue32_v2, waiter, flag, 3, CU_STREAM_WAIT_VALUE_GEQ);
  ASSERT_EQ(Step(waiter, word, 0, 2, 1000), CUDA_SUCCESS);
  ASSERT_EQ(Step(writer, word, 10, 0, 5 * kMs), CUDA_SUCCESS);  // others run meanwhile
  CUDA_OK(cuStreamSynchronize, writer);
  CUDA_IS(CUDA_ERROR_NOT_READY, cuStreamQuery, waiter);
  EXPECT_EQ(*reinterpret_cast<uint64_t*>(word), 10u);
  CUDA_OK(cuStreamWriteValue32_v2, writer, flag, 3, 0);
  CUDA_OK(cuStreamSynchronize, waiter);
  EXPECT_EQ(ReadWord(word), 2u);
}

TEST_F(StreamTest, BadHandlesAndFlagsAreRefused) {
  CUstream stream;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuStreamCreate, &stream, 8);
  CUDA_IS(CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize, reinterpret_cast<CUstream>(0x1000));
  CUDA_OK(cuStreamCreate, &stream, 0);
  CUDA_OK(cuStreamDestroy_v2, stream);
  CUDA_IS(CUDA_ERROR_INVALID_HANDLE, cuStreamQuery, stream);
  CUDA_IS(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy_v2, stream);
  CUDA_IS(CUDA_ERROR_INVALID_HANDLE, cuEventQuery, reinterpret_cast<CUevent>(0x1000));
}

TEST_F(StreamTest, PrioritiesAreClampedAndToldBack) {
  int least = 1;
  int greatest = 1;
  CUDA_OK(cuCtxGetStreamPriorityRange, &least, &greatest);
  EXPECT_EQ(least, 0);
  EXPECT_LT(greatest, 0);
  CUstream stream;
  CUDA_OK(cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, -100);
  int priority = 0;
  unsigned flags = 0;
  CUDA_OK(cuStreamGetPriority, stream, &priority);
  CUDA_OK(cuStreamGetFlags, stream, &flags);
  EXPECT_EQ(priority, greatest);
  EXPECT_EQ(flags, unsigned{CU_STREAM_NON_BLOCKING});
}

TEST_F(StreamTest, WorkOfADestroyedStreamStillRuns) {
  const CUdeviceptr word = NewWord(0);
  CUstream stream;
  CUDA_OK(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
  ASSERT_EQ(Step(stream, word, 0, 4, 10 * kMs), CUDA_SUCCESS);
  CUDA_OK(cuStreamDestroy_v2, stream);
  CUDA_OK(cuCtxSynchronize);
  EXPECT_EQ(ReadWord(word), 4u);
}

}  // namespace
}  // namespace prorata::simgpu
