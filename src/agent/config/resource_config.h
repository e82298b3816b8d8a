#pragma once

// Gemini's own configuration, as its scheduler reads it: one file per GPU, `resource-config.txt`.
//
//   3                                  how many clients follow
//   default/trainer 0.5 1.0 4294967296     ID REQUEST LIMIT GPU_MEM
//   default/server  0.3 0.3 2147483648
//   batch           0   0.5 1073741824
//
// A client becomes a share of that name, so an ID is what a name of a share may be (control.h); it
// may hold '/'. REQUEST and LIMIT are fractions of the GPU, GPU_MEM is bytes. A further field,
// which Gemini's own scheduler does not have, says whose programs may join beside those of the
// agent's user: users=all or users=1000,1001 (allowed_users.h), and another how many bytes of
// GPU_MEM are set aside: memory_request=1073741824. Fields are separated by spaces or tabs, lines
// end with LF or CRLF, and empty lines count for nothing. Nothing else is guessed at: a file with
// one bad line is no configuration.
//
// No I/O; thread-safe.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "api/allowed_users.h"
#include "base/fraction.h"
#include "base/result.h"

namespace prorata::agent {

inline constexpr size_t kMaxResourceConfigBytes = 1 << 20;

struct ResourceClient {
  std::string id;
  Fraction request;
  Fraction limit;
  uint64_t memory_bytes = 0;
  uint32_t line = 0;  // where it stands, from 1
  api::AllowedUsers allow_users = {};
  std::optional<uint64_t> memory_request_bytes = {};  // absent: as with other shares

  bool operator==(const ResourceClient&) const = default;
};

// "resource_config", with a message for a person that begins with "FILE:LINE: ".
Result<std::vector<ResourceClient>> ParseResourceConfig(std::string_view file,
                                                        std::string_view text);

// "FILE:LINE: why", as all that is said of a line.
std::string AtLine(std::string_view file, uint32_t line, std::string_view why);

// What `prorata agent --resource-config` is given: "UUID=FILE". "bad_resource_config".
struct ResourceConfigFile {
  std::string gpu;   // an index or a UUID
  std::string path;  // as it was given
};
Result<ResourceConfigFile> ParseResourceConfigFile(std::string_view text);

}  // namespace prorata::agent
