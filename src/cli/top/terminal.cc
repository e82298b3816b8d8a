#include "cli/top/terminal.h"

#include <langinfo.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <cstring>

#define NCURSES_NOMACROS  // its functions, not macros named erase, move and the like
#include <curses.h>
#include <term.h>
#undef lines
#undef columns

namespace prorata::cli {
namespace {

constexpr int kEscapeDelayMs = 25;  // how long the rest of an arrow key may take

enum Pair : short { kGoodPair = 1, kWarnPair = 2, kBadPair = 3 };

attr_t AttributesOf(Style style, bool colors) {
  const auto color = [colors](short pair) {
    return colors ? static_cast<attr_t>(COLOR_PAIR(pair)) : attr_t{A_NORMAL};
  };
  switch (style) {
    case Style::kPlain:
      return A_NORMAL;
    case Style::kBold:
      return A_BOLD;
    case Style::kDim:
      return A_DIM;
    case Style::kHeader:
      return A_REVERSE;
    case Style::kSorted:
      return A_REVERSE | A_BOLD;
    case Style::kGood:
      return color(kGoodPair);
    case Style::kWarn:
      return color(kWarnPair);
    case Style::kBad:
      return color(kBadPair) | A_BOLD;
  }
  return A_NORMAL;
}

}  // namespace

struct Terminal::Handle {
  ::SCREEN* screen = nullptr;
  bool colors = false;
};

std::unique_ptr<Terminal> Terminal::Open() {
  std::setlocale(LC_CTYPE, "");  // by which ncurses writes what is not ASCII
  auto handle = std::make_unique<Handle>();
  handle->screen = ::newterm(nullptr, stdout, stdin);
  if (handle->screen == nullptr) return nullptr;
  std::unique_ptr<Terminal> terminal(new Terminal(std::move(handle)));
  const char* move_cursor = ::tigetstr("cup");
  const bool movable = move_cursor != nullptr && move_cursor != reinterpret_cast<char*>(-1);
  return movable ? std::move(terminal) : nullptr;
}

Terminal::Terminal(std::unique_ptr<Handle> handle)
    : handle_(std::move(handle)), utf8_(std::strcmp(::nl_langinfo(CODESET), "UTF-8") == 0) {
  ::cbreak();
  ::noecho();
  ::curs_set(0);
  ::keypad(stdscr, TRUE);
  ::nodelay(stdscr, TRUE);
  ::set_escdelay(kEscapeDelayMs);
  if (!::has_colors()) return;
  handle_->colors = ::start_color() == OK && ::use_default_colors() == OK;
  ::init_pair(kGoodPair, COLOR_GREEN, -1);
  ::init_pair(kWarnPair, COLOR_YELLOW, -1);
  ::init_pair(kBadPair, COLOR_RED, -1);
}

Terminal::~Terminal() {
  ::endwin();
  ::delscreen(handle_->screen);
}

int Terminal::width() const { return getmaxx(stdscr); }
int Terminal::height() const { return getmaxy(stdscr); }

void Terminal::Resized() {
  struct winsize size = {};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row == 0 || size.ws_col == 0) {
    return;
  }
  ::resizeterm(size.ws_row, size.ws_col);
  ::clearok(stdscr, TRUE);  // what the window did with the old lines is not known
}

void Terminal::Leave() { ::endwin(); }

void Terminal::Draw(const Screen& screen) {
  ::werase(stdscr);
  for (size_t y = 0; y < screen.lines.size(); ++y) {
    ::wmove(stdscr, static_cast<int>(y), 0);
    for (const Span& span : screen.lines[y]) {
      ::wattrset(stdscr, static_cast<int>(AttributesOf(span.style, handle_->colors)));
      ::waddnstr(stdscr, span.text.data(), static_cast<int>(span.text.size()));
    }
  }
  ::wattrset(stdscr, A_NORMAL);
  ::wrefresh(stdscr);
}

std::optional<int> Terminal::NextKey() {
  for (;;) {
    const int key = ::wgetch(stdscr);
    switch (key) {
      case ERR:
        return std::nullopt;
      case KEY_RESIZE:
        continue;  // Resized says so
      case KEY_UP:
        return kTopKeyUp;
      case KEY_DOWN:
        return kTopKeyDown;
      case KEY_PPAGE:
        return kTopKeyPageUp;
      case KEY_NPAGE:
        return kTopKeyPageDown;
      case KEY_HOME:
        return kTopKeyHome;
      case KEY_END:
        return kTopKeyEnd;
      default:
        if (key < 0x100) return key;
    }
  }
}

}  // namespace prorata::cli
