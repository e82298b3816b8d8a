#include <cstring>

#include "client/session/share.h"

namespace prorata::client {
namespace {

using shm::LimitsFile;

bool Append(char* out, size_t capacity, const char* text) {
  const size_t used = std::strlen(out), bytes = std::strlen(text);
  const bool comma = used != 0;
  if (used + comma + bytes + 1 > capacity) return false;
  if (comma) out[used] = ',';
  std::memcpy(out + used + comma, text, bytes + 1);
  return true;
}

// One entry of the program's own list: an index into the share's devices, or the beginning of a
// UUID that fits one of them only. kNoDevice ends the list, as the driver does with what it cannot
// read.
uint32_t Select(const LimitsFile& limits, const char* entry, size_t bytes) {
  if (bytes == 0) return kNoDevice;
  uint32_t index = 0;
  size_t digits = 0;
  while (digits < bytes && entry[digits] >= '0' && entry[digits] <= '9' && index < 1000) {
    index = index * 10 + static_cast<uint32_t>(entry[digits++] - '0');
  }
  if (digits == bytes) return index < limits.header.device_count ? index : kNoDevice;
  uint32_t found = kNoDevice;
  for (uint32_t i = 0; i < limits.header.device_count; ++i) {
    if (bytes >= sizeof limits.devices[i].uuid ||
        std::strncmp(limits.devices[i].uuid, entry, bytes) != 0) {
      continue;
    }
    if (found != kNoDevice) return kNoDevice;
    found = i;
  }
  return found;
}

int Hex(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

bool ParseUuid(const char* text, uint8_t out[16]) {
  if (std::strncmp(text, "GPU-", 4) != 0 && std::strncmp(text, "MIG-", 4) != 0) return false;
  text += 4;
  for (int i = 0; i < 16; ++i) {
    if (*text == '-' && (i == 4 || i == 6 || i == 8 || i == 10)) ++text;
    const int high = Hex(text[0]);
    const int low = high < 0 ? -1 : Hex(text[1]);
    if (low < 0) return false;
    out[i] = static_cast<uint8_t>(high * 16 + low);
    text += 2;
  }
  return *text == 0;
}

bool ComposeVisibleDevices(const LimitsFile& limits, const char* own, char* out, size_t capacity) {
  out[0] = 0;
  if (own == nullptr) {
    for (uint32_t i = 0; i < limits.header.device_count; ++i) {
      if (!Append(out, capacity, limits.devices[i].uuid)) return false;
    }
    return true;
  }
  while (*own != 0) {
    while (*own == ' ') ++own;
    size_t bytes = std::strcspn(own, ",");
    const char* next = own + bytes + (own[bytes] == ',');
    while (bytes != 0 && own[bytes - 1] == ' ') --bytes;
    const uint32_t index = Select(limits, own, bytes);
    if (index == kNoDevice) break;
    if (!Append(out, capacity, limits.devices[index].uuid)) return false;
    own = next;
  }
  return true;
}

}  // namespace prorata::client
