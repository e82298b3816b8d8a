// The null driver's NVML: one device, all of it free.

#include <cstring>

#include "bench/null_driver/null_driver.h"
#include "generated/nvml_abi.h"

using namespace prorata::bench;

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = 1;
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t* device) {
  *device = reinterpret_cast<nvmlDevice_t>(0x10);
  return index == 0 ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t, char* uuid, unsigned int length) {
  if (length < sizeof kNullUuidText) return NVML_ERROR_INSUFFICIENT_SIZE;
  std::strcpy(uuid, kNullUuidText);
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t, nvmlMemory_t* memory) {
  *memory = {.total = kNullTotalBytes, .free = kNullTotalBytes, .used = 0};
  return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t, nvmlMemory_v2_t* memory) {
  memory->total = memory->free = kNullTotalBytes;
  memory->used = memory->reserved = 0;
  return NVML_SUCCESS;
}
