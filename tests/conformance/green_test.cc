// Parts of a device's SMs, and green contexts of them.

#include "green_fixture.h"

namespace prorata::conformance {
namespace {

class GreenResourceTest : public GreenTest {};
class GreenContextTest : public GreenTest {
 protected:
  static int Active() {
    unsigned flags = 0;
    int active = -1;
    EXPECT_EQ(CUDA(cuDevicePrimaryCtxGetState)(0, &flags, &active), CUDA_SUCCESS);
    return active;
  }
  static CUcontext Current() {
    CUcontext ctx = nullptr;
    EXPECT_EQ(CUDA(cuCtxGetCurrent)(&ctx), CUDA_SUCCESS);
    return ctx;
  }
};

constexpr char kSplit[] = GREEN_API("cuDevSmResourceSplitByCount");
constexpr char kCreateGreen[] = GREEN_API("cuGreenCtxCreate");
constexpr char kDestroyGreen[] = GREEN_API("cuGreenCtxDestroy");
constexpr char kFromGreen[] = GREEN_API("cuCtxFromGreenCtx");

RULE_TEST(GreenResourceTest, ADeviceHasAllItsSms,
          "the SM resource of a device is all of its multiprocessors",
          GREEN_API("cuDeviceGetDevResource")) {
  int count = 0;
  CUDA_OK(cuDeviceGetAttribute, &count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0);
  EXPECT_EQ(all_.type, CU_DEV_RESOURCE_TYPE_SM);
  EXPECT_EQ(all_.sm.smCount, static_cast<unsigned>(count));
  EXPECT_GE(all_.sm.minSmPartitionSize, 1U);
  EXPECT_GE(all_.sm.smCoscheduledAlignment, 1U);
  CUdevResource same = {};
  CUDA_OK(cuCtxGetDevResource, ctx_, &same, CU_DEV_RESOURCE_TYPE_SM);
  EXPECT_EQ(same.sm.smCount, all_.sm.smCount) << "of its primary context, too";
}

RULE_TEST(GreenResourceTest, OnlySmsAreAResource,
          "a resource that is not of type SM is CUDA_ERROR_INVALID_RESOURCE_TYPE",
          GREEN_API("cuDeviceGetDevResource")) {
  CUdevResource other = {};
  CUDA_IS(CUDA_ERROR_INVALID_RESOURCE_TYPE, cuDeviceGetDevResource, 0, &other,
          CU_DEV_RESOURCE_TYPE_INVALID);
  unsigned groups = 1;
  CUdevResource part = {};
  CUDA_IS(CUDA_ERROR_INVALID_RESOURCE_TYPE, cuDevSmResourceSplitByCount, &part, &groups, &other,
          nullptr, 0, 0);
  CUdevResourceDesc desc = nullptr;
  CUDA_IS(CUDA_ERROR_INVALID_RESOURCE_TYPE, cuDevResourceGenerateDesc, &desc, &other, 1);
}

RULE_TEST(GreenResourceTest, SplitsAreRoundedUp,
          "groups have at least the SMs asked for, rounded up to what the device can divide",
          kSplit) {
  const unsigned step = all_.sm.smCoscheduledAlignment;
  const unsigned asked = all_.sm.minSmPartitionSize + 1;
  const unsigned count = Split(1, asked)[0].sm.smCount;
  EXPECT_GE(count, asked);
  EXPECT_EQ(count % step, 0U) << "in steps of " << step;
  EXPECT_GE(Split(1, 0)[0].sm.smCount, all_.sm.minSmPartitionSize);
}

RULE_TEST(GreenResourceTest, WithoutAResultOnlyTheGroupsAreCounted,
          "without a place for the groups, the call says how many there would be", kSplit) {
  unsigned possible = 0;
  const unsigned size = all_.sm.minSmPartitionSize;
  CUDA_OK(cuDevSmResourceSplitByCount, nullptr, &possible, &all_, nullptr, 0, size);
  EXPECT_GE(possible, 1U);
  EXPECT_LE(possible, all_.sm.smCount / size);
  unsigned groups = possible + 3;
  std::vector<CUdevResource> made(groups);
  CUDA_OK(cuDevSmResourceSplitByCount, made.data(), &groups, &all_, nullptr, 0, size);
  EXPECT_EQ(groups, possible) << "and no more are made";
}

RULE_TEST(GreenResourceTest, WhatIsLeftIsTheRest,
          "groups are of one size, and what is in none of them is in the remaining set", kSplit) {
  CUdevResource rest = {};
  const auto groups = Split(2, all_.sm.minSmPartitionSize, &rest);
  EXPECT_EQ(groups[0].sm.smCount, groups[1].sm.smCount);
  EXPECT_EQ(rest.sm.smCount, all_.sm.smCount - 2 * groups[0].sm.smCount);
}

RULE_TEST(GreenResourceTest, GroupsAreApart,
          "the groups of a split are disjoint: together they are as many SMs as both", kSplit) {
  const auto groups = Split(2, all_.sm.minSmPartitionSize);
  EXPECT_EQ(SmsOf(NewGreen(groups)), groups[0].sm.smCount + groups[1].sm.smCount);
}

RULE_TEST(GreenResourceTest, MoreThanThereIsIsRefused,
          "the SMs asked for must be no more than the input has", kSplit) {
  unsigned groups = 1;
  CUdevResource part = {};
  EXPECT_NE(
      CUDA(cuDevSmResourceSplitByCount)(&part, &groups, &all_, nullptr, 0, all_.sm.smCount + 1),
      CUDA_SUCCESS);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuDevSmResourceSplitByCount, &part, nullptr, &all_, nullptr, 0,
          1);
}

RULE_TEST(GreenResourceTest, GroupsAreNotSplitAgain,
          "what a split gave can be split only as the resource of a green context that has it",
          kSplit) {
  const CUdevResource first = Split(1, 2 * all_.sm.minSmPartitionSize)[0];
  unsigned groups = 2;
  CUdevResource halves[2] = {};
  EXPECT_NE(CUDA(cuDevSmResourceSplitByCount)(halves, &groups, &first, nullptr, 0,
                                              all_.sm.minSmPartitionSize),
            CUDA_SUCCESS);
  CUdevResource held = {};
  CUDA_OK(cuGreenCtxGetDevResource, NewGreen({first}), &held, CU_DEV_RESOURCE_TYPE_SM);
  groups = 2;
  CUDA_OK(cuDevSmResourceSplitByCount, halves, &groups, &held, nullptr, 0,
          all_.sm.minSmPartitionSize);
  EXPECT_EQ(groups, 2U);
}

RULE_TEST(GreenResourceTest, ADescriptorIsOfOneSplit,
          "several SM resources of a descriptor must be outputs of the same split",
          GREEN_API("cuDevResourceGenerateDesc")) {
  SIMULATED_ONLY("an H100's driver (580.159.04) takes it, and crashes at none at all");
  CUdevResource mixed[] = {Split(1, all_.sm.minSmPartitionSize)[0],
                           Split(2, all_.sm.minSmPartitionSize)[1]};
  CUdevResourceDesc desc = nullptr;
  CUDA_IS(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, cuDevResourceGenerateDesc, &desc, mixed, 2);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuDevResourceGenerateDesc, &desc, mixed, 0);
}

RULE_TEST(GreenResourceTest, InventedResourcesAreRefused,
          "a resource is one that the driver made, unchanged",
          GREEN_API("CUdevSmResource: output parameters only")) {
  SIMULATED_ONLY("which error, and whether it is checked, is not documented");
  CUdevResource changed = all_;
  changed.sm.smCount += 1;
  CUdevResourceDesc desc = nullptr;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuDevResourceGenerateDesc, &desc, &changed, 1);
}

RULE_TEST(GreenContextTest, ItHasTheSmsOfItsDescriptor,
          "the resource of a green context, and of its CUcontext, is what its descriptor was of",
          GREEN_API("cuGreenCtxGetDevResource")) {
  const auto groups = Split(1, 2 * all_.sm.minSmPartitionSize);
  const CUgreenCtx green = NewGreen(groups);
  EXPECT_EQ(SmsOf(green), groups[0].sm.smCount);
  CUdevResource same = {};
  CUDA_OK(cuCtxGetDevResource, ContextOf(green), &same, CU_DEV_RESOURCE_TYPE_SM);
  EXPECT_EQ(same.sm.smCount, groups[0].sm.smCount);
}

RULE_TEST(GreenContextTest, ItNeedsItsDefaultStream, "CU_GREEN_CTX_DEFAULT_STREAM is required",
          kCreateGreen) {
  CUgreenCtx green = nullptr;
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuGreenCtxCreate, &green, Describe({all_}), 0, 0);
  CUDA_IS(ButOnGpu(CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS), cuGreenCtxCreate, &green, nullptr, 0,
          CU_GREEN_CTX_DEFAULT_STREAM);
}

RULE_TEST(GreenContextTest, ItHoldsThePrimaryContext,
          "a green context retains the primary context until it is destroyed", kCreateGreen) {
  const CUgreenCtx green = NewGreen();
  CUDA_OK(cuDevicePrimaryCtxRelease_v2, 0);
  EXPECT_EQ(Active(), 1);
  Destroy(green);
  EXPECT_EQ(Active(), 0);
  CUDA_OK(cuDevicePrimaryCtxRetain, &ctx_, 0);
}

RULE_TEST(GreenContextTest, ItIsNotMadeCurrent, "making a green context does not make it current",
          kCreateGreen) {
  NewGreen();
  EXPECT_EQ(Current(), ctx_);
}

RULE_TEST(GreenContextTest, ItIsAContextByConversion,
          "its CUcontext can be made current; the handle of the green context itself cannot",
          kFromGreen) {
  const CUgreenCtx green = NewGreen();
  const CUcontext inside = ContextOf(green);
  CUDA_OK(cuCtxSetCurrent, inside);
  EXPECT_EQ(Current(), inside);
  CUdevice device = -1;
  CUDA_OK(cuCtxGetDevice, &device);
  EXPECT_EQ(device, 0);
  CUDA_OK(cuCtxSetCurrent, ctx_);
  CUDA_IS(ButOnGpu(CUDA_ERROR_INVALID_CONTEXT, CUDA_SUCCESS), cuCtxSetCurrent,
          reinterpret_cast<CUcontext>(green));
  CUDA_OK(cuCtxSetCurrent, ctx_);
}

RULE_TEST(GreenContextTest, MemoryIsThePrimaryContexts,
          "its CUcontext is the primary context with other resources: memory and code are shared, "
          "and outlive it",
          kFromGreen) {
  const CUgreenCtx green = NewGreen();
  CUDA_OK(cuCtxSetCurrent, ContextOf(green));
  const CUdeviceptr word = NewWord(5);
  const CUfunction function = Kernel("step");
  ASSERT_EQ(Step(nullptr, word, 2, 1, 1000), CUDA_SUCCESS);
  CUDA_OK(cuCtxSynchronize);
  CUDA_OK(cuCtxSetCurrent, ctx_);
  Destroy(green);
  EXPECT_EQ(ReadWord(word), 11U);
  EXPECT_EQ(Kernel("step"), function);
  ASSERT_EQ(Step(nullptr, word, 2, 1, 1000), CUDA_SUCCESS);
  EXPECT_EQ(ReadWord(word), 23U);
}

RULE_TEST(GreenContextTest, ItTakesNoMemoryOfItsOwn,
          "where the primary context is active, a green one takes no more memory", kCreateGreen) {
  SIMULATED_ONLY("what a driver keeps for one is not documented");
  const uint64_t before = FreeBytes();
  NewGreen();
  EXPECT_EQ(FreeBytes(), before);
}

RULE_TEST(GreenContextTest, AfterItsEndItIsDestroyed,
          "a green context that was destroyed, and its CUcontext, cannot be used", kDestroyGreen) {
  const CUgreenCtx green = NewGreen();
  const CUcontext inside = ContextOf(green);
  Destroy(green);
  CUDA_IS(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuGreenCtxDestroy, green);
  CUcontext again = nullptr;
  EXPECT_NE(CUDA(cuCtxFromGreenCtx)(&again, green), CUDA_SUCCESS);
  EXPECT_EQ(CUDA(cuCtxSetCurrent)(inside) != CUDA_SUCCESS, ButOnGpu(true, false));
  CUDA_OK(cuCtxSetCurrent, ctx_);
}

RULE_TEST(GreenContextTest, ItIsEndedByItsOwnCall,
          "a CUcontext of a green context is not cuCtxDestroy's to end", kFromGreen) {
  SIMULATED_ONLY("which error it is is not documented");
  const CUgreenCtx green = NewGreen();
  CUDA_IS(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy_v2, ContextOf(green));
  EXPECT_GT(SmsOf(green), 0U);
}

RULE_TEST(GreenContextTest, ItsIdIsItsOwn,
          "the id of a green context is unique; without one named, it is the current one's",
          GREEN_API("cuGreenCtxGetId")) {
  const auto groups = Split(2, all_.sm.minSmPartitionSize);
  const CUgreenCtx first = NewGreen({groups[0]}), second = NewGreen({groups[1]});
  unsigned long long one = 0, two = 0, current = 0;
  CUDA_OK(cuGreenCtxGetId, first, &one);
  CUDA_OK(cuGreenCtxGetId, second, &two);
  EXPECT_NE(one, two);
  CUDA_IS(CUDA_ERROR_INVALID_CONTEXT, cuGreenCtxGetId, nullptr, &current);
  CUDA_OK(cuCtxSetCurrent, ContextOf(second));
  CUDA_OK(cuGreenCtxGetId, nullptr, &current);
  EXPECT_EQ(current, two);
  CUDA_OK(cuCtxSetCurrent, ctx_);
}

}  // namespace
}  // namespace prorata::conformance
