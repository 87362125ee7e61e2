"""What travels: the data source with a zip of Shoal, and later objects with the way to that zip.

Spark pickles the data source when it is registered, its instances when it plans, and readers, writers and
partitions for each task. The zip goes with the first two; tasks find it among Spark's files.
"""

from __future__ import annotations

import functools
import inspect
import io
import pickle
import tempfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, SupportsIndex

from shoal.spark.ship import bootstrap
from shoal.spark.ship.bootstrap import digest_of

_received: Parcel | None = None  # what this process was sent, if it was


class Parcel(NamedTuple):
    """A Shoal: its files' digest and names, the zip that has them (where this process needs it), and whether
    tasks find the zip among Spark's files."""

    digest: str
    names: tuple[str, ...]
    archive: bytes | None
    is_delivered: bool

    def around(self, pickled: bytes, is_for_tasks: bool) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """A pickle's reduction to this Shoal, then what `pickled` holds."""
        archive = None if is_for_tasks and self.is_delivered else self.archive
        return _Opener(self.digest), (self.digest, self.names, archive, self.is_delivered, pickled)


class _Opener:
    """bootstrap.open_parcel as text, for processes that cannot import it. A process compiles it once: then it
    has this Shoal, and takes the function from there."""

    TEXT: Final = (
        "__import__('sys').modules['shoal.spark.ship.bootstrap'].open_parcel"
        " if getattr(__import__('sys').modules.get('shoal'), '_digest', None) == digest"
        " else exec(__import__('zlib').decompress(text), globals()) or open_parcel"
    )

    def __init__(self, digest: str) -> None:
        self._digest = digest

    def __call__(self, *arguments: Any) -> Any:
        return bootstrap.open_parcel(*arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return eval, (self.TEXT, {"digest": self._digest, "text": _bootstrap_text()})


@functools.cache
def _bootstrap_text() -> bytes:
    return zlib.compress(inspect.getsource(bootstrap).encode(), 9)


def take(digest: str, names: tuple[str, ...], archive: bytes | None, is_delivered: bool) -> None:
    """Note what this process was sent: what it pickles takes the same way."""
    global _received
    if archive is None and _received is not None:
        archive = _received.archive
    _received = Parcel(digest, names, archive, is_delivered)


def pack(files: Mapping[str, bytes], archive: bytes) -> Parcel:
    """The Shoal of these files, which the zip holds."""
    names = tuple(sorted(files))
    return Parcel(digest_of(files.__getitem__, names), names, archive, is_delivered=False)


def deliver(parcel: Parcel, spark: Any) -> Parcel:
    """Put the zip among Spark's files, of which each executor gets a copy: nothing then has to go with tasks.
    Where no temporary directory can be written, it goes with them."""
    assert parcel.archive is not None, "the driver has the zip"
    name = f"shoal-{parcel.digest}.zip"
    context = getattr(spark, "sparkContext", None)
    try:
        if context is None:  # Spark Connect
            with tempfile.TemporaryDirectory() as directory:
                Path(directory, name).write_bytes(parcel.archive)
                spark.addArtifacts(str(Path(directory, name)), file=True)
        elif not any(listed.endswith(name) for listed in context.listFiles):
            # Executors fetch it as long as the context lives, and so does this directory of its own.
            target = Path(context._temp_dir, name)  # noqa: SLF001 - PySpark has no public one
            target.write_bytes(parcel.archive)
            context.addFile(str(target))
    except OSError:
        return parcel
    return parcel._replace(is_delivered=True)


class SentSource:
    """The data source as it is registered: what Spark unpickles is the class itself."""

    def __init__(self, source: type[Any], parcel: Parcel) -> None:
        self._source = source
        self._parcel = parcel

    def name(self) -> str:
        """The argument of format()."""
        return str(self._source.name())

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._parcel.around(pickle.dumps(self._source), is_for_tasks=False)


class Shipped:
    """An object that is unpickled with the Shoal it was made with, where the process was sent one."""

    _is_for_tasks = True  # Spark pickles it into what each task is sent

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        if _received is None:
            return object.__reduce_ex__(self, protocol)
        pickled = io.BytesIO()
        _Plain(pickled).dump(self)
        return _received.around(pickled.getvalue(), self._is_for_tasks)


class _Plain(pickle.Pickler):
    """Pickles such objects as others are."""

    def reducer_override(self, obj: Any) -> Any:
        return object.__reduce_ex__(obj, 4) if isinstance(obj, Shipped) else NotImplemented
