"""Knobs of one log, as one frozen value with every rule between them in `validate`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogConfig:
    """Sizes in bytes, times in milliseconds.

    segment_bytes: the leader proposes to roll when the active segment would pass this.
    first_allocation_bytes, max_allocation_step_bytes: preallocation doubles from the first to steps of the
        second, so that a partition without records holds a block of the file system and a busy one extends
        its file in large steps.
    fsync: False answers appends before the disk has synced: reported as unsafe wherever the topic is shown.
    index_interval_ms, index_interval_bytes: the active segment's index is on disk at most so far behind.
    tail_cache_bytes: newest frames kept in memory, so that followers and consumers at the end never read
    the disk. max_write_bytes: what one group commit takes at most, so that one write cannot starve the
    first waiter. read_chunk_bytes: reads, scans and recovery go through buffers of this size.
    max_open_files: segments whose handles stay open, of a log that shares with no other. index_bytes: of the
    newest bytes of the log the index is always in memory, twice what may be uncommitted and thus truncated;
    of older segments it is read when it is needed, and that of max_open_indexes stays.
    """

    segment_bytes: int = 64 * 2**20
    first_allocation_bytes: int = 4 * 2**10
    max_allocation_step_bytes: int = 8 * 2**20
    fsync: bool = True
    index_interval_ms: int = 1_000
    index_interval_bytes: int = 16 * 2**20
    tail_cache_bytes: int = 8 * 2**20
    max_write_bytes: int = 8 * 2**20
    read_chunk_bytes: int = 2**20
    max_open_files: int = 4
    index_bytes: int = 128 * 2**20
    max_open_indexes: int = 4

    def __post_init__(self) -> None:
        self.validate()

    def validate(self) -> None:
        """Refuse what cannot work; ValueError names the field."""
        for name in (
            "segment_bytes",
            "first_allocation_bytes",
            "max_allocation_step_bytes",
            "max_write_bytes",
        ):
            if getattr(self, name) < 4096:
                raise ValueError(f"{name} must be at least 4096")
        if self.first_allocation_bytes > self.max_allocation_step_bytes:
            raise ValueError("first_allocation_bytes must not exceed max_allocation_step_bytes")
        if self.index_interval_ms < 1 or self.index_interval_bytes < 1:
            raise ValueError("index_interval_ms and index_interval_bytes must be positive")
        if self.read_chunk_bytes < 4096 or self.read_chunk_bytes % 8:
            raise ValueError("read_chunk_bytes must be a multiple of 8, at least 4096")
        if self.tail_cache_bytes < 0 or self.index_bytes < 0:
            raise ValueError("tail_cache_bytes and index_bytes must not be negative")
        if self.max_open_files < 1 or self.max_open_indexes < 1:
            raise ValueError("max_open_files and max_open_indexes must be at least 1")
