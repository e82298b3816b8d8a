#include "cli/text/one_line.h"

namespace prorata::cli {

std::string OneLine(const std::string& text) {
  std::string line = text;
  for (char& c : line) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\n' || c == '\t') c = ' ';
    if ((byte < 0x20 && c != ' ') || byte == 0x7f) c = '?';
  }
  return line;
}

}  // namespace prorata::cli
