// The JIT linker: takes images, and answers one image that has what they have. Nothing is compiled
// or linked: PTX stays PTX, and the result is a fatbin with the images as entries.

#include <cstring>
#include <memory>
#include <unordered_map>

#include "generated/cuda_abi.h"
#include "sim/cuda/context/context.h"
#include "sim/cuda/module/function.h"

using namespace prorata::simgpu;
using namespace prorata::simgpu::driver;

namespace {

constexpr uint32_t kFatbinMagic = 0xba55ed50;
constexpr uint32_t kEntryHeader = 64;

struct LinkState {
  CUdevice device = 0;
  std::vector<char> entries;
  std::vector<char> image;  // what cuLinkComplete gave; its memory lasts as long as the state
};

// Leaked, like the Driver. Under its mutex.
std::unordered_map<const void*, std::unique_ptr<LinkState>>& States() {
  static auto* const states = new std::unordered_map<const void*, std::unique_ptr<LinkState>>;
  return *states;
}

CUresult FindState(CUlinkState handle, LinkState** out) {
  auto found = States().find(handle);
  if (found == States().end()) return CUDA_ERROR_INVALID_HANDLE;
  *out = found->second.get();
  return CUDA_SUCCESS;
}

template <typename T>
void PutAt(std::vector<char>* bytes, size_t at, T value) {
  std::memcpy(bytes->data() + at, &value, sizeof(value));
}

int ArchOf(CUdevice device) {
  const DeviceConfig& config = D().config(device);
  return config.compute_major * 10 + config.compute_minor;
}

// An entry of the fatbin; see image_abi.cc.
void AddEntry(LinkState* state, bool ptx, const void* data, size_t bytes) {
  const size_t at = state->entries.size();
  const size_t padded = (bytes + 8) / 8 * 8;  // text keeps a null behind it
  state->entries.resize(at + kEntryHeader + padded);
  PutAt(&state->entries, at, static_cast<uint16_t>(ptx ? 1 : 2));
  PutAt(&state->entries, at + 4, kEntryHeader);
  PutAt(&state->entries, at + 8, uint64_t{padded});
  PutAt(&state->entries, at + 28, static_cast<uint32_t>(ArchOf(state->device)));
  std::memcpy(state->entries.data() + at + kEntryHeader, data, bytes);
}

// A fatbin's entries as they are: which of them is taken is decided when the result is loaded.
void AddFatbin(LinkState* state, const char* data) {
  uint16_t header;
  uint64_t bytes;
  std::memcpy(&header, data + 6, sizeof(header));
  std::memcpy(&bytes, data + 8, sizeof(bytes));
  state->entries.insert(state->entries.end(), data + header, data + header + bytes);
}

CUresult Add(CUlinkState handle, CUjitInputType type, const void* data, size_t bytes) {
  if (CUresult result = EnterCall()) return result;
  if (!data || bytes < 4 || type < CU_JIT_INPUT_CUBIN || type >= CU_JIT_NUM_INPUT_TYPES) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::lock_guard lock(D().mutex);
  LinkState* state;
  if (CUresult result = FindState(handle, &state)) return result;
  if (!state->image.empty()) return CUDA_ERROR_INVALID_VALUE;  // complete
  // Libraries and objects of the host, with device code in their sections, and NVVM are not read.
  const std::vector<char> text(static_cast<const char*>(data),
                               static_cast<const char*>(data) + bytes);
  uint32_t magic;
  std::memcpy(&magic, data, sizeof(magic));
  Image image;
  if (type == CU_JIT_INPUT_PTX) {
    std::string ptx(text.begin(), text.end());
    if (CUresult result = ParseImage(ptx.c_str(), ArchOf(state->device), &image)) return result;
    if (image.kind != Image::Kind::kPtx) return CUDA_ERROR_INVALID_PTX;
    AddEntry(state, true, data, bytes);
    return CUDA_SUCCESS;
  }
  if (type == CU_JIT_INPUT_NVVM || type == CU_JIT_INPUT_LIBRARY) return CUDA_ERROR_NOT_SUPPORTED;
  if (CUresult result = ParseImage(data, ArchOf(state->device), &image)) return result;
  if (magic == kFatbinMagic) {
    AddFatbin(state, text.data());
  } else if (image.kind == Image::Kind::kCubin) {
    AddEntry(state, false, data, bytes);
  } else {
    return CUDA_ERROR_INVALID_IMAGE;
  }
  return CUDA_SUCCESS;
}

CUresult AddFile(CUlinkState handle, CUjitInputType type, const char* path) {
  if (CUresult result = EnterCall()) return result;
  std::vector<char> bytes;
  if (CUresult result = ReadWholeFile(path, &bytes)) return result;
  return Add(handle, type, bytes.data(), bytes.size() - 1);
}

// The compiler's logs are empty: nothing is compiled.
void EmptyLogs(unsigned count, const CUjit_option* options, void** values) {
  for (unsigned i = 0; options && values && i < count; ++i) {
    if (options[i] == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES ||
        options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) {
      values[i] = nullptr;
    }
  }
}

}  // namespace

CUresult cuLinkCreate_v2(unsigned int numOptions, CUjit_option* options, void** optionValues,
                         CUlinkState* stateOut) {
  Context* ctx;
  if (CUresult result = EnterContext(&ctx)) return result;
  if (!stateOut || (numOptions > 0 && (!options || !optionValues))) return CUDA_ERROR_INVALID_VALUE;
  EmptyLogs(numOptions, options, optionValues);
  auto state = std::make_unique<LinkState>();
  state->device = ctx->device;
  std::lock_guard lock(D().mutex);
  *stateOut = reinterpret_cast<CUlinkState>(state.get());
  States()[state.get()] = std::move(state);
  return CUDA_SUCCESS;
}
CUresult cuLinkCreate(unsigned int numOptions, CUjit_option* options, void** optionValues,
                      CUlinkState* stateOut) {
  return cuLinkCreate_v2(numOptions, options, optionValues, stateOut);
}

CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void* data, size_t size,
                          const char*, unsigned int, CUjit_option*, void**) {
  return Add(state, type, data, size);
}
CUresult cuLinkAddData(CUlinkState state, CUjitInputType type, void* data, size_t size, const char*,
                       unsigned int, CUjit_option*, void**) {
  return Add(state, type, data, size);
}
CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char* path, unsigned int,
                          CUjit_option*, void**) {
  return AddFile(state, type, path);
}
CUresult cuLinkAddFile(CUlinkState state, CUjitInputType type, const char* path, unsigned int,
                       CUjit_option*, void**) {
  return AddFile(state, type, path);
}

CUresult cuLinkComplete(CUlinkState handle, void** cubinOut, size_t* sizeOut) {
  if (CUresult result = EnterCall()) return result;
  if (!cubinOut) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(D().mutex);
  LinkState* state;
  if (CUresult result = FindState(handle, &state)) return result;
  if (state->image.empty()) {
    constexpr uint16_t kHeader = 16;
    state->image.resize(kHeader);
    PutAt(&state->image, 0, kFatbinMagic);
    PutAt(&state->image, 4, uint16_t{1});
    PutAt(&state->image, 6, kHeader);
    PutAt(&state->image, 8, uint64_t{state->entries.size()});
    state->image.insert(state->image.end(), state->entries.begin(), state->entries.end());
  }
  *cubinOut = state->image.data();
  if (sizeOut) *sizeOut = state->image.size();
  return CUDA_SUCCESS;
}

CUresult cuLinkDestroy(CUlinkState handle) {
  if (CUresult result = EnterCall()) return result;
  std::lock_guard lock(D().mutex);
  return States().erase(handle) != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
