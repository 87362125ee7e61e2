"""The manifest on the disk: two files, written and synced one after the other.

Law of this file: `save` returns once both copies are durable. Until then the runs of the old manifest and
those of the new one must stay, since a crash may leave either.
"""

from __future__ import annotations

from shoal.agent.views.manifest import (
    MANIFEST_FILES,
    MAX_MANIFEST_BYTES,
    Manifest,
    decode_manifest,
    encode_manifest,
)
from shoal.agent.views.run_format import RunFormatError
from shoal.segment_store.disk.disk import Disk, opened


async def load_manifest(disk: Disk, directory: str, seed: int) -> Manifest | None:
    """The newest that verifies; None where there is none, or both copies are damaged. Raises OSError."""
    found = []
    for name in MANIFEST_FILES:
        path = f"{directory}/{name}"
        if not await disk.exists(path):
            continue
        async with opened(disk, path) as file:
            data = await file.read(0, min(await file.size(), MAX_MANIFEST_BYTES))
        try:
            found.append(decode_manifest(data, seed))
        except RunFormatError:
            continue  # torn by a crash, or damaged: the other copy counts
    return max(found, key=lambda manifest: manifest.sequence, default=None)


async def save_manifest(disk: Disk, directory: str, manifest: Manifest, seed: int) -> None:
    """Durable in both copies on return. Raises OSError: then a crash may leave this manifest or the one
    before."""
    data = encode_manifest(manifest, seed)
    is_new = False
    for name in MANIFEST_FILES:
        path = f"{directory}/{name}"
        is_new |= not await disk.exists(path)
        async with opened(disk, path, create=True) as file:
            await file.write_and_sync(0, data)
        if is_new:
            await disk.sync_directory(directory)
