"""A program on a terminal: pexpect starts and drives it, pyte keeps what its screen would show.

    with Terminal([PRORATA, "top"], environment, columns=80, rows=24) as terminal:
        terminal.wait_for("GPU 0")
        terminal.press("q")
        status = terminal.wait()
"""
import contextlib
import os
import pty
import termios
import time

import pexpect
import pyte

import harness


class Screen(pyte.Screen):
    """With what else ncurses sends to an xterm. A control sequence that pyte does not know is a
    failure: its screen would be wrong."""

    def draw(self, data):
        super().draw(data)
        self._last = data[-1:]

    def repeat(self, count=1):
        self.draw(self._last * max(1, count))

    def _from_row(self, row, move, count):
        before, self.cursor.y = self.cursor.y, row
        for _ in range(max(1, count)):
            move()
        self.cursor.y = before

    def scroll_up(self, count=1):
        bottom = self.margins.bottom if self.margins else self.lines - 1
        self._from_row(bottom, self.index, count)

    def scroll_down(self, count=1):
        self._from_row(self.margins.top if self.margins else 0, self.reverse_index, count)

    def no_text(self, *_):
        """The keypad's modes, the window's title: nothing that moves text."""

    def debug(self, *numbers, **_):
        raise AssertionError(f"a control sequence that the test's terminal does not know: {numbers}")


class Stream(pyte.ByteStream):
    csi = {**pyte.ByteStream.csi, "b": "repeat", "S": "scroll_up", "T": "scroll_down",
           "t": "no_text"}
    escape = {**pyte.ByteStream.escape, "=": "no_text", ">": "no_text"}
    events = pyte.ByteStream.events | {"repeat", "scroll_up", "scroll_down", "no_text"}


def _modes_of_a_new_terminal():
    master, slave = pty.openpty()
    try:
        return termios.tcgetattr(slave)
    finally:
        os.close(master)
        os.close(slave)


class Terminal:
    def __init__(self, command, environment, columns=80, rows=24):
        self._screen = Screen(columns, rows)
        self._stream = Stream(self._screen)
        self._ended = False
        self.modes_before = _modes_of_a_new_terminal()
        # A window's size is the terminal's to say; where these are set, ncurses believes them.
        environment = {"TERM": "xterm", **environment}
        for name in ("COLUMNS", "LINES"):
            environment.pop(name, None)
        program, *arguments = map(str, command)
        self._child = pexpect.spawn(program, arguments, env=environment, dimensions=(rows, columns),
                                    timeout=harness.DEADLINE_S)
        self._child.delaybeforesend = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._child.close(force=True)

    @property
    def pid(self):
        return self._child.pid

    def resize(self, columns, rows):
        """As a window does it: what it showed is no more, and the program gets SIGWINCH."""
        self._read()
        self._screen.resize(rows, columns)
        self._screen.erase_in_display(2)
        self._child.setwinsize(rows, columns)

    def press(self, keys):
        self._child.send(keys)

    def _read(self, wait_s=0):
        """Takes what the program has written."""
        with contextlib.suppress(pexpect.TIMEOUT):
            try:
                while True:
                    self._stream.feed(self._child.read_nonblocking(65536, wait_s))
                    wait_s = 0
            except pexpect.EOF:
                self._ended = True

    def text(self):
        self._read()
        return "\n".join(line.rstrip() for line in self._screen.display)

    def wait_until(self, condition, what, deadline_s=harness.DEADLINE_S):
        """Until condition(text) of what is shown; returns the text."""
        end = time.monotonic() + deadline_s
        while True:
            text = self.text()
            if condition(text):
                return text
            if self._ended or time.monotonic() > end:
                raise AssertionError(f"{what} was not shown, but:\n{text}")
            self._read(0.05)

    def wait_for(self, part, deadline_s=harness.DEADLINE_S):
        return self.wait_until(lambda text: part in text, repr(part), deadline_s)

    def wait(self):
        """The exit status; of a program that a signal ended, the signal's number, negative."""
        end = time.monotonic() + harness.DEADLINE_S
        while not self._ended:
            self._read(0.05)  # a full pseudo-terminal would hold it up
            if time.monotonic() > end:
                raise AssertionError(f"the program did not end; its screen:\n{self.text()}")
        self._child.wait()
        return self._child.exitstatus if self._child.signalstatus is None else -self._child.signalstatus

    def modes(self):
        """Of the line, as `stty` shows them."""
        return termios.tcgetattr(self._child.child_fd)

    def private_modes(self):
        """Those that are on, as 1049 (the other screen) and 25 (the cursor)."""
        return {mode >> 5 for mode in self._screen.mode if mode >= 1 << 5}
