"""A process that appends and says on its standard output what was acknowledged, until it is killed.

It stays behind as a parent: each line of its standard input (directory, kind of disk, seed) is one child to
be killed, so that fifty lives need not import everything fifty times. It says `pid N` before a child's first
word and `end` after its last.
"""

import asyncio
import os
import random
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[1] / "simulation"))

from store_frames import SMALL, message, next_frame, open_log

from shoal.segment_store import open_disk


async def _live(directory: str, kind: str, seed: int) -> None:
    rng = random.Random(seed)
    disk = await open_disk("ring" if kind == "ring" else "threads")
    log = await open_log(disk, directory, SMALL)

    async def append() -> None:
        roll = rng.random() < 0.02
        frame = next_frame(log, rng.randrange(5), fill=rng.randrange(256), first_of_segment=roll)
        await log.append([frame])
        # One write of a short line to a pipe is atomic: whatever the parent reads was acknowledged.
        os.write(1, f"{frame.stamp.index} {frame.data[-200:].hex()}\n".encode())

    while True:
        await asyncio.gather(*(append() for _ in range(rng.randrange(1, 6))))


def main() -> None:
    message(1)  # Arrow imports pandas for its first array: once here, not in every child
    for line in iter(sys.stdin.readline, ""):
        directory, kind, seed = line.split()
        child = os.fork()
        if not child:
            asyncio.run(_live(directory, kind, int(seed)))
            os._exit(1)
        os.write(1, f"pid {child}\n".encode())
        os.waitpid(child, 0)
        os.write(1, b"end\n")


if __name__ == "__main__":
    main()
