#include "client/code/image_variables.h"

#include <elf.h>

#include "client/memory/allocations.h"
#include "client/memory/saturated.h"

namespace prorata::client {
namespace {

constexpr uint16_t kMachineCuda = 190;

struct Declared {
  uint64_t large = 0, small = 0;

  void Add(uint64_t bytes) {
    bytes = bytes > kMost ? kMost : bytes;
    uint64_t& of = bytes < kSlabBytes / 2 ? small : large;
    of += RoundUp(bytes, bytes < kSlabBytes / 2 ? 256 : kSlabBytes);
    if (of > kMost) of = kMost;
  }
  // Small ones fill at least half of each slab but the last.
  uint64_t Slabs() const { return large + RoundUp(small < kMost ? 2 * small : small, kSlabBytes); }
};

bool IsWordChar(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '$' || c == '%' || c == '.';
}

bool Is(const char* word, uint64_t length, const char* what) {
  uint64_t i = 0;
  while (i < length && what[i] == word[i]) ++i;
  return i == length && what[i] == '\0';
}

bool Begins(const char* name, uint64_t room, const char* with) {
  uint64_t i = 0;
  while (i < room && with[i] != '\0' && with[i] == name[i]) ++i;
  return with[i] == '\0';
}

// A number as PTX writes it, as far as it goes.
uint64_t Number(const char* at) {
  uint64_t base = 10;
  if (at[0] == '0') {
    base = 8;
    ++at;
    if (*at == 'x' || *at == 'X') base = 16, ++at;
    if (*at == 'b' || *at == 'B') base = 2, ++at;
  }
  uint64_t value = 0;
  for (;; ++at) {
    uint64_t digit = 16;
    if (*at >= '0' && *at <= '9') digit = static_cast<uint64_t>(*at - '0');
    if (*at >= 'a' && *at <= 'f') digit = static_cast<uint64_t>(*at - 'a') + 10;
    if (*at >= 'A' && *at <= 'F') digit = static_cast<uint64_t>(*at - 'A') + 10;
    if (digit >= base) return value;
    value = Times(value, base) + digit;
  }
}

// Words, punctuation marks and strings of PTX text, without its comments.
class Tokens {
 public:
  explicit Tokens(const char* text) : at_(text) {}

  const char* start = nullptr;
  uint64_t length = 0;

  bool Next() {
    SkipBlanks();
    start = at_;
    if (*at_ == '\0') return false;
    if (*at_ == '"') {
      for (++at_; *at_ != '\0' && *at_ != '"'; ++at_) {
        if (*at_ == '\\' && at_[1] != '\0') ++at_;
      }
      if (*at_ == '"') ++at_;
    } else if (IsWordChar(*at_)) {
      while (IsWordChar(*at_)) ++at_;
    } else {
      ++at_;
    }
    length = static_cast<uint64_t>(at_ - start);
    return true;
  }
  bool Are(const char* what) const { return Is(start, length, what); }

 private:
  void SkipBlanks() {
    for (;;) {
      if (*at_ == ' ' || (*at_ >= '\t' && *at_ <= '\r')) {
        ++at_;
      } else if (at_[0] == '/' && at_[1] == '/') {
        while (*at_ != '\0' && *at_ != '\n') ++at_;
      } else if (at_[0] == '/' && at_[1] == '*') {
        for (at_ += 2; *at_ != '\0' && !(at_[0] == '*' && at_[1] == '/');) ++at_;
        if (*at_ != '\0') at_ += 2;
      } else {
        return;
      }
    }
  }
  const char* at_;
};

// Of `.b8`, `.f32x2`, ... and of what a type may not be known for: the largest.
uint64_t TypeBytes(const Tokens& type) {
  if (type.length < 2 || type.start[0] != '.') return 0;
  const char kind = type.start[1];
  if (kind != 'b' && kind != 'u' && kind != 's' && kind != 'f') return 0;
  const uint64_t bits = Number(type.start + 2);
  return bits == 0 || bits > 128 ? 16 : (bits + 7) / 8;
}

// After `.global`, up to the semicolon: `.align 4 .v2 .b8 name[2][3] = {...}, other`.
void AddDeclaration(Tokens& tokens, Declared* sum) {
  uint64_t type = 16, vector = 1, elements = 1, initial = 1;
  uint64_t depth = 0;  // of parentheses and braces
  bool typed = false, open = false, counted = false, unsized = false, initialises = false;
  const auto finish = [&] {
    sum->Add(Times(Times(type, vector), unsized ? Times(elements, initial) : elements));
    elements = initial = 1;
    unsized = initialises = false;
  };
  while (tokens.Next()) {
    const char c = *tokens.start;
    if (c == '(' || c == '{') ++depth;
    if ((c == ')' || c == '}') && depth > 0) --depth;
    if (depth > 0) {
      initial += initialises && c == ',';
    } else if (c == ';') {
      return finish();
    } else if (c == ',') {
      finish();
    } else if (c == '=') {
      initialises = true;
    } else if (initialises) {
      continue;
    } else if (c == '[') {
      open = true;
      counted = false;
    } else if (c == ']') {
      open = false;
      unsized |= !counted;
    } else if (open) {
      counted = true;
      elements = Times(elements, c >= '0' && c <= '9' ? Number(tokens.start) : 1);
    } else if (tokens.Are(".v2") || tokens.Are(".v4") || tokens.Are(".v8")) {
      vector = static_cast<uint64_t>(tokens.start[2] - '0');
    } else if (const uint64_t bytes = typed ? 0 : TypeBytes(tokens); bytes != 0) {
      type = bytes;
      typed = true;
    }
  }
}

// `.global` or `.const` as a word by itself begins a declaration; an instruction has it in the
// middle of one
// (`ld.global.u32`), and a parameter's pointer says it after `.ptr`.
uint64_t OfPtx(const char* text) {
  Declared sum;
  bool pointer = false;
  for (Tokens tokens(text); tokens.Next();) {
    if ((tokens.Are(".global") || tokens.Are(".const")) && !pointer) AddDeclaration(tokens, &sum);
    pointer = tokens.Are(".ptr");
  }
  return sum.Slabs();
}

// .nv.global, .nv.global.init and .nv.constant3; not what is of a kernel: .nv.constant0, .nv.shared
// and .nv.local.
uint64_t OfCubin(const uint8_t* image) {
  Elf64_Ehdr header;
  __builtin_memcpy(&header, image, sizeof header);
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != kMachineCuda ||
      header.e_shoff == 0 || header.e_shentsize != sizeof(Elf64_Shdr) ||
      header.e_shstrndx >= header.e_shnum) {
    return 0;
  }
  const auto section = [&](uint32_t number) {
    Elf64_Shdr out;
    __builtin_memcpy(&out, image + header.e_shoff + number * sizeof out, sizeof out);
    return out;
  };
  const Elf64_Shdr names = section(header.e_shstrndx);
  if (names.sh_type != SHT_STRTAB) return 0;
  Declared sum;
  for (uint32_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr found = section(i);
    if (found.sh_name >= names.sh_size) continue;
    const auto* name = reinterpret_cast<const char*>(image + names.sh_offset + found.sh_name);
    const uint64_t room = names.sh_size - found.sh_name;
    if (Begins(name, room, ".nv.global") || Begins(name, room, ".nv.constant3")) {
      sum.Add(found.sh_size);
    }
  }
  return sum.Slabs();
}

}  // namespace

uint64_t VariableBytes(const void* image) {
  const auto* bytes = static_cast<const uint8_t*>(image);
  if (bytes == nullptr || bytes[0] == '\0') return 0;
  if (bytes[0] == 0x7f) {
    return bytes[1] == 'E' && bytes[2] == 'L' && bytes[3] == 'F' ? OfCubin(bytes) : 0;
  }
  // Those of fatbins and their wrappers begin with bytes that no text has.
  if (bytes[0] == 0x50 && bytes[1] == 0xed) return 0;
  if (bytes[0] == 0xb1 && bytes[1] == 0x43) return 0;
  return OfPtx(static_cast<const char*>(image));
}

}  // namespace prorata::client
