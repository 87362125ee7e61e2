"""A process that appends and says on its standard output what was acknowledged, until it is killed."""

import asyncio
import random
import sys

from store_frames import SMALL, next_frame, open_log

from shoal.segment_store import open_disk


async def main(directory: str, kind: str, seed: int) -> None:
    rng = random.Random(seed)
    disk = await open_disk("ring" if kind == "ring" else "threads")
    log = await open_log(disk, directory, SMALL)

    async def append() -> None:
        roll = rng.random() < 0.02
        frame = next_frame(log, rng.randrange(5), fill=rng.randrange(256), first_of_segment=roll)
        await log.append([frame])
        # One write of a short line to a pipe is atomic: whatever the parent reads was acknowledged.
        print(frame.stamp.index, frame.data[-200:].hex(), flush=True)

    while True:
        await asyncio.gather(*(append() for _ in range(rng.randrange(1, 6))))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
