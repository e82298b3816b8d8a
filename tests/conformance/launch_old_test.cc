// The launches before cuLaunchKernel.

#include "conformance.h"

namespace prorata::conformance {
namespace {

class OldLaunchTest : public DriverTest {
 protected:
  // `step` as Step() of the fixture launches it, with parameters set one by one.
  CUfunction Prepare(CUdeviceptr word, uint64_t factor, uint64_t term) {
    CUfunction function = Kernel("step");
    uint64_t values[] = {word, factor, term, 1000};
    EXPECT_EQ(CUDA(cuFuncSetBlockShape)(function, 1, 1, 1), CUDA_SUCCESS);
    EXPECT_EQ(CUDA(cuFuncSetSharedSize)(function, 0), CUDA_SUCCESS);
    for (int i = 0; i < 4; ++i) {
      EXPECT_EQ(CUDA(cuParamSetv)(function, i * 8, &values[i], 8), CUDA_SUCCESS);
    }
    EXPECT_EQ(CUDA(cuParamSetSize)(function, sizeof(values)), CUDA_SUCCESS);
    return function;
  }
};

RULE_TEST(OldLaunchTest, ParametersSetOnTheFunctionArePassed,
          "cuLaunchGrid launches with the parameters, block shape and shared memory set before",
          "CUDA Driver API, Execution Control [DEPRECATED], cuParamSetv, cuLaunchGrid") {
  const CUdeviceptr word = NewWord(1);
  CUfunction function = Prepare(word, 1, 4);
  CUDA_OK(cuLaunch, function);
  EXPECT_EQ(ReadWord(word), 5u);
  CUDA_OK(cuParamSeti, function, 16, 10);  // the low half of the term
  CUDA_OK(cuLaunchGrid, function, 1, 1);
  EXPECT_EQ(ReadWord(word), 15u);
  CUstream stream = NewStream();
  CUDA_OK(cuLaunchGridAsync, function, 1, 1, stream);
  CUDA_OK(cuStreamSynchronize, stream);
  EXPECT_EQ(ReadWord(word), 25u);
}

RULE_TEST(
    OldLaunchTest, WrongShapesAreRefused,
    "grids and blocks without threads, and parameters outside the space for them, are refused",
    "CUDA Driver API, Execution Control [DEPRECATED], cuFuncSetBlockShape") {
  CUfunction function = Prepare(NewWord(1), 1, 4);
  SIMULATED_ONLY("an H100's driver (580.159.04) crashes at one of these");
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuFuncSetBlockShape, function, 0, 1, 1);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuLaunchGrid, function, 0, 1);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuParamSeti, function, -4, 1);
  CUDA_IS(CUDA_ERROR_INVALID_VALUE, cuParamSetSize, function, 1 << 20);
}

}  // namespace
}  // namespace prorata::conformance
