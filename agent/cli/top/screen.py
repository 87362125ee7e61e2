"""The terminal while `shoal top` has it: the alternate screen, keys without Enter, and everything as before
at the end.

Law of this file: it knows lines and bytes, and neither agents nor rows. rich is imported when it begins.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

from shoal.agent.cli.top.view import Key, StyledLine, keys_of

if TYPE_CHECKING:
    from rich.live import Live

READ_BYTES = 256  # more keys than anybody presses between two reads


class TerminalScreen:
    """Use as `with TerminalScreen(...)`. `on_keys` is called with what was typed, `on_change` when the
    terminal has another size or comes back from the background. Without a terminal on stdin there are no
    keys."""

    def __init__(self, on_keys: Callable[[list[Key]], None], on_change: Callable[[], None]) -> None:
        self._on_keys = on_keys
        self._on_change = on_change
        self._loop = asyncio.get_running_loop()
        self._stdin = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._saved: list[Any] = []
        self._live: Live | None = None

    def __enter__(self) -> Self:
        self._take()
        self._loop.add_signal_handler(signal.SIGWINCH, self._on_change)
        self._loop.add_signal_handler(signal.SIGTSTP, self.suspend)
        if self._stdin is not None:
            self._loop.add_reader(self._stdin, self._read)
        return self

    def __exit__(self, *_: object) -> None:
        if self._stdin is not None:
            self._loop.remove_reader(self._stdin)
        self._loop.remove_signal_handler(signal.SIGTSTP)
        self._loop.remove_signal_handler(signal.SIGWINCH)
        self._give_back()

    @property
    def size(self) -> tuple[int, int]:
        """Width and height, at least 1 each."""
        assert self._live is not None
        size = self._live.console.size
        return max(1, size.width), max(1, size.height)

    def draw(self, lines: Sequence[StyledLine]) -> None:
        """Show these lines, none wider than the screen, and nothing else."""
        from rich.console import Group
        from rich.text import Text

        if self._live is not None:
            shown = [Text(line.text, line.style.value, no_wrap=True, overflow="crop") for line in lines]
            self._live.update(Group(*shown), refresh=True)

    def _take(self) -> None:
        from rich.console import Console
        from rich.live import Live

        if self._stdin is not None:
            self._saved = termios.tcgetattr(self._stdin)
            tty.setcbreak(self._stdin)
        try:
            self._live = Live(
                console=Console(),
                screen=True,
                auto_refresh=False,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        except BaseException:
            self._give_back()
            raise

    def _give_back(self) -> None:
        """The screen that was there, the cursor, and lines that are edited and echoed."""
        live, self._live = self._live, None
        try:
            if live is not None:
                live.stop()
        finally:
            if self._stdin is not None and self._saved:
                termios.tcsetattr(self._stdin, termios.TCSADRAIN, self._saved)

    def suspend(self) -> None:
        """Ctrl-Z: the shell gets its terminal, and this process goes on after `fg`."""
        self._give_back()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()
        self._on_change()

    def _read(self) -> None:
        assert self._stdin is not None
        try:
            data = os.read(self._stdin, READ_BYTES)
        except OSError:
            data = b""
        if not data:  # the terminal is gone
            self._loop.remove_reader(self._stdin)
            self._on_keys([Key.QUIT])
            return
        self._on_keys(keys_of(data))
