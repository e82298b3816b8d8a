#pragma once

#include <string>

namespace prorata::cli {

// `text` on one line, without what a terminal would act on.
std::string OneLine(const std::string& text);

}  // namespace prorata::cli
