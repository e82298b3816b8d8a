#include "sim/cuda/module/ptx_text.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string>
#include <vector>

namespace prorata::simgpu::driver {
namespace {

bool IsNameChar(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%';
}

// Words (with a leading dot for directives), numbers and single punctuation; comments and string
// literals are skipped.
class Tokens {
 public:
  explicit Tokens(std::string_view text) : text_(text) {}

  std::string_view Next() {
    Skip();
    if (at_ >= text_.size() || text_[at_] == '\0') return {};
    const size_t start = at_++;
    const char first = text_[start];
    if (first == '"') {
      while (at_ < text_.size() && text_[at_] != '"') ++at_;
      if (at_ < text_.size()) ++at_;
    } else if (first == '.' || IsNameChar(first)) {
      while (at_ < text_.size() && IsNameChar(text_[at_])) ++at_;
    }
    return text_.substr(start, at_ - start);
  }

 private:
  void Skip() {
    while (at_ < text_.size()) {
      if (std::isspace(static_cast<unsigned char>(text_[at_]))) {
        ++at_;
      } else if (text_.substr(at_, 2) == "//") {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (text_.substr(at_, 2) == "/*") {
        const size_t end = text_.find("*/", at_ + 2);
        at_ = end == std::string_view::npos ? text_.size() : end + 2;
      } else {
        return;
      }
    }
  }

  std::string_view text_;
  size_t at_ = 0;
};

uint32_t TypeBytes(std::string_view directive) {
  // .u32, .b8, .f64, .s16, .pred ...: the digits are bits.
  size_t digits = directive.size();
  while (digits > 0 && std::isdigit(static_cast<unsigned char>(directive[digits - 1]))) --digits;
  if (digits == directive.size()) return 0;
  return static_cast<uint32_t>(std::strtoul(directive.data() + digits, nullptr, 10)) / 8;
}

uint64_t Number(std::string_view token) {
  return std::strtoull(std::string(token).c_str(), nullptr, 0);
}

struct Declaration {
  std::string_view name;
  uint64_t bytes = 0;
  uint64_t alignment = 1;
  bool managed = false;
  std::string_view last;  // the token that ended it
};

// What follows ".param" or ".global": directives, a name, dimensions, perhaps an initializer.
Declaration ReadDeclaration(Tokens* tokens) {
  Declaration out;
  uint64_t element = 1;
  uint64_t count = 1;
  uint64_t alignment = 0;
  bool pointee = false;  // behind .ptr, attributes are of what the parameter points at
  std::string_view token = tokens->Next();
  for (; !token.empty() && token[0] == '.'; token = tokens->Next()) {
    if (token == ".ptr") {
      pointee = true;
    } else if (token == ".attribute") {
      while (!token.empty() && token != ")") {
        if (token == ".managed") out.managed = true;
        token = tokens->Next();
      }
    } else if (token == ".align") {
      const uint64_t value = Number(tokens->Next());
      if (!pointee) alignment = value;
    } else if (token == ".v2" || token == ".v4") {
      count *= token == ".v2" ? 2 : 4;
    } else if (uint32_t bytes = TypeBytes(token)) {
      element = bytes;
    }
  }
  if (!token.empty() && (IsNameChar(token[0]))) {
    out.name = token;
    token = tokens->Next();
  }
  while (token == "[") {
    token = tokens->Next();
    if (token != "]") {
      count *= Number(token);
      token = tokens->Next();
    }
    token = tokens->Next();
  }
  out.bytes = element * count;
  out.alignment = alignment ? alignment : element;
  out.last = token;
  return out;
}

void ReadEntry(Tokens* tokens, Image* image) {
  const std::string_view name = tokens->Next();
  std::vector<ImageKernel::Parameter> parameters;
  uint64_t offset = 0;
  std::string_view token = tokens->Next();
  while (token == "(" || token == ",") {
    token = tokens->Next();
    if (token != ".param") break;
    const Declaration parameter = ReadDeclaration(tokens);
    offset = (offset + parameter.alignment - 1) / parameter.alignment * parameter.alignment;
    parameters.push_back({static_cast<uint32_t>(offset), static_cast<uint32_t>(parameter.bytes)});
    offset += parameter.bytes;
    token = parameter.last;
  }
  ImageKernel* kernel = name.empty() ? nullptr : image->AddKernel(name);
  if (!kernel) return;
  kernel->parameters = std::move(parameters);
  kernel->parameters_known = true;
}

}  // namespace

bool LooksLikePtx(const char* text) {
  while (std::isspace(static_cast<unsigned char>(*text))) ++text;
  return (text[0] == '/' && (text[1] == '/' || text[1] == '*')) || text[0] == '.';
}

void ReadPtx(std::string_view text, Image* image) {
  Tokens tokens(text);
  int depth = 0;
  for (std::string_view token = tokens.Next(); !token.empty(); token = tokens.Next()) {
    if (token == "{") ++depth;
    if (token == "}") --depth;
    if (depth != 0) continue;
    if (token == ".entry") {
      ReadEntry(&tokens, image);
    } else if (token == ".global" || token == ".const") {
      const Declaration global = ReadDeclaration(&tokens);
      const bool known = std::any_of(image->globals.begin(), image->globals.end(),
                                     [&](const ImageGlobal& g) { return g.name == global.name; });
      if (!global.name.empty() && !known) {
        image->globals.push_back({std::string(global.name), global.bytes, global.managed});
      }
    }
  }
}

}  // namespace prorata::simgpu::driver
