#pragma once

#include <string>

namespace prorata::kubernetes {

// Base64 without line breaks. Pure; thread-safe.
std::string EncodeBase64(const std::string& bytes);

}  // namespace prorata::kubernetes
