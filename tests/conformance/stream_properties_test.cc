// What streams say of themselves, and handles and arguments that are refused.

#include <cstring>
#include <thread>

#include "conformance.h"

namespace prorata::conformance {
namespace {

class StreamPropertiesTest : public DriverTest {};

RULE_TEST(StreamPropertiesTest, FlagsAreThoseOfItsCreation,
          "cuStreamGetFlags returns the flags that were used while creating the stream",
          STREAM_API("cuStreamGetFlags")) {
  unsigned flags = 77;
  CUDA_OK(cuStreamGetFlags, NewStream(CU_STREAM_NON_BLOCKING), &flags);
  EXPECT_EQ(flags, unsigned{CU_STREAM_NON_BLOCKING});
  CUDA_OK(cuStreamGetFlags, NewStream(CU_STREAM_DEFAULT), &flags);
  EXPECT_EQ(flags, unsigned{CU_STREAM_DEFAULT});
}

RULE_TEST(StreamPropertiesTest, UnknownFlagsAreRefused,
          "cuStreamCreate takes CU_STREAM_DEFAULT or CU_STREAM_NON_BLOCKING and nothing else",
          STREAM_API("cuStreamCreate")) {
  CUstream stream;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuStreamCreate, &stream, 8);
}

RULE_TEST(StreamPropertiesTest, TheRangeOfPrioritiesRunsDownwards,
          "lower numbers are higher priorities: the greatest is not above the least",
          DRIVER_API("Context Management, cuCtxGetStreamPriorityRange")) {
  int least = 1;
  int greatest = 1;
  CUDA_OK(cuCtxGetStreamPriorityRange, &least, &greatest);
  EXPECT_EQ(least, 0);
  EXPECT_LT(greatest, 0);
}

RULE_TEST(StreamPropertiesTest, EitherEndOfTheRangeMayBeAskedAlone,
          "cuCtxGetStreamPriorityRange: NULL may be passed for a value that is not desired",
          DRIVER_API("Context Management, cuCtxGetStreamPriorityRange")) {
  int both[2] = {1, 1};
  int least = 1;
  int greatest = 1;
  CUDA_OK(cuCtxGetStreamPriorityRange, &both[0], &both[1]);
  CUDA_OK(cuCtxGetStreamPriorityRange, &least, nullptr);
  CUDA_OK(cuCtxGetStreamPriorityRange, nullptr, &greatest);
  EXPECT_EQ(least, both[0]);
  EXPECT_EQ(greatest, both[1]);
}

RULE_TEST(StreamPropertiesTest, PrioritiesAboveTheRangeAreClamped,
          "a priority beyond the greatest is clamped to it, and cuStreamGetPriority says so",
          STREAM_API("cuStreamCreateWithPriority, cuStreamGetPriority")) {
  int greatest = 0;
  CUDA_OK(cuCtxGetStreamPriorityRange, nullptr, &greatest);
  CUstream stream;
  int priority = 1;
  CUDA_OK(cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, -100);
  CUDA_OK(cuStreamGetPriority, stream, &priority);
  EXPECT_EQ(priority, greatest);
}

RULE_TEST(StreamPropertiesTest, PrioritiesBelowTheRangeAreClamped,
          "a priority below the least is clamped to it, and cuStreamGetPriority says so",
          STREAM_API("cuStreamCreateWithPriority, cuStreamGetPriority")) {
  int least = 1;
  CUDA_OK(cuCtxGetStreamPriorityRange, &least, nullptr);
  CUstream stream;
  int priority = 1;
  CUDA_OK(cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, 100);
  CUDA_OK(cuStreamGetPriority, stream, &priority);
  EXPECT_EQ(priority, least);
}

RULE_TEST(StreamPropertiesTest, ThePriorityAskedForIsTheOneReported,
          "cuStreamGetPriority returns the priority with which the stream was created",
          STREAM_API("cuStreamGetPriority")) {
  CUstream stream;
  int priority = 0;
  CUDA_OK(cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, -1);
  CUDA_OK(cuStreamGetPriority, stream, &priority);
  EXPECT_EQ(priority, -1);
}

RULE_TEST(StreamPropertiesTest, TheDefaultPriorityIsZero,
          "0 is the default priority: that of streams of cuStreamCreate",
          STREAM_API("cuStreamCreateWithPriority")) {
  int priority = 1;
  CUDA_OK(cuStreamGetPriority, NewStream(), &priority);
  EXPECT_EQ(priority, 0);
}

RULE_TEST(StreamPropertiesTest, IdsAreUnique,
          "the id of a stream is unique for the life of the program, that of a destroyed one too",
          STREAM_API("cuStreamGetId")) {
  unsigned long long first = 0;
  unsigned long long second = 0;
  unsigned long long third = 0;
  const CUstream stream = NewStream();
  CUDA_OK(cuStreamGetId, stream, &first);
  CUDA_OK(cuStreamGetId, NewStream(), &second);
  CUDA_OK(cuStreamDestroy_v2, stream);
  CUDA_OK(cuStreamGetId, NewStream(), &third);
  EXPECT_NE(first, second);
  EXPECT_NE(first, third);
  EXPECT_NE(second, third);
}

RULE_TEST(StreamPropertiesTest, AStreamKnowsTheContextItWasMadeIn,
          "cuStreamGetCtx returns the context that was current when the stream was created",
          STREAM_API("cuStreamGetCtx")) {
  const CUstream stream = NewStream();
  CUcontext other = nullptr;
  CUcontext found = nullptr;
  CUDA_OK(cuCtxCreate_v2, &other, 0, 0);
  CUDA_OK(cuStreamGetCtx, stream, &found);
  EXPECT_EQ(found, ctx_);
  CUDA_OK(cuCtxDestroy_v2, other);
  CUDA_OK(cuCtxSetCurrent, ctx_);
}

RULE_TEST(StreamPropertiesTest, DefaultStreamsBelongToTheCurrentContext,
          "cuStreamGetCtx of a default stream returns the context current to the calling thread",
          STREAM_API("cuStreamGetCtx")) {
  CUcontext other = nullptr;
  CUDA_OK(cuCtxCreate_v2, &other, 0, 0);
  for (const CUstream stream : {CUstream{nullptr}, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD}) {
    CUcontext found = nullptr;
    CUDA_OK(cuStreamGetCtx, stream, &found);
    EXPECT_EQ(found, other);
  }
  CUDA_OK(cuCtxDestroy_v2, other);
  CUDA_OK(cuCtxSetCurrent, ctx_);
}

RULE_TEST(StreamPropertiesTest, DefaultStreamsNeedACurrentContext,
          "cuStreamGetCtx of a default stream is CUDA_ERROR_INVALID_CONTEXT without a context",
          STREAM_API("cuStreamGetCtx")) {
  CUcontext found = nullptr;
  CUDA_OK(cuCtxPopCurrent_v2, nullptr);
  CUDA_IS(CUDA_ERROR_INVALID_CONTEXT, cuStreamGetCtx, nullptr, &found);
  CUDA_OK(cuCtxPushCurrent_v2, ctx_);
}

RULE_TEST(StreamPropertiesTest, AStreamKnowsItsDevice,
          "cuStreamGetDevice returns the device of the stream", STREAM_API("cuStreamGetDevice")) {
  CUdevice device = 77;
  CUDA_OK(cuStreamGetDevice, NewStream(), &device);
  EXPECT_EQ(device, 0);
}

RULE_TEST(StreamPropertiesTest, AStreamWorksWhileAnotherContextIsCurrent,
          "a stream's work can be waited for while another context is current",
          STREAM_API("cuStreamSynchronize")) {
  const CUstream stream = NewStream();
  volatile uint64_t* word = HostWord(0);
  ASSERT_EQ(Step(stream, AddressOf(word), 0, 3, 5'000'000), CUDA_SUCCESS);
  CUcontext other = nullptr;
  CUDA_OK(cuCtxCreate_v2, &other, 0, 0);
  CUDA_OK(cuStreamSynchronize, stream);
  EXPECT_EQ(*word, 3u);
  CUDA_OK(cuCtxDestroy_v2, other);
  CUDA_OK(cuCtxSetCurrent, ctx_);
}

RULE_TEST(StreamPropertiesTest, DefaultStreamsCannotBeDestroyed,
          "a default stream is implicit: its handle cannot be destroyed",
          STREAM_API("cuStreamDestroy")) {
  EXPECT_NE(CUDA(cuStreamDestroy_v2)(nullptr), CUDA_SUCCESS);
  EXPECT_NE(CUDA(cuStreamDestroy_v2)(CU_STREAM_LEGACY), CUDA_SUCCESS);
  EXPECT_NE(CUDA(cuStreamDestroy_v2)(CU_STREAM_PER_THREAD), CUDA_SUCCESS);
}

RULE_TEST(StreamPropertiesTest, HandlesOfNoStreamAreRefused,
          "a handle that is no stream's, or not any more, is CUDA_ERROR_INVALID_HANDLE",
          DRIVER_API("Data types, CUDA_ERROR_INVALID_HANDLE")) {
  SIMULATED_ONLY("a driver may follow such a handle and crash");
  const CUstream stream = NewStream(CU_STREAM_DEFAULT);
  CUDA_OK(cuStreamDestroy_v2, stream);
  CUDA_IS(CUDA_ERROR_INVALID_HANDLE, cuStreamQuery, stream);
  CUDA_IS(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy_v2, stream);
  CUDA_IS(CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize, reinterpret_cast<CUstream>(0x1000));
}

RULE_TEST(StreamPropertiesTest, AnAttributeThatWasSetIsReported,
          "cuStreamGetAttribute returns what cuStreamSetAttribute set",
          STREAM_API("cuStreamSetAttribute, cuStreamGetAttribute")) {
  const CUstream stream = NewStream();
  CUstreamAttrValue value;
  std::memset(&value, 0, sizeof(value));
  value.syncPolicy = CU_SYNC_POLICY_BLOCKING_SYNC;
  CUDA_OK(cuStreamSetAttribute, stream, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value);
  std::memset(&value, 0, sizeof(value));
  CUDA_OK(cuStreamGetAttribute, stream, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value);
  EXPECT_EQ(value.syncPolicy, CU_SYNC_POLICY_BLOCKING_SYNC);
}

RULE_TEST(StreamPropertiesTest, AttributesAreCopied,
          "cuStreamCopyAttributes copies attributes from the source to the destination",
          STREAM_API("cuStreamCopyAttributes")) {
  const CUstream source = NewStream();
  const CUstream destination = NewStream();
  CUstreamAttrValue value;
  std::memset(&value, 0, sizeof(value));
  value.syncPolicy = CU_SYNC_POLICY_YIELD;
  CUDA_OK(cuStreamSetAttribute, source, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value);
  CUDA_OK(cuStreamCopyAttributes, destination, source);
  std::memset(&value, 0, sizeof(value));
  CUDA_OK(cuStreamGetAttribute, destination, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &value);
  EXPECT_EQ(value.syncPolicy, CU_SYNC_POLICY_YIELD);
}

RULE_TEST(StreamPropertiesTest, AttributesAreCopiedWithinAContextOnly,
          "cuStreamCopyAttributes: both streams must have the same context",
          STREAM_API("cuStreamCopyAttributes")) {
  const CUstream here = NewStream();
  CUcontext other = nullptr;
  CUDA_OK(cuCtxCreate_v2, &other, 0, 0);
  const CUstream there = NewStream();
  EXPECT_NE(CUDA(cuStreamCopyAttributes)(there, here), CUDA_SUCCESS);
  CUDA_OK(cuCtxDestroy_v2, other);
  CUDA_OK(cuCtxSetCurrent, ctx_);
}

RULE_TEST(StreamPropertiesTest, ThePriorityIsAnAttributeToo,
          "CU_LAUNCH_ATTRIBUTE_PRIORITY of a stream is the priority it was created with",
          DRIVER_API("Data types, CUlaunchAttributeID, CU_LAUNCH_ATTRIBUTE_PRIORITY")) {
  CUstream stream;
  CUDA_OK(cuStreamCreateWithPriority, &stream, CU_STREAM_NON_BLOCKING, -1);
  CUstreamAttrValue value;
  std::memset(&value, 0, sizeof(value));
  CUDA_OK(cuStreamGetAttribute, stream, CU_LAUNCH_ATTRIBUTE_PRIORITY, &value);
  EXPECT_EQ(value.priority, -1);
}

RULE_TEST(StreamPropertiesTest, AttributesOfLaunchesAreNoneOfStreams,
          "an attribute that is valid for launches only cannot be set on a stream",
          DRIVER_API("Data types, CUlaunchAttributeID")) {
  CUstreamAttrValue value;
  std::memset(&value, 0, sizeof(value));
  value.clusterDim.x = value.clusterDim.y = value.clusterDim.z = 1;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuStreamSetAttribute, NewStream(),
          CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &value);
}

class AttachTest : public DriverTest {
 protected:
  static constexpr size_t kBytes = 4096;
  void SetUp() override {
    DriverTest::SetUp();
    CUDA_OK(cuMemAllocManaged, &managed_, kBytes, CU_MEM_ATTACH_GLOBAL);
  }
  CUdeviceptr managed_ = 0;
};

RULE_TEST(AttachTest, ManagedMemoryIsAttachedAsAWhole,
          "cuStreamAttachMemAsync of managed memory: the length is zero or that of the allocation",
          STREAM_API("cuStreamAttachMemAsync")) {
  const CUstream stream = NewStream();
  CUDA_OK(cuStreamAttachMemAsync, stream, managed_, 0, CU_MEM_ATTACH_SINGLE);
  CUDA_OK(cuStreamAttachMemAsync, stream, managed_, kBytes, CU_MEM_ATTACH_GLOBAL);
  EXPECT_NE(CUDA(cuStreamAttachMemAsync)(stream, managed_, kBytes / 2, CU_MEM_ATTACH_GLOBAL),
            CUDA_SUCCESS);
}

RULE_TEST(AttachTest, DeviceMemoryCannotBeAttached,
          "cuStreamAttachMemAsync takes managed memory or pageable host memory, no device memory",
          STREAM_API("cuStreamAttachMemAsync")) {
  EXPECT_NE(CUDA(cuStreamAttachMemAsync)(NewStream(), NewWord(0), 0, CU_MEM_ATTACH_GLOBAL),
            CUDA_SUCCESS);
}

RULE_TEST(AttachTest, NothingIsAttachedToTheNullStreamAlone,
          "it is illegal to attach singly to the NULL stream, which is no specific stream",
          STREAM_API("cuStreamAttachMemAsync, CU_MEM_ATTACH_SINGLE")) {
  EXPECT_NE(CUDA(cuStreamAttachMemAsync)(nullptr, managed_, 0, CU_MEM_ATTACH_SINGLE), CUDA_SUCCESS);
}

RULE_TEST(AttachTest, UnknownFlagsAreRefused,
          "the flags of cuStreamAttachMemAsync must be one of CUmemAttach_flags",
          STREAM_API("cuStreamAttachMemAsync")) {
  EXPECT_NE(CUDA(cuStreamAttachMemAsync)(NewStream(), managed_, 0, 16), CUDA_SUCCESS);
  EXPECT_NE(CUDA(cuStreamAttachMemAsync)(NewStream(), managed_, 0, 0), CUDA_SUCCESS);
}

}  // namespace
}  // namespace prorata::conformance
