// cuGetProcAddress, in both forms.
//
//   A. the driver is asked first: what it does not have, nobody has, and what is not overridden is
//      its own pointer
//   B. an overridden function is answered by our form of it, chosen by name, version and flag among
//      the forms that this driver exports (an older driver asked for a newer version answers its
//      own newest form, and so must we)
//   C. a version above the spec's may mean a form that the spec does not know. The driver is asked
//      again at the spec's version: the same pointer means the same form, so B; another pointer is
//      left to the program, ungoverned, and counted
//   D. a name that the spec does not know is a newer driver's: as C
//
// A runtime looks its functions up before cuInit: what is counted until then is reported when the
// process has joined its share.

#include <atomic>

#include "client/session/proc_address.h"
#include "client/session/share.h"

namespace prorata::client {
namespace {

void* OverrideAddress(uint32_t index) {
  switch (index) {
#define PRORATA_DRIVER_OVERRIDE(symbol, number) \
  case number:                                  \
    return reinterpret_cast<void*>(&symbol);
#define PRORATA_NVML_OVERRIDE(symbol, number)
#include "generated/client_overrides.inc"
#undef PRORATA_DRIVER_OVERRIDE
#undef PRORATA_NVML_OVERRIDE
    default:
      return nullptr;
  }
}

bool DriverHas(uint32_t index) { return DriverAddress(static_cast<DriverIndex>(index)) != nullptr; }

std::atomic<uint64_t> g_before_joining;

void CountUngoverned() {
  if (Live() != kGoverned) {
    g_before_joining.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  g_share.usage->devices[0].ungoverned_functions.fetch_add(1, std::memory_order_relaxed);
}

// `ask(version, pfn)` repeats the lookup at another version.
template <typename Ask>
void Substitute(const char* symbol, void** pfn, int version, cuuint64_t flags, Ask&& ask) {
  if (symbol == nullptr || pfn == nullptr || *pfn == nullptr) return;
  if (!IsKnownName(symbol)) return CountUngoverned();
  if (!IsOverriddenName(symbol)) return;
  if (version > kSpecVersion) {
    void* at_spec = nullptr;
    if (ask(kSpecVersion, &at_spec) != CUDA_SUCCESS || at_spec != *pfn) {
      CountUngoverned();
      return;
    }
    version = kSpecVersion;
  }
  const VersionRow* row = FindOverride(symbol, version, flags, DriverHas);
  if (row != nullptr) *pfn = OverrideAddress(row->index);
}

}  // namespace

void ReportEarlyLookups() {
  g_share.usage->devices[0].ungoverned_functions.fetch_add(g_before_joining.exchange(0));
}

}  // namespace prorata::client

using namespace prorata::client;

CUresult cuGetProcAddress_v2(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* symbolStatus) {
  const CUresult result =
      PRORATA_REAL(cuGetProcAddress_v2)(symbol, pfn, cudaVersion, flags, symbolStatus);
  if (result != CUDA_SUCCESS) return result;
  Substitute(symbol, pfn, cudaVersion, flags, [&](int version, void** at) {
    return PRORATA_REAL(cuGetProcAddress_v2)(symbol, at, version, flags, nullptr);
  });
  return result;
}

CUresult cuGetProcAddress(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags) {
  const CUresult result = PRORATA_REAL(cuGetProcAddress)(symbol, pfn, cudaVersion, flags);
  if (result != CUDA_SUCCESS) return result;
  Substitute(symbol, pfn, cudaVersion, flags, [&](int version, void** at) {
    return PRORATA_REAL(cuGetProcAddress)(symbol, at, version, flags);
  });
  return result;
}
