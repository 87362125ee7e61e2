"""The data source with a zip of Shoal, and later objects with the way to that zip.

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
from shoal.spark.ship.served_directory import ServedDirectory

received: Shipment | None = None  # this process has been sent it
_served: Final[list[ServedDirectory]] = []
"""One for each context of this process: executors fetch the zip as long as it lives."""


class Shipment(NamedTuple):
    """A Shoal: the digest and names of its files, and the zip that has them, if this process has it.
    `is_delivered`: tasks find the zip among Spark's files."""

    digest: str
    names: tuple[str, ...]
    archive: bytes | None
    is_delivered: bool

    def around(self, thing: Any, is_for_tasks: bool) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """A pickle's reduction: this Shoal, then an object or a class of its own."""
        pickled = io.BytesIO()
        _Plain(pickled).dump(thing)
        archive = None if is_for_tasks and self.is_delivered else self.archive
        return _Opener(self.digest), (self.digest, self.names, archive, self.is_delivered, pickled.getvalue())


class _Opener:
    """bootstrap.open_shipment as text, for processes that cannot import it. Each compiles it once: then
    it has this Shoal, and takes the function from there."""

    TEXT: Final = (
        "__import__('sys').modules['shoal.spark.ship.bootstrap'].open_shipment"
        " if getattr(__import__('sys').modules.get('shoal'), '_digest', None) == digest"
        " else exec(__import__('zlib').decompress(text), globals()) or open_shipment"
    )

    def __init__(self, digest: str) -> None:
        self._digest = digest

    def __call__(self, *arguments: Any) -> Any:
        return bootstrap.open_shipment(*arguments)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return eval, (self.TEXT, {"digest": self._digest, "text": _bootstrap_text()})


@functools.cache
def _bootstrap_text() -> bytes:
    return zlib.compress(inspect.getsource(bootstrap).encode(), 9)


def take(digest: str, names: tuple[str, ...], archive: bytes | None, is_delivered: bool) -> None:
    """Note that this process was sent it: its own pickles take the same way."""
    global received
    if archive is None and received is not None:
        archive = received.archive
    received = Shipment(digest, names, archive, is_delivered)


def pack(files: Mapping[str, bytes], archive: bytes) -> Shipment:
    """The Shoal of these files, which the zip holds."""
    names = tuple(sorted(files))
    return Shipment(digest_of(files.__getitem__, names), names, archive, is_delivered=False)


def deliver(shipment: Shipment, spark: Any) -> Shipment:
    """Put the zip among Spark's files, of which each executor gets a copy: nothing then has to go with tasks.
    Where no temporary directory can be written, it goes with them."""
    assert shipment.archive is not None, "the driver has the zip"
    name = f"shoal-{shipment.digest}.zip"
    context = getattr(spark, "sparkContext", None)
    try:
        if context is None:  # Spark Connect
            with tempfile.TemporaryDirectory() as directory:
                Path(directory, name).write_bytes(shipment.archive)
                spark.addArtifacts(str(Path(directory, name)), file=True)
        elif not any(listed.endswith(name) for listed in context.listFiles):
            served = ServedDirectory()
            _served.append(served)
            target = Path(served.name, name)
            target.write_bytes(shipment.archive)
            context.addFile(str(target))
    except OSError:
        return shipment
    return shipment._replace(is_delivered=True)


class SentSource:
    """The data source as it is registered: what Spark unpickles is the class itself."""

    def __init__(self, source: type[Any], shipment: Shipment) -> None:
        self._source = source
        self._shipment = shipment

    def name(self) -> str:
        """The argument of format()."""
        return str(self._source.name())

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._shipment.around(self._source, is_for_tasks=False)


class Shipped:
    """An object that is unpickled with the Shoal it was made with, where the process was sent one."""

    _is_for_tasks = True  # Spark pickles it into what each task is sent

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        if received is None:
            return object.__reduce_ex__(self, protocol)
        return received.around(self, self._is_for_tasks)


class _Plain(pickle.Pickler):
    """Pickles such objects as others are."""

    def reducer_override(self, obj: Any) -> Any:
        return object.__reduce_ex__(obj, 4) if isinstance(obj, Shipped) else NotImplemented
