#include "agent/testing/testing_share.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <new>
#include <utility>

#include "base/check.h"

namespace prorata::agent::testing {

Share& TestShares::Add(const std::string& name, std::vector<size_t> devices,
                       uint64_t memory_bytes) {
  ShareConfig config;
  config.name = name;
  for (const size_t device : devices) {
    api::ShareTerms terms;
    terms.memory_bytes = memory_bytes;
    terms.memory_request_bytes = memory_bytes;
    config.devices.push_back(OnDevice(device, std::string(kUuid) + std::to_string(device), terms));
  }
  auto limits = LimitsMapping::Create(folder_.path() + "/" + name, name);
  PRORATA_CHECK(limits.has_value());
  Share& share = shares_.Add(std::move(config), std::move(*limits));
  share.WriteLimits(std::vector<uint64_t>(devices.size()), false);
  return share;
}

Member* TestShares::Join(Share& share, pid_t pid, TestUsage* usage) {
  Member* member = share.Admit({pid, static_cast<uint64_t>(pid)});
  if (member == nullptr) return nullptr;
  UniqueFd fd(::memfd_create("usage", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  PRORATA_CHECK(::ftruncate(fd.get(), sizeof(shm::UsageFile)) == 0);
  ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  void* page =
      ::mmap(nullptr, sizeof(shm::UsageFile), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  PRORATA_CHECK(page != MAP_FAILED);
  usage->file = new (page) shm::UsageFile();
  usage->file->header = {.magic = shm::kUsageMagic,
                         .version = shm::kUsageVersion,
                         .size_bytes = sizeof(shm::UsageFile),
                         .reserved = {}};
  auto mapping = UsageMapping::Map(std::move(fd));
  PRORATA_CHECK(mapping.has_value());
  share.SetUsage(*member, std::move(*mapping));
  return member;
}

}  // namespace prorata::agent::testing
