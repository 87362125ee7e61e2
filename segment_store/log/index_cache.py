"""Which indexes of a log are in memory: those of its newest bytes always, of older segments the few used
last.

A released index is read again from its file, which was complete and synced before it was released; one that
no longer verifies is damage of the index, and the next opening rebuilds it from the segment.
"""

from collections import OrderedDict
from collections.abc import Sequence

from shoal.segment_store.disk.disk import Disk, opened
from shoal.segment_store.errors import Damaged, FormatError
from shoal.segment_store.format.index import decode_index_file
from shoal.segment_store.log.segment import Segment

MAX_INDEX_FILE_BYTES = (
    152 * 2**20
)  # 2.8 million entries of 56 bytes: more than a segment of smallest frames holds


def release_old(segments: Sequence[Segment], keep_bytes: int) -> None:
    """Let go of the indexes behind the newest `keep_bytes` of the log, and of none but sealed segments whose
    index file is complete."""
    held = 0
    for segment in reversed(segments):
        complete = segment.indexed_index >= segment.last_index and segment.index_bytes <= MAX_INDEX_FILE_BYTES
        if held > keep_bytes and complete:
            segment.index.release()
        held += segment.planned_end


class IndexCache:
    """At most `limit` released indexes are in memory again; the least recently loaded goes first."""

    def __init__(self, disk: Disk, limit: int) -> None:
        self._disk = disk
        self._limit = limit
        self._loaded: OrderedDict[Segment, None] = OrderedDict()
        self.loads = 0

    async def load(self, segment: Segment) -> None:
        """The index is in memory when this returns, until the next await. Raises Damaged, OSError."""
        async with opened(self._disk, segment.index_path) as file:
            data = await file.read(0, min(await file.size(), MAX_INDEX_FILE_BYTES))
        name = segment.name
        found = decode_index_file(data, name.first_index, name.first_offset, segment.files.identity)
        try:
            segment.index.restore(found.held)
        except FormatError as error:
            raise Damaged(segment.index_path, found.good_bytes, str(found.problem or error)) from error
        self.loads += 1
        self._loaded[segment] = None
        self._loaded.move_to_end(segment)
        while len(self._loaded) > self._limit:
            oldest, _ = self._loaded.popitem(last=False)
            oldest.index.release()

    def keep(self, segment: Segment) -> None:
        """It is the newest again and will be appended to: its index stays in memory from now on."""
        self._loaded.pop(segment, None)
