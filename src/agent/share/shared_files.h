#pragma once

// The two kinds of memory that agent and members share, as mappings that end with their object.

#include <cstdint>
#include <string>
#include <utility>

#include "base/result.h"
#include "base/unique_fd.h"
#include "shm/limits_file.h"
#include "shm/usage_file.h"

namespace prorata::agent {

// Owns an mmap. Not thread-safe.
class Mapping {
 public:
  Mapping() = default;
  Mapping(void* address, size_t bytes) : address_(address), bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept
      : address_(std::exchange(other.address_, nullptr)), bytes_(other.bytes_) {}
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();
  void* address() const { return address_; }

 private:
  void* address_ = nullptr;
  size_t bytes_ = 0;
};

// A share's limits file, written by us alone.
class LimitsMapping {
 public:
  // A new file at `path`, all zero but for its header. "limits" if it cannot be made.
  static Result<LimitsMapping> Create(const std::string& path, const std::string& share_name);
  // The file of an agent that lived before us, in place, so that its members keep their mapping.
  // "limits" if it is not such a file of this share and this layout.
  static Result<LimitsMapping> Adopt(const std::string& path, const std::string& share_name);
  // What Create names the file until it is whole: whoever was killed there leaves it.
  static std::string BuildingName(const std::string& path);

  shm::LimitsFile* operator->() const { return get(); }
  shm::LimitsFile* get() const { return static_cast<shm::LimitsFile*>(mapping_.address()); }

 private:
  explicit LimitsMapping(Mapping mapping) : mapping_(std::move(mapping)) {}
  static Result<LimitsMapping> Map(const std::string& path, int fd);
  Mapping mapping_;
};

// A member's usage memory, which it alone writes. Nothing in it is to be trusted, and it may change
// between two reads; but it cannot shrink under us.
class UsageMapping {
 public:
  // "usage" unless `fd` is a memfd sealed against resizing, of at least the layout's size and at
  // most 64 KiB, that begins as it should.
  static Result<UsageMapping> Map(UniqueFd fd);

  // The same memory, opened for reading alone, for whoever wants to see it; opened when it is asked
  // for, and kept. -1: it cannot be.
  int Reader();

  const shm::DeviceUsage& device(uint32_t device) const {
    return static_cast<const shm::UsageFile*>(mapping_.address())->devices[device];
  }

 private:
  UsageMapping(Mapping mapping, UniqueFd fd) : mapping_(std::move(mapping)), fd_(std::move(fd)) {}
  Mapping mapping_;
  UniqueFd fd_;  // as the member sent it, until Reader has opened it again
  bool fd_only_reads_ = false;
};

}  // namespace prorata::agent
