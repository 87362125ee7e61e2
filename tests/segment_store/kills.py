"""kill -9 at random moments, for the test beside this and for scripts/campaign."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from store_frames import SMALL, all_frames, open_log

from shoal.segment_store import open_disk

LONGEST_LIFE_SECONDS = 0.25
"""From its beginning, or from what it had acknowledged by then."""
MOST_AWAITED = 4
"""Acknowledgements that some lives have time for, on any disk; others end while they open the log."""
CHILD = str(Path(__file__).with_name("killed_child.py"))


async def run_kills(directory: str, kind: str, kills: int, seed: int) -> int:
    """So many lives of one directory, each ended by SIGKILL; after each the log opens without damage and
    holds every acknowledged frame. How many were acknowledged."""
    rng = random.Random(seed)
    promised: dict[int, str] = {}
    with subprocess.Popen(
        [sys.executable, CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        for life in range(kills):
            parent.stdin.write(f"{directory} {kind} {seed * 1000 + life}\n")
            # Both write to one pipe: acknowledgements may overtake the number of the process.
            lines = [parent.stdout.readline()]
            awaited = rng.randint(0, MOST_AWAITED)
            while len(lines) <= awaited or not any(line.startswith("pid ") for line in lines):
                assert lines[-1] not in ("", "end\n"), "the life or its parent has ended"
                lines.append(parent.stdout.readline())
            pid = next(int(line.split()[1]) for line in lines if line.startswith("pid "))
            time.sleep(rng.uniform(0, LONGEST_LIFE_SECONDS))
            os.kill(pid, signal.SIGKILL)
            lines += iter(parent.stdout.readline, "end\n")
            words = [line.split() for line in lines if line.endswith("\n") and not line.startswith("pid ")]
            promised |= {int(word[0]): word[1] if len(word) > 1 else "" for word in words}
            await _check(directory, promised)
        parent.stdin.close()
    return len(promised)


async def _check(directory: str, promised: dict[int, str]) -> None:
    disk = await open_disk("threads")
    log = await open_log(disk, directory, SMALL)
    assert log.damage == ()
    held = {frame.stamp.index: frame.data[-200:].hex() for frame in await all_frames(log)}
    lost = [index for index, data in promised.items() if held.get(index) != data]
    assert not lost, f"acknowledged entries {lost[:10]} are lost or others"
    await log.close()
    await disk.close()
