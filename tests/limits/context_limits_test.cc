// Contexts: what the device reserves for one is charged before it is made, and settled after.

#include <functional>

#include "limits.h"

namespace prorata::limits {
namespace {

constexpr uint64_t kContextBytes = 16 * kMib;

class ContextLimits : public LimitTest {
 protected:
  using Maker = CUresult (*)(CUcontext*, CUdevice);
  using Ender = CUresult (*)(CUcontext);

  static CUresult Create(CUcontext* ctx, CUdevice device) {
    return CUDA(cuCtxCreate_v2)(ctx, 0, device);
  }
  // Ends one and makes the primary context current again.
  void End(CUcontext other, Ender end) {
    EXPECT_EQ(end(other), CUDA_SUCCESS);
    EXPECT_EQ(CUDA(cuCtxSetCurrent)(ctx_), CUDA_SUCCESS);
  }
  static CUresult Destroy(CUcontext ctx) { return CUDA(cuCtxDestroy_v2)(ctx); }

  // What one more context is charged.
  uint64_t ContextBytes() {
    const uint64_t before = Free();
    CUcontext other = nullptr;
    EXPECT_EQ(Create(&other, device_), CUDA_SUCCESS);
    const uint64_t bytes = before - Free();
    End(other, Destroy);
    EXPECT_TRUE(FreeBecomes(before));
    EXPECT_GT(bytes, 0U);
    return bytes;
  }

  // Without room for a context `make` is refused, whatever it does with its arguments otherwise.
  void IsRefused(Maker make) {
    LeaveRoom(ContextBytes() / 2);
    CUcontext other = nullptr;
    Refused([&] { return make(&other, device_); });
    GiveRoomBack();
  }
  void IsCharged(Maker make) {
    const uint64_t bytes = ContextBytes();
    CUcontext other = nullptr;
    ASSERT_EQ(make(&other, device_), CUDA_SUCCESS);
    EXPECT_TRUE(Charged(bytes));
    End(other, Destroy);
    EXPECT_TRUE(Charged(0));
  }
  // Where there is room for one context, a second is made when the first has ended.
  void MakesRoom(Ender end) {
    const uint64_t bytes = ContextBytes();
    CUcontext first = nullptr, second = nullptr;
    LeaveRoom(bytes + bytes / 2);
    ASSERT_EQ(Create(&first, device_), CUDA_SUCCESS);
    Refused([&] { return Create(&second, device_); });
    End(first, end);
    ASSERT_EQ(Create(&second, device_), CUDA_SUCCESS);
    End(second, end);
    GiveRoomBack();
  }
  // What lives in a context goes with it.
  void GivesBack(Ender end) {
    CUcontext other = nullptr;
    CUdeviceptr address = 0;
    ASSERT_EQ(Create(&other, device_), CUDA_SUCCESS);
    CUDA_OK(cuMemAlloc_v2, &address, kContextBytes);
    EXPECT_LE(Free() + kContextBytes, Total());
    End(other, end);
    EXPECT_TRUE(Charged(0));
  }

  // Ends the primary context by `end`, with another one current meanwhile; runs `body` then, and
  // makes the primary context again.
  void WithoutPrimary(const std::function<CUresult()>& end,
                      const std::function<void(uint64_t bytes)>& body) {
    const uint64_t bytes = ContextBytes();
    CUcontext other = nullptr;
    ASSERT_EQ(Create(&other, device_), CUDA_SUCCESS);
    const uint64_t before = Free();
    ASSERT_EQ(end(), CUDA_SUCCESS);
    EXPECT_TRUE(FreeBecomes(before + bytes));
    body(bytes);
    GiveRoomBack();
    CUcontext primary = nullptr;
    CUDA_OK(cuDevicePrimaryCtxRetain, &primary, device_);
    EXPECT_EQ(primary, ctx_);
    EXPECT_TRUE(FreeBecomes(before));
    End(other, Destroy);
  }
  CUresult Release() { return CUDA(cuDevicePrimaryCtxRelease_v2)(device_); }
  CUresult ReleaseOld() { return CUDA(cuDevicePrimaryCtxRelease)(device_); }
  // A reset context stays retained.
  CUresult Reset() {
    const CUresult result = CUDA(cuDevicePrimaryCtxReset_v2)(device_);
    return result == CUDA_SUCCESS ? Release() : result;
  }
  void PrimaryIsRefusedAfter(const std::function<CUresult()>& end) {
    WithoutPrimary(end, [&](uint64_t bytes) {
      LeaveRoom(bytes / 2);
      CUcontext primary = nullptr;
      Refused([&] { return CUDA(cuDevicePrimaryCtxRetain)(&primary, device_); });
    });
  }
  void PrimaryGivesBackBy(const std::function<CUresult()>& end) {
    CUdeviceptr address = 0;
    CUDA_OK(cuMemAlloc_v2, &address, kContextBytes);
    const uint64_t before = Free();
    CUcontext other = nullptr;
    ASSERT_EQ(Create(&other, device_), CUDA_SUCCESS);
    const uint64_t beside = Free();
    ASSERT_EQ(end(), CUDA_SUCCESS);
    // Its overhead, as large as the other's, and what was in it.
    EXPECT_TRUE(FreeBecomes(beside + (before - beside) + kContextBytes));
    CUDA_OK(cuDevicePrimaryCtxRetain, &ctx_, device_);
    End(other, Destroy);
  }
};

TEST_F(ContextLimits, CtxCreateRefused) {
  IsRefused([](CUcontext* ctx, CUdevice device) { return CUDA(cuCtxCreate)(ctx, 0, device); });
  IsRefused(Create);
  IsRefused([](CUcontext* ctx, CUdevice device) {
    return CUDA(cuCtxCreate_v3)(ctx, nullptr, 0, 0, device);
  });
  IsRefused([](CUcontext* ctx, CUdevice device) {
    CUctxCreateParams params = {};
    return CUDA(cuCtxCreate_v4)(ctx, &params, 0, device);
  });
}

TEST_F(ContextLimits, CtxCreateCharged) {
  IsCharged([](CUcontext* ctx, CUdevice device) { return CUDA(cuCtxCreate)(ctx, 0, device); });
  IsCharged(Create);
  IsCharged([](CUcontext* ctx, CUdevice device) {
    return CUDA(cuCtxCreate_v3)(ctx, nullptr, 0, 0, device);
  });
  IsCharged([](CUcontext* ctx, CUdevice device) {
    CUctxCreateParams params = {};
    return CUDA(cuCtxCreate_v4)(ctx, &params, 0, device);
  });
}

// These need a display. Without one they fail, and must leave nothing charged.
TEST_F(ContextLimits, GLCtxCreateRefused) {
  IsRefused([](CUcontext* ctx, CUdevice device) { return CUDA(cuGLCtxCreate)(ctx, 0, device); });
  IsRefused([](CUcontext* ctx, CUdevice device) { return CUDA(cuGLCtxCreate_v2)(ctx, 0, device); });
}

TEST_F(ContextLimits, GLCtxCreateCharged) {
  const Maker makers[] = {
      [](CUcontext* ctx, CUdevice device) { return CUDA(cuGLCtxCreate)(ctx, 0, device); },
      [](CUcontext* ctx, CUdevice device) { return CUDA(cuGLCtxCreate_v2)(ctx, 0, device); }};
  for (const Maker make : makers) {
    const uint64_t bytes = ContextBytes();
    CUcontext other = nullptr;
    const bool made = make(&other, device_) == CUDA_SUCCESS;
    EXPECT_TRUE(Charged(made ? bytes : 0));
    if (made) End(other, Destroy);
    EXPECT_TRUE(Charged(0));
  }
}

TEST_F(ContextLimits, VDPAUCtxCreateRefused) {
  IsRefused([](CUcontext* ctx, CUdevice device) {
    return CUDA(cuVDPAUCtxCreate)(ctx, 0, device, 0, nullptr);
  });
  IsRefused([](CUcontext* ctx, CUdevice device) {
    return CUDA(cuVDPAUCtxCreate_v2)(ctx, 0, device, 0, nullptr);
  });
}

TEST_F(ContextLimits, VDPAUCtxCreateCharged) {
  if (OnRealGpu()) GTEST_SKIP() << "a real driver may call the VDPAU device that this test has not";
  CUcontext other = nullptr;
  EXPECT_NE(CUDA(cuVDPAUCtxCreate_v2)(&other, 0, device_, 0, nullptr), CUDA_SUCCESS);
  EXPECT_TRUE(Charged(0));
}

TEST_F(ContextLimits, CtxDestroyMakesRoom) {
  MakesRoom(Destroy);
  MakesRoom([](CUcontext ctx) { return CUDA(cuCtxDestroy)(ctx); });
}
TEST_F(ContextLimits, CtxDestroyGivesBack) {
  GivesBack(Destroy);
  GivesBack([](CUcontext ctx) { return CUDA(cuCtxDestroy)(ctx); });
}

TEST_F(ContextLimits, CtxDetachMakesRoom) {
  MakesRoom([](CUcontext ctx) { return CUDA(cuCtxDetach)(ctx); });
}
TEST_F(ContextLimits, CtxDetachGivesBack) {
  GivesBack([](CUcontext ctx) { return CUDA(cuCtxDetach)(ctx); });
}

TEST_F(ContextLimits, DevicePrimaryCtxRetainRefused) {
  PrimaryIsRefusedAfter([&] { return Release(); });
}
TEST_F(ContextLimits, DevicePrimaryCtxRetainCharged) {
  // By the first retain, and only by that.
  WithoutPrimary([&] { return Release(); },
                 [&](uint64_t bytes) {
                   const uint64_t before = Free();
                   CUcontext primary = nullptr;
                   for (int i = 0; i < 3; ++i) {
                     CUDA_OK(cuDevicePrimaryCtxRetain, &primary, device_);
                     EXPECT_TRUE(FreeBecomes(before - bytes));
                   }
                   for (int i = 0; i < 3; ++i) {
                     EXPECT_TRUE(FreeBecomes(before - bytes));
                     EXPECT_EQ(Release(), CUDA_SUCCESS);
                   }
                   EXPECT_TRUE(FreeBecomes(before));
                 });
}

TEST_F(ContextLimits, DevicePrimaryCtxReleaseMakesRoom) {
  PrimaryIsRefusedAfter([&] { return Release(); });
  PrimaryIsRefusedAfter([&] { return ReleaseOld(); });
}
TEST_F(ContextLimits, DevicePrimaryCtxReleaseGivesBack) {
  PrimaryGivesBackBy([&] { return Release(); });
  PrimaryGivesBackBy([&] { return ReleaseOld(); });
}
TEST_F(ContextLimits, DevicePrimaryCtxResetMakesRoom) {
  PrimaryIsRefusedAfter([&] { return Reset(); });
}
TEST_F(ContextLimits, DevicePrimaryCtxResetGivesBack) {
  PrimaryGivesBackBy([&] { return Reset(); });
}

// A green context of all multiprocessors; CUDA_ERROR_NOT_SUPPORTED where there are none.
CUresult CreateGreen(CUgreenCtx* green, CUdevice device) {
  CUdevResource all = {};
  CUdevResourceDesc desc = nullptr;
  if (CUDA(cuDeviceGetDevResource)(device, &all, CU_DEV_RESOURCE_TYPE_SM) != CUDA_SUCCESS ||
      CUDA(cuDevResourceGenerateDesc)(&desc, &all, 1) != CUDA_SUCCESS) {
    desc = nullptr;
  }
  return CUDA(cuGreenCtxCreate)(green, desc, device, CU_GREEN_CTX_DEFAULT_STREAM);
}
bool GreenContextsExist(CUdevice device) {
  CUgreenCtx green = nullptr;
  return CreateGreen(&green, device) == CUDA_SUCCESS &&
         CUDA(cuGreenCtxDestroy)(green) == CUDA_SUCCESS;
}

// Refused before the driver is asked, so also where it has no green contexts.
TEST_F(ContextLimits, GreenCtxCreateRefused) {
  WithoutPrimary([&] { return Release(); },
                 [&](uint64_t bytes) {
                   LeaveRoom(bytes / 2);
                   CUgreenCtx green = nullptr;
                   Refused([&] { return CreateGreen(&green, device_); });
                 });
}
// It is charged as the primary context that it retains; where there are none, nothing is.
TEST_F(ContextLimits, GreenCtxCreateCharged) {
  WithoutPrimary([&] { return Release(); },
                 [&](uint64_t bytes) {
                   const uint64_t before = Free();
                   CUgreenCtx green = nullptr, beside = nullptr;
                   const bool made = CreateGreen(&green, device_) == CUDA_SUCCESS;
                   EXPECT_TRUE(FreeBecomes(made ? before - bytes : before));
                   if (made) {
                     // The primary context is there, so a second one takes nothing.
                     EXPECT_EQ(CreateGreen(&beside, device_), CUDA_SUCCESS);
                     EXPECT_TRUE(FreeBecomes(before - bytes));
                     CUDA_OK(cuGreenCtxDestroy, green);
                     EXPECT_TRUE(FreeBecomes(before - bytes));
                     CUDA_OK(cuGreenCtxDestroy, beside);
                   }
                   EXPECT_TRUE(FreeBecomes(before));
                 });
}
// What is allocated in one is the primary context's: within the same limit, and it outlives it.
TEST_F(ContextLimits, GreenCtxMemoryRefused) {
  SKIP_UNLESS(GreenContextsExist(device_), "green contexts");
  CUgreenCtx green = nullptr;
  CUcontext inside = nullptr;
  ASSERT_EQ(CreateGreen(&green, device_), CUDA_SUCCESS);
  CUDA_OK(cuCtxFromGreenCtx, &inside, green);
  LeaveRoom(kContextBytes / 2);
  CUDA_OK(cuCtxPushCurrent_v2, inside);
  CUdeviceptr address = 0;
  Refused([&] { return CUDA(cuMemAlloc_v2)(&address, kContextBytes); });
  CUDA_OK(cuCtxPopCurrent_v2, &inside);
  GiveRoomBack();
  CUDA_OK(cuGreenCtxDestroy, green);
}
TEST_F(ContextLimits, GreenCtxMemoryCharged) {
  SKIP_UNLESS(GreenContextsExist(device_), "green contexts");
  CUgreenCtx green = nullptr;
  CUcontext inside = nullptr;
  CUdeviceptr address = 0;
  ASSERT_EQ(CreateGreen(&green, device_), CUDA_SUCCESS);
  CUDA_OK(cuCtxFromGreenCtx, &inside, green);
  CUDA_OK(cuCtxPushCurrent_v2, inside);
  CUDA_OK(cuMemAlloc_v2, &address, kContextBytes);
  EXPECT_TRUE(Charged(kContextBytes));
  CUDA_OK(cuCtxPopCurrent_v2, &inside);
  CUDA_OK(cuGreenCtxDestroy, green);
  EXPECT_TRUE(Charged(kContextBytes));
  CUDA_OK(cuMemFree_v2, address);
  EXPECT_TRUE(Charged(0));
}
TEST_F(ContextLimits, GreenCtxDestroyMakesRoom) {
  SKIP_UNLESS(GreenContextsExist(device_), "green contexts");
  WithoutPrimary([&] { return Release(); },
                 [&](uint64_t bytes) {
                   LeaveRoom(bytes + bytes / 2);
                   CUgreenCtx green = nullptr;
                   CUcontext other = nullptr;
                   ASSERT_EQ(CreateGreen(&green, device_), CUDA_SUCCESS);
                   Refused([&] { return Create(&other, device_); });
                   CUDA_OK(cuGreenCtxDestroy, green);
                   ASSERT_EQ(Create(&other, device_), CUDA_SUCCESS);
                   CUDA_OK(cuCtxDestroy_v2, other);
                 });
}
TEST_F(ContextLimits, GreenCtxDestroyGivesBack) {
  SKIP_UNLESS(GreenContextsExist(device_), "green contexts");
  WithoutPrimary([&] { return Release(); },
                 [&](uint64_t) {
                   const uint64_t before = Free();
                   CUgreenCtx green = nullptr;
                   CUcontext inside = nullptr;
                   CUdeviceptr address = 0;
                   ASSERT_EQ(CreateGreen(&green, device_), CUDA_SUCCESS);
                   CUDA_OK(cuCtxFromGreenCtx, &inside, green);
                   CUDA_OK(cuCtxPushCurrent_v2, inside);
                   CUDA_OK(cuMemAlloc_v2, &address, kContextBytes);
                   CUDA_OK(cuCtxPopCurrent_v2, &inside);
                   CUDA_OK(cuGreenCtxDestroy, green);  // and with it the primary context
                   EXPECT_TRUE(FreeBecomes(before));
                 });
}

}  // namespace
}  // namespace prorata::limits
