"""A process that lends pages of a log into a socket until that is full, and then waits to be killed.

Arguments: the log's directory, the socket's descriptor. It says on its standard output how many bytes it has
lent.
"""

import asyncio
import sys
from pathlib import Path

if __name__ == "__main__":
    TESTS = Path(__file__).resolve().parents[2]
    sys.path[:0] = [str(TESTS / "segment_store"), str(TESTS / "simulation")]

from store_frames import EVERYTHING, LONG_READS, open_log

from shoal.format.batch import LogIndex
from shoal.segment_store import open_disk


async def main(directory: str, descriptor: int) -> None:
    disk = await open_disk("threads")
    log = await open_log(disk, directory, LONG_READS)
    for _ in range(2):
        pieces = await log.pieces(LogIndex(1), log.last_index, EVERYTHING)
        await pieces.begin()
        while await pieces.next() is not None:
            pass
        await pieces.let_go()
    pieces = await log.pieces(LogIndex(1), log.last_index, EVERYTHING)
    await pieces.begin()
    await pieces.prepare_lending()
    lent_bytes = 0
    try:
        while (lent := pieces.lend()) is not None:
            while len(lent):
                lent_bytes += lent.write_to(descriptor)
    except BlockingIOError:
        print(lent_bytes, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
