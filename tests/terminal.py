"""A program on a terminal: a pseudo-terminal, and what it would show of the bytes that come.

    with Terminal([PRORATA, "top"], environment, columns=80, rows=24) as terminal:
        terminal.wait_for("GPU 0")
        terminal.press("q")
        status = terminal.wait()

It knows the control sequences of xterm that ncurses uses, and fails on any other.
"""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

import harness

_SEQUENCE = re.compile(r"\x1b(?:\[([?>]?)([0-9;]*)([@-~])|[()][A-Z0-9]|[=>78cM])")
# Modes, colours and what is asked of the terminal: nothing that moves text.
_WITHOUT_EFFECT = set("hlmnctq")


class Screen:
    """The text of the window."""

    def __init__(self, columns, rows):
        self._rest = ""
        self.modes = set()  # private modes that are on, as "1049" (the other screen) and "25"
        self.resize(columns, rows)

    def resize(self, columns, rows):
        self.columns, self.rows = columns, rows
        self.clear()

    def clear(self):
        self._cells = [[" "] * self.columns for _ in range(self.rows)]
        self._x = self._y = 0
        self._last = " "
        self._top, self._bottom = 0, self.rows - 1

    def text(self):
        return "\n".join("".join(row).rstrip() for row in self._cells)

    def feed(self, text):
        text, self._rest = self._rest + text, ""
        at = 0
        while at < len(text):
            if text[at] != "\x1b":
                self._put(text[at])
                at += 1
                continue
            found = _SEQUENCE.match(text, at)
            if not found:
                if len(text) - at < 32:
                    self._rest = text[at:]  # the rest is on its way
                    return
                raise AssertionError(f"an unknown control sequence: {text[at:at + 32]!r}")
            at = found.end()
            if found.group(3):
                self._control(found.group(1), found.group(2), found.group(3))

    def _put(self, character):
        if character == "\r":
            self._x = 0
        elif character == "\n":
            self._line_feed()
        elif character == "\b":
            self._x = max(0, self._x - 1)
        elif character >= " ":
            if self._x >= self.columns:  # the margin is left when the next character comes
                self._x = 0
                self._line_feed()
            if self._y < self.rows:
                self._cells[self._y][self._x] = character
            self._x += 1
            self._last = character

    def _line_feed(self):
        if self._y == self._bottom:
            self._scroll(self._top, 1)
        else:
            self._y = min(self.rows - 1, self._y + 1)

    def _scroll(self, top, count):
        """Lines from `top` to the margin go up by so many, or down."""
        for _ in range(abs(count)):
            if count > 0:
                del self._cells[top]
                self._cells.insert(self._bottom, [" "] * self.columns)
            else:
                del self._cells[self._bottom]
                self._cells.insert(top, [" "] * self.columns)

    def _control(self, private, numbers, final):
        given = [int(n) if n else 0 for n in numbers.split(";")] if numbers else []
        first = given[0] if given else 0
        count = max(1, first)
        row = self._cells[min(self._y, self.rows - 1)]
        if private:
            for mode in given:
                (self.modes.add if final == "h" else self.modes.discard)(str(mode))
        elif final in "Hf":
            self._y = min(self.rows, count) - 1
            self._x = min(self.columns, max(1, given[1] if len(given) > 1 else 1)) - 1
        elif final == "d":
            self._y = min(self.rows, count) - 1
        elif final == "G":
            self._x = min(self.columns, count) - 1
        elif final in "ABCD":
            self._x += {"C": count, "D": -count}.get(final, 0)
            self._y += {"A": -count, "B": count}.get(final, 0)
            self._x = min(self.columns - 1, max(0, self._x))
            self._y = min(self.rows - 1, max(0, self._y))
        elif final == "J":
            self._erase_line(first)
            for y in range(self.rows):
                if first == 2 or (first == 0 and y > self._y) or (first == 1 and y < self._y):
                    self._cells[y] = [" "] * self.columns
        elif final == "K":
            self._erase_line(first)
        elif final == "X":
            row[self._x:self._x + count] = [" "] * len(row[self._x:self._x + count])
        elif final == "P":
            del row[self._x:self._x + count]
            row.extend([" "] * (self.columns - len(row)))
        elif final == "@":
            row[self._x:self._x] = [" "] * count
            del row[self.columns:]
        elif final == "b":
            for _ in range(count):
                self._put(self._last)
        elif final in "LM":
            self._scroll(self._y, count if final == "M" else -count)
        elif final in "ST":
            self._scroll(self._top, count if final == "S" else -count)
        elif final == "r":
            self._top = count - 1
            self._bottom = (given[1] if len(given) > 1 else self.rows) - 1
            self._x = self._y = 0
        elif final not in _WITHOUT_EFFECT:
            raise AssertionError(f"an unknown control sequence: {numbers}{final}")

    def _erase_line(self, what):
        row = self._cells[min(self._y, self.rows - 1)]
        start = 0 if what else self._x
        end = self._x + 1 if what == 1 else self.columns
        row[start:end] = [" "] * len(row[start:end])


class Terminal:
    def __init__(self, command, environment, columns=80, rows=24):
        self.screen = Screen(columns, rows)
        self._master, self._slave = pty.openpty()  # the slave stays open: its modes are asked later
        self._set_size()
        self.modes_before = termios.tcgetattr(self._slave)
        self._process = subprocess.Popen(
            [str(part) for part in command], env={"TERM": "xterm", **environment},
            stdin=self._slave, stdout=self._slave, stderr=self._slave, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        os.close(self._master)
        os.close(self._slave)

    @property
    def pid(self):
        return self._process.pid

    def _set_size(self):
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ,
                    struct.pack("HHHH", self.screen.rows, self.screen.columns, 0, 0))

    def resize(self, columns, rows):
        """As a window does it: what it showed is no more, and the program is told by SIGWINCH."""
        self.read()
        self.screen.resize(columns, rows)
        self._set_size()
        self._process.send_signal(signal.SIGWINCH)

    def press(self, keys):
        os.write(self._master, keys.encode())

    def read(self, wait_s=0.0):
        """Takes what the program has written."""
        while select.select([self._master], [], [], wait_s)[0]:
            wait_s = 0
            self.screen.feed(os.read(self._master, 65536).decode(errors="replace"))

    def text(self):
        self.read()
        return self.screen.text()

    def wait_until(self, condition, what, deadline_s=harness.DEADLINE_S):
        """Until condition(text) of what is shown; returns the text."""
        end = time.monotonic() + deadline_s
        while True:
            text = self.text()
            if condition(text):
                return text
            if time.monotonic() > end:
                raise AssertionError(f"{what} was not shown within {deadline_s} s, but:\n{text}")
            self.read(0.05)

    def wait_for(self, part, deadline_s=harness.DEADLINE_S):
        return self.wait_until(lambda text: part in text, repr(part), deadline_s)

    def wait(self):
        """The exit status."""
        end = time.monotonic() + harness.DEADLINE_S
        while self._process.poll() is None:
            self.read(0.05)  # a full pseudo-terminal would hold it up
            if time.monotonic() > end:
                raise AssertionError(f"the program did not end; its screen:\n{self.text()}")
        self.read()
        return self._process.returncode

    def modes(self):
        return termios.tcgetattr(self._slave)
