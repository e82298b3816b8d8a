// The suite's main: also that of the second process of a test (tests/conformance/other_process.h),
// which is then another member of the same share.

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "../conformance/other_process.h"
#include "limits.h"

// What the second process needs of the conformance suite, here by the libcuda.so.1 of the share.
namespace prorata::conformance {

void* DriverSymbol(const char* name) { return limits::DriverSymbol(name); }
std::string KernelImage() { return limits::KernelImage(); }

}  // namespace prorata::conformance

namespace {

using prorata::limits::kMib;

void Print(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
  std::getchar();  // until the test has seen enough
}

// Programs of two shares (test_sharing.py): one that exports 64 MiB and says the handle, one that
// opens it and says the result and the share's free memory before and after.
int Export() {
  CUdeviceptr address = 0;
  CUipcMemHandle handle{};
  CUresult result = CUDA(cuMemAlloc_v2)(&address, 64 * kMib);
  if (result == CUDA_SUCCESS) result = CUDA(cuIpcGetMemHandle)(&handle, address);
  std::string text;
  for (const char byte : handle.reserved) {
    char hex[3];
    std::snprintf(hex, sizeof hex, "%02x", static_cast<unsigned char>(byte));
    text += hex;
  }
  Print(text);
  return result;
}

int Open(const std::string& text) {
  CUipcMemHandle handle{};
  for (size_t i = 0; i < sizeof handle.reserved; ++i) {
    handle.reserved[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  size_t before = 0, after = 0, total = 0;
  CUdeviceptr address = 0;
  CUDA(cuMemGetInfo_v2)(&before, &total);
  const CUresult result =
      CUDA(cuIpcOpenMemHandle_v2)(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  CUDA(cuMemGetInfo_v2)(&after, &total);
  Print(std::to_string(result) + " " + std::to_string(before - after));
  return 0;
}

bool MakeContext() {
  CUcontext ctx = nullptr;
  return CUDA(cuInit)(0) == CUDA_SUCCESS && CUDA(cuCtxCreate_v2)(&ctx, 0, 0) == CUDA_SUCCESS;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--export") return MakeContext() ? Export() : 1;
  if (argc == 3 && std::string_view(argv[1]) == "--open") return MakeContext() ? Open(argv[2]) : 1;
  if (argc == 4 && std::string_view(argv[1]) == "--other-process") {
    return prorata::conformance::ServeOtherProcess(std::atoi(argv[2]), std::atoi(argv[3]));
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
