#pragma once

// The certificate of a webhook. Thread-safe.

#include <string>
#include <vector>

#include "base/result.h"

namespace prorata::kubernetes {

struct Certificate {
  std::string certificate_pem;
  std::string key_pem;
};

// One that signs itself, for these names (of hosts, or IP addresses), good for ten years from an
// hour ago. "certificate": OpenSSL's reason.
Result<Certificate> MakeCertificate(const std::vector<std::string>& names);

// "certificate": a file cannot be read.
Result<Certificate> ReadCertificate(const std::string& certificate_file,
                                    const std::string& key_file);

}  // namespace prorata::kubernetes
