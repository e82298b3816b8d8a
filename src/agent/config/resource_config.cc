#include "agent/config/resource_config.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "agent/config/of_gpu.h"
#include "api/control.h"

namespace prorata::agent {
namespace {

constexpr size_t kMaxShown = 80;
constexpr std::string_view kForm =
    "a client's line is ID REQUEST LIMIT GPU_MEM, and users=... or memory_request=... if need be";
constexpr std::string_view kUsers = "users=";
constexpr std::string_view kMemoryRequest = "memory_request=";

// A piece of the file for a message: one line, of a bearable length.
std::string Shown(std::string_view text) {
  std::string shown(text.substr(0, kMaxShown));
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
  }
  return "'" + shown + (text.size() > kMaxShown ? "..." : "") + "'";
}

std::vector<std::string_view> Split(std::string_view line) {
  constexpr std::string_view kBlank = " \t\r\v\f";
  std::vector<std::string_view> fields;
  size_t at = line.find_first_not_of(kBlank);
  while (at != std::string_view::npos) {
    const size_t end = std::min(line.find_first_of(kBlank, at), line.size());
    fields.push_back(line.substr(at, end - at));
    at = line.find_first_not_of(kBlank, end);
  }
  return fields;
}

template <typename Number>
bool ParseWhole(std::string_view text, Number* number) {
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(end - text.size(), end, *number);
  return !text.empty() && error == std::errc{} && at == end;
}

// A field after the four that Gemini has.
Status ReadFurther(std::string_view field, ResourceClient& client) {
  const bool again = (field.starts_with(kUsers) && !client.allow_users.Nobody()) ||
                     (field.starts_with(kMemoryRequest) && client.memory_request_bytes);
  if (again) return Fail("resource_config", "the field " + Shown(field) + " comes second");
  if (field.starts_with(kUsers) && field.size() > kUsers.size()) {
    auto allowed = api::ParseAllowedUsers(field.substr(kUsers.size()));
    if (!allowed) return Fail("resource_config", "the users: " + allowed.error().message);
    client.allow_users = std::move(*allowed);
    return {};
  }
  if (!field.starts_with(kMemoryRequest)) {
    return Fail("resource_config", "the field " + Shown(field) +
                                       " after GPU_MEM is not users=all, users=1000,1001 or "
                                       "memory_request=1073741824");
  }
  uint64_t bytes = 0;
  if (!ParseWhole(field.substr(kMemoryRequest.size()), &bytes) || bytes > client.memory_bytes) {
    return Fail("resource_config", "the " + Shown(field) +
                                       " is no number of bytes from 0 to the GPU_MEM, " +
                                       std::to_string(client.memory_bytes));
  }
  client.memory_request_bytes = bytes;
  return {};
}

// What is wrong is an error whose message lacks the place.
Result<ResourceClient> ReadClient(const std::vector<std::string_view>& fields) {
  if (fields.size() < 4 || fields.size() > 6) {
    return Fail("resource_config", "it has " + std::to_string(fields.size()) + " fields, not 4; " +
                                       std::string(kForm));
  }
  ResourceClient client;
  client.id = fields[0];
  if (auto ok = api::ValidateShareName(client.id); !ok) {
    return Fail("resource_config", "the ID " + Shown(client.id) + " is none: " +
                                       (client.id.size() > api::kMaxShareNameLength
                                            ? "it is longer than 63 characters"
                                            : "it is 1 to 63 letters, digits and . _ - /, does not "
                                              "begin with '-', and no part between slashes is "
                                              "empty, '.' or '..'"));
  }
  for (const bool is_limit : {false, true}) {
    const std::string_view text = fields[is_limit ? 2 : 1];
    const std::string what = is_limit ? "LIMIT " : "REQUEST ";
    auto fraction = ParseFraction(text);
    if (!fraction) {
      return Fail("resource_config", "the " + what + Shown(text) +
                                         " is no fraction of the GPU from 0 to 1, of at most six "
                                         "decimals, as 0.25");
    }
    (is_limit ? client.limit : client.request) = *fraction;
  }
  if (client.limit == Fraction::Zero()) {
    return Fail("resource_config",
                "the LIMIT is 0, with which '" + client.id + "' could never run");
  }
  if (client.limit < client.request) {
    return Fail("resource_config", "the LIMIT of '" + client.id + "', " +
                                       FormatFraction(client.limit) + ", is below its REQUEST, " +
                                       FormatFraction(client.request));
  }
  if (!ParseWhole(fields[3], &client.memory_bytes) || client.memory_bytes == 0 ||
      client.memory_bytes > uint64_t{1} << 62) {
    return Fail("resource_config", "the GPU_MEM " + Shown(fields[3]) +
                                       " is no number of bytes above 0, as 1073741824");
  }
  for (size_t i = 4; i < fields.size(); ++i) {
    if (auto ok = ReadFurther(fields[i], client); !ok) return std::unexpected(ok.error());
  }
  return client;
}

// The clients of a file as they are read, line by line.
struct Reading {
  std::vector<ResourceClient> clients;
  std::map<std::string, uint32_t, std::less<>> lines;
  uint64_t requests_ppm = 0;

  Status Add(ResourceClient client) {
    const auto [known, is_new] = lines.emplace(client.id, client.line);
    if (!is_new) {
      return Fail("resource_config", "the ID '" + client.id + "' is that of line " +
                                         std::to_string(known->second) + ", too");
    }
    requests_ppm += client.request.ppm;
    if (requests_ppm > Fraction::kOne) {
      return Fail("resource_config", "with the REQUEST of '" + client.id +
                                         "' all of them add up to " +
                                         FormatFraction({static_cast<uint32_t>(requests_ppm)}) +
                                         ", above 1: there is one GPU");
    }
    if (clients.size() == api::kMaxShares) {
      return Fail("resource_config", "it is one client more than the " +
                                         std::to_string(api::kMaxShares) +
                                         " that an agent can hold");
    }
    clients.push_back(std::move(client));
    return {};
  }
};

}  // namespace

std::string AtLine(std::string_view file, uint32_t line, std::string_view why) {
  return std::string(file) + ":" + std::to_string(line) + ": " + std::string(why);
}

Result<std::vector<ResourceClient>> ParseResourceConfig(std::string_view file,
                                                        std::string_view text) {
  auto bad = [file](uint32_t line, std::string_view why) {
    return Fail("resource_config", AtLine(file, line, why));
  };
  if (text.size() > kMaxResourceConfigBytes) {
    return bad(1, "the file is larger than 1 MiB, which no list of clients is");
  }
  Reading reading;
  uint32_t line_number = 0;
  uint32_t count_line = 0;
  uint32_t count = 0;
  for (size_t from = 0; from < text.size();) {
    const size_t end = std::min(text.find('\n', from), text.size());
    const auto fields = Split(text.substr(from, end - from));
    from = end + 1;
    ++line_number;
    if (fields.empty()) continue;
    if (count_line == 0) {
      if (fields.size() != 1 || !ParseWhole(fields[0], &count)) {
        return bad(line_number,
                   Shown(fields[0]) +
                       " is not the number of clients, which stands alone in the first "
                       "line");
      }
      count_line = line_number;
      continue;
    }
    auto client = ReadClient(fields);
    if (!client) return bad(line_number, client.error().message);
    client->line = line_number;
    if (auto ok = reading.Add(std::move(*client)); !ok) {
      return bad(line_number, ok.error().message);
    }
  }
  if (count_line == 0) return bad(1, "the file is empty; its first line is the number of clients");
  if (count != reading.clients.size()) {
    return bad(count_line, "it says " + std::to_string(count) + " clients, but " +
                               std::to_string(reading.clients.size()) + " follow");
  }
  return std::move(reading.clients);
}

Result<ResourceConfigFile> ParseResourceConfigFile(std::string_view text) {
  const auto split = SplitOfGpu(text);
  if (!split || split->gpu.empty() || split->value.empty()) {
    return Fail("bad_resource_config",
                Shown(text) +
                    " is not a GPU and its file; write for example "
                    "GPU-8a6c...=/etc/gemini/resource-config.txt, or 0=FILE for GPU 0");
  }
  return ResourceConfigFile{split->gpu, std::string(split->value)};
}

}  // namespace prorata::agent
