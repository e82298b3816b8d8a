#include "sim/cuda/context/context_storage.h"

namespace prorata::simgpu::driver {

CUresult ContextStorage::Put(CUcontext ctx, void* key, void* value, Destructor destructor) {
  std::lock_guard lock(mutex_);
  entries_[{ctx, key}] = {value, destructor};
  return CUDA_SUCCESS;
}

CUresult ContextStorage::Get(void** value, CUcontext ctx, void* key) {
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(mutex_);
  auto found = entries_.find({ctx, key});
  if (found == entries_.end()) return CUDA_ERROR_INVALID_HANDLE;
  *value = found->second.value;
  return CUDA_SUCCESS;
}

CUresult ContextStorage::Delete(CUcontext ctx, void* key) {
  std::lock_guard lock(mutex_);
  return entries_.erase({ctx, key}) != 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

void ContextStorage::DropContext(CUcontext ctx) {
  std::vector<std::pair<void*, Entry>> dropped;
  {
    std::lock_guard lock(mutex_);
    auto entry = entries_.lower_bound({ctx, nullptr});
    while (entry != entries_.end() && entry->first.first == ctx) {
      dropped.emplace_back(entry->first.second, entry->second);
      entry = entries_.erase(entry);
    }
  }
  for (const auto& [key, entry] : dropped) {
    if (entry.destructor) entry.destructor(ctx, key, entry.value);
  }
}

}  // namespace prorata::simgpu::driver
