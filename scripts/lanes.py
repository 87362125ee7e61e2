"""Commands that run side by side while their outputs are shown one after the other, until they end or hang.

Law of this file: slow is no fault, silent is. On a machine that has other work everything takes several times
as long, but a test that ends says so; what says nothing for longer than any test may take does not go on.
"""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO

import process_families
import terminal

LOOK_SECONDS = 0.2


@dataclasses.dataclass
class Lane:
    """One command. `bytes_seen` of its output were there at `grown_s`, when it last had grown."""

    name: str
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    grown_s: float
    bytes_seen: int = 0
    hung: bool = False

    def look(self, now_s: float, silence_seconds_max: float) -> None:
        """End it if it has said nothing for too long."""
        size = os.fstat(self.output.fileno()).st_size
        if size != self.bytes_seen:
            self.bytes_seen, self.grown_s = size, now_s
        elif now_s - self.grown_s > silence_seconds_max and self.process.poll() is None:
            self.hung = True
            self.end(signal.SIGABRT)

    def end(self, number: signal.Signals) -> None:
        """By this signal, or by force where that is not enough, with all that it has started."""
        process_families.end([self.process], number)


class Lanes(contextlib.ExitStack):
    """All of them; whatever still runs when this is left is ended. Each is a session of its own: a terminal's
    Ctrl-C reaches it from here alone, and once."""

    def __init__(self, silence_seconds_max: float) -> None:
        super().__init__()
        self._silence_seconds_max = silence_seconds_max
        self._lanes: list[Lane] = []
        self.callback(self._end)

    def _end(self) -> None:
        """An interrupted pytest ends what its tests have begun; a killed one does not."""
        process_families.end([lane.process for lane in self._lanes], signal.SIGINT)

    def start(self, name: str, command: Sequence[str], variables: Mapping[str, str], directory: str) -> None:
        """Run it from now on."""
        output = self.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
        process = subprocess.Popen(
            command,
            cwd=directory,
            env=variables,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._lanes.append(Lane(name, process, output, time.monotonic()))

    def show(self) -> list[str]:
        """Their outputs in the order of their starts, as they come; the names of those that failed."""
        return [lane.name for lane in self._lanes if not self._passed(lane)]

    def _passed(self, shown: Lane) -> bool:
        terminal.step(shown.name)
        offset = 0
        while True:
            over = shown.process.poll() is not None
            piece = os.pread(shown.output.fileno(), 1 << 20, offset)
            offset += len(piece)
            sys.stdout.buffer.write(piece)
            sys.stdout.flush()
            if over and not piece:
                break
            for lane in self._lanes:
                lane.look(time.monotonic(), self._silence_seconds_max)
            if not piece:
                time.sleep(LOOK_SECONDS)
        if shown.hung:
            terminal.problem(f"{shown.name}: ended, as it said nothing for {self._silence_seconds_max:g} s")
        return shown.process.returncode == 0
