// cuGetErrorName and cuGetErrorString. Programs print these and some compare them, so the names are
// the enumerators' and the texts of the everyday errors say what people search for.

#include "generated/cuda_abi.h"
#include "sim/cuda/state.h"

namespace {

struct ErrorText {
  CUresult code;
  const char* name;
  const char* text;
};

#define PRORATA_ERROR(code, text) {code, #code, text}

constexpr ErrorText kErrors[] = {
    PRORATA_ERROR(CUDA_SUCCESS, "no error"),
    PRORATA_ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    PRORATA_ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    PRORATA_ERROR(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    PRORATA_ERROR(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    PRORATA_ERROR(CUDA_ERROR_PROFILER_DISABLED, "profiler disabled"),
    PRORATA_ERROR(CUDA_ERROR_PROFILER_NOT_INITIALIZED, "profiler not initialized"),
    PRORATA_ERROR(CUDA_ERROR_PROFILER_ALREADY_STARTED, "profiler already started"),
    PRORATA_ERROR(CUDA_ERROR_PROFILER_ALREADY_STOPPED, "profiler already stopped"),
    PRORATA_ERROR(CUDA_ERROR_STUB_LIBRARY, "the loaded driver is a stub library"),
    PRORATA_ERROR(CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER, "the call needs a newer driver"),
    PRORATA_ERROR(CUDA_ERROR_DEVICE_UNAVAILABLE, "device busy or unavailable"),
    PRORATA_ERROR(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    PRORATA_ERROR(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    PRORATA_ERROR(CUDA_ERROR_DEVICE_NOT_LICENSED, "device without a valid license"),
    PRORATA_ERROR(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    PRORATA_ERROR(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    PRORATA_ERROR(CUDA_ERROR_CONTEXT_ALREADY_CURRENT, "context already current"),
    PRORATA_ERROR(CUDA_ERROR_MAP_FAILED, "mapping failed"),
    PRORATA_ERROR(CUDA_ERROR_UNMAP_FAILED, "unmapping failed"),
    PRORATA_ERROR(CUDA_ERROR_ARRAY_IS_MAPPED, "array is mapped"),
    PRORATA_ERROR(CUDA_ERROR_ALREADY_MAPPED, "resource already mapped"),
    PRORATA_ERROR(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image for this device"),
    PRORATA_ERROR(CUDA_ERROR_ALREADY_ACQUIRED, "resource already acquired"),
    PRORATA_ERROR(CUDA_ERROR_NOT_MAPPED, "resource not mapped"),
    PRORATA_ERROR(CUDA_ERROR_NOT_MAPPED_AS_ARRAY, "resource not mapped as an array"),
    PRORATA_ERROR(CUDA_ERROR_NOT_MAPPED_AS_POINTER, "resource not mapped as a pointer"),
    PRORATA_ERROR(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error"),
    PRORATA_ERROR(CUDA_ERROR_UNSUPPORTED_LIMIT, "limit not supported here"),
    PRORATA_ERROR(CUDA_ERROR_CONTEXT_ALREADY_IN_USE, "context in use by another thread"),
    PRORATA_ERROR(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "no peer access between these devices"),
    PRORATA_ERROR(CUDA_ERROR_INVALID_PTX, "PTX could not be compiled"),
    PRORATA_ERROR(CUDA_ERROR_INVALID_GRAPHICS_CONTEXT, "invalid graphics context"),
    PRORATA_ERROR(CUDA_ERROR_NVLINK_UNCORRECTABLE, "uncorrectable NVLink error"),
    PRORATA_ERROR(CUDA_ERROR_JIT_COMPILER_NOT_FOUND, "PTX compiler library not found"),
    PRORATA_ERROR(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "PTX version not supported"),
    PRORATA_ERROR(CUDA_ERROR_JIT_COMPILATION_DISABLED, "PTX compilation is disabled"),
    PRORATA_ERROR(CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY, "execution affinity not supported"),
    PRORATA_ERROR(CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC, "device-side sync not supported"),
    PRORATA_ERROR(CUDA_ERROR_CONTAINED, "contained device error"),
    PRORATA_ERROR(CUDA_ERROR_INVALID_SOURCE, "invalid kernel source"),
    PRORATA_ERROR(CUDA_ERROR_FILE_NOT_FOUND, "file not found"),
    PRORATA_ERROR(CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND, "shared object symbol not found"),
    PRORATA_ERROR(CUDA_ERROR_SHARED_OBJECT_INIT_FAILED, "shared object failed to initialize"),
    PRORATA_ERROR(CUDA_ERROR_OPERATING_SYSTEM, "operating system call failed"),
    PRORATA_ERROR(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    PRORATA_ERROR(CUDA_ERROR_ILLEGAL_STATE, "a resource is not in the right state"),
    PRORATA_ERROR(CUDA_ERROR_LOSSY_QUERY, "the query would lose information"),
    PRORATA_ERROR(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    PRORATA_ERROR(CUDA_ERROR_NOT_READY, "device not ready"),
    PRORATA_ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    PRORATA_ERROR(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "too many resources requested for launch"),
    PRORATA_ERROR(CUDA_ERROR_LAUNCH_TIMEOUT, "the launch timed out"),
    PRORATA_ERROR(CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING, "incompatible texturing mode"),
    PRORATA_ERROR(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
    PRORATA_ERROR(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "peer access is not enabled"),
    PRORATA_ERROR(CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE, "the primary context is active"),
    PRORATA_ERROR(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    PRORATA_ERROR(CUDA_ERROR_ASSERT, "device-side assert triggered"),
    PRORATA_ERROR(CUDA_ERROR_TOO_MANY_PEERS, "peer mappings are used up"),
    PRORATA_ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "memory already registered"),
    PRORATA_ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "memory is not registered"),
    PRORATA_ERROR(CUDA_ERROR_HARDWARE_STACK_ERROR, "hardware stack error"),
    PRORATA_ERROR(CUDA_ERROR_ILLEGAL_INSTRUCTION, "illegal instruction"),
    PRORATA_ERROR(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"),
    PRORATA_ERROR(CUDA_ERROR_INVALID_ADDRESS_SPACE, "wrong address space"),
    PRORATA_ERROR(CUDA_ERROR_INVALID_PC, "invalid program counter"),
    PRORATA_ERROR(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    PRORATA_ERROR(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, "too many blocks in cooperative launch"),
    PRORATA_ERROR(CUDA_ERROR_TENSOR_MEMORY_LEAK, "tensor memory was not freed"),
    PRORATA_ERROR(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    PRORATA_ERROR(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    PRORATA_ERROR(CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized"),
    PRORATA_ERROR(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "display and CUDA driver do not match"),
    PRORATA_ERROR(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE, "compatibility mode not supported"),
    PRORATA_ERROR(CUDA_ERROR_MPS_CONNECTION_FAILED, "no connection to the MPS server"),
    PRORATA_ERROR(CUDA_ERROR_MPS_RPC_FAILURE, "MPS request failed"),
    PRORATA_ERROR(CUDA_ERROR_MPS_SERVER_NOT_READY, "MPS server not ready"),
    PRORATA_ERROR(CUDA_ERROR_MPS_MAX_CLIENTS_REACHED, "too many MPS clients"),
    PRORATA_ERROR(CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, "too many MPS connections"),
    PRORATA_ERROR(CUDA_ERROR_MPS_CLIENT_TERMINATED, "MPS client terminated by the server"),
    PRORATA_ERROR(CUDA_ERROR_CDP_NOT_SUPPORTED, "dynamic parallelism not supported"),
    PRORATA_ERROR(CUDA_ERROR_CDP_VERSION_MISMATCH, "dynamic parallelism versions differ"),
    PRORATA_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                  "operation not permitted when stream is capturing"),
    PRORATA_ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
                  "the capture was invalidated by an earlier error"),
    PRORATA_ERROR(CUDA_ERROR_STREAM_CAPTURE_MERGE, "the call would join two captures"),
    PRORATA_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "the stream did not begin this capture"),
    PRORATA_ERROR(CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
                  "the capture has work not joined to its stream"),
    PRORATA_ERROR(CUDA_ERROR_STREAM_CAPTURE_ISOLATION,
                  "captured work cannot depend on work outside the capture"),
    PRORATA_ERROR(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
                  "the legacy stream would depend on a capturing stream"),
    PRORATA_ERROR(CUDA_ERROR_CAPTURED_EVENT, "the event was last recorded in a capture"),
    PRORATA_ERROR(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, "the capture belongs to another thread"),
    PRORATA_ERROR(CUDA_ERROR_TIMEOUT, "the wait timed out"),
    PRORATA_ERROR(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE,
                  "the executable graph cannot be updated so"),
    PRORATA_ERROR(CUDA_ERROR_EXTERNAL_DEVICE, "an external device failed"),
    PRORATA_ERROR(CUDA_ERROR_INVALID_CLUSTER_SIZE, "invalid cluster size"),
    PRORATA_ERROR(CUDA_ERROR_FUNCTION_NOT_LOADED, "function not loaded"),
    PRORATA_ERROR(CUDA_ERROR_INVALID_RESOURCE_TYPE, "invalid resource type"),
    PRORATA_ERROR(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, "invalid resource configuration"),
    PRORATA_ERROR(CUDA_ERROR_KEY_ROTATION, "key rotation"),
    PRORATA_ERROR(CUDA_ERROR_UNKNOWN, "unknown error"),
};

#undef PRORATA_ERROR

const ErrorText* Find(CUresult code) {
  for (const ErrorText& entry : kErrors) {
    if (entry.code == code) return &entry;
  }
  using prorata::simgpu::Rule;
  if (prorata::simgpu::driver::Broken(Rule::kUnknownErrorsHaveNoName)) return &kErrors[0];
  return nullptr;
}

}  // namespace

CUresult cuGetErrorName(CUresult error, const char** pStr) {
  if (!pStr) return CUDA_ERROR_INVALID_VALUE;
  const ErrorText* entry = Find(error);
  *pStr = entry ? entry->name : nullptr;
  return entry ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char** pStr) {
  if (!pStr) return CUDA_ERROR_INVALID_VALUE;
  const ErrorText* entry = Find(error);
  *pStr = entry ? entry->text : nullptr;
  return entry ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
