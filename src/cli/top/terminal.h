#pragma once

#include <memory>
#include <optional>

#include "cli/top/top_screen.h"

namespace prorata::cli {

// The terminal of standard input and output, by ncurses, from Open to destruction; then it is as it
// was. One at a time, one thread. Signals are the caller's: block SIGINT, SIGTERM, SIGTSTP and
// SIGWINCH before, with a handler for SIGTSTP (ncurses would handle them); say Leave before
// stopping, and Resized after it and when the last came.
class Terminal {
 public:
  // Null: it is none on which a screen can be drawn (TERM is unknown, or cannot move the cursor).
  static std::unique_ptr<Terminal> Open();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  int width() const;
  int height() const;
  bool utf8() const { return utf8_; }
  void Resized();
  void Leave();  // gives the terminal back, until the next Draw
  void Draw(const Screen& screen);
  // What was pressed (a character or a TopKey); nothing: nothing more. Never waits.
  std::optional<int> NextKey();

 private:
  struct Handle;
  explicit Terminal(std::unique_ptr<Handle> handle);

  std::unique_ptr<Handle> handle_;
  bool utf8_ = false;
};

}  // namespace prorata::cli
