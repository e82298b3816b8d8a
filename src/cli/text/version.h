#pragma once

namespace prorata::cli {

inline constexpr const char* kVersion = PRORATA_VERSION_TEXT;  // from the file VERSION, by CMake

}  // namespace prorata::cli
