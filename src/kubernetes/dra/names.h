#pragma once

// What prorata is called in Kubernetes.

namespace prorata::kubernetes {

// The DRA driver, the domain of its attributes and capacities, and the class of its devices.
inline constexpr char kDriverName[] = "gpu.prorata.dev";
inline constexpr char kMemoryCapacity[] = "memory";    // bytes
inline constexpr char kComputeCapacity[] = "compute";  // hundredths of the device's time
// A taint of a GPU whose driver (NVML) has not answered for some seconds.
inline constexpr char kUnresponsiveTaint[] = "gpu.prorata.dev/driver-unresponsive";
inline constexpr char kMemorySizeAttribute[] = "memoryMiB";  // of all of the device

// The parameters of a claim (share_config.h).
inline constexpr char kConfigVersion[] = "gpu.prorata.dev/v1alpha1";
inline constexpr char kConfigKind[] = "ShareConfig";

}  // namespace prorata::kubernetes
