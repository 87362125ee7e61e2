"""Small files that are read and replaced whole: a crash leaves the old bytes or the new ones.

Law of this file: bytes of one path. Their owners decide on copies, and verify what they read.
"""

from __future__ import annotations

from shoal.segment_store.disk.disk import Disk


async def read_whole(disk: Disk, path: str, max_bytes: int) -> bytes | None:
    """None when there is no such file; of a larger one the first `max_bytes`. Raises OSError."""
    if not await disk.exists(path):
        return None
    file = await disk.open(path)
    try:
        return await file.read(0, min(await file.size(), max_bytes))
    finally:
        await file.close()


async def replace_whole(disk: Disk, path: str, data: bytes, *, sync: bool = True) -> None:
    """The bytes are synced before the path names them; its directory is not. Raises OSError."""
    temporary = f"{path}.new"
    if await disk.exists(temporary):
        await disk.unlink(temporary)
    file = await disk.open(temporary, create=True)
    try:
        await (file.write_and_sync if sync else file.write)(0, data)
    finally:
        await file.close()
    await disk.rename(temporary, path)
