"""How a process of Spark comes by the driver's Shoal: it has the same one, or takes it from the zip.

Law of this file: the standard library only, and nothing of Shoal. Its text travels (shipment.py says how) and
runs where there is no Shoal.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.abc
import importlib.util
import io
import os
import pickle
import shutil
import stat
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from typing import Any


def open_shipment(
    digest: str, names: tuple[str, ...], archive: bytes | None, is_delivered: bool, pickled: bytes
) -> Any:
    """Unpickle an object with the Shoal of this digest. Raises ImportError where it cannot be had."""
    if getattr(sys.modules.get("shoal"), "_digest", None) != digest:
        provide(digest, names, archive)
    importlib.import_module("shoal.spark.ship.shipment").take(digest, names, archive, is_delivered)
    return pickle.loads(pickled)  # noqa: S301 - Spark's own, from the driver


def provide(digest: str, names: tuple[str, ...], archive: bytes | None) -> None:
    """Make this very Shoal the one that is imported: from where it lies, or else from the zip.

    The driver's Shoal wins. Another one that is loaded here is unloaded, one that could be found is passed
    over. Raises ImportError where there is no zip.
    """
    if not is_here(digest, names):
        forget()
        directory = unpacked(digest, names, None)
        if directory is None:
            archive = archive or delivered(digest)
            if archive is None:
                raise ImportError(
                    f"Spark has not delivered shoal-{digest}.zip here: call register(spark) again"
                )
            files = opened(archive, digest, names)
            directory = unpacked(digest, names, files)
            if directory is None:
                import_from_memory(files, digest)
        if directory is not None:
            sys.path.insert(0, directory)
        importlib.invalidate_caches()
    vars(importlib.import_module("shoal"))["_digest"] = digest


def digest_of(read: Callable[[str], bytes], names: tuple[str, ...]) -> str:
    """The digest of these files' names and contents."""
    total = hashlib.sha256()
    for name in sorted(names):
        data = read(name)
        total.update(f"{name} {len(data)}\n".encode())
        total.update(data)
    return total.hexdigest()[:32]


def is_here(digest: str, names: tuple[str, ...]) -> bool:
    """Whether the Shoal that is imported here, or would be, is this very one."""
    try:
        spec: Any = importlib.util.find_spec("shoal")
        root = os.path.dirname(spec.submodule_search_locations[0])
        found = digest_of(lambda name: bytes(spec.loader.get_data(os.path.join(root, name))), names)
    except (ImportError, AttributeError, IndexError, TypeError, ValueError, OSError):
        return False
    return found == digest


def forget() -> None:
    """Unload any Shoal, and take back what was done to find another one."""
    for name in list(sys.modules):
        if name in ("shoal", "pyspark_shoal") or name.startswith("shoal."):
            del sys.modules[name]
    sys.path[:] = [place for place in sys.path if f"{os.sep}shoal-spark-{os.geteuid()}{os.sep}" not in place]
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "ShoalFromMemory"]


def delivered(digest: str) -> bytes | None:
    """The zip among Spark's files, whose directory Spark puts on a worker's path."""
    for place in sys.path:
        try:
            with open(os.path.join(place, f"shoal-{digest}.zip"), "rb") as file:
                return file.read()
        except OSError:
            continue
    return None


def opened(archive: bytes, digest: str, names: tuple[str, ...]) -> dict[str, bytes]:
    """The zip's files. Raises ImportError when they are not those of the digest."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as members:
            files = {name: members.read(name) for name in names}
    except (zipfile.BadZipFile, zlib.error, KeyError, ValueError, EOFError, RuntimeError) as error:
        raise ImportError(f"shoal-{digest}.zip is damaged ({error}): call register(spark) again") from None
    if digest_of(files.__getitem__, names) != digest:
        raise ImportError(f"shoal-{digest}.zip holds another Shoal: call register(spark) again")
    return files


def unpacked(digest: str, names: tuple[str, ...], files: dict[str, bytes] | None) -> str | None:
    """The directory on this machine that holds these files, made from `files` where it is missing or damaged.

    None: it is missing and `files` is None, or there is no place that is this user's alone.
    """
    try:
        home = os.path.join(tempfile.gettempdir(), f"shoal-spark-{os.geteuid()}")
        if files is not None and not os.path.lexists(home):
            os.makedirs(home, 0o700, exist_ok=True)
        state = os.lstat(home)
        if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.geteuid() or state.st_mode & 0o077:
            return None
        directory = os.path.join(home, digest)
        if holds(directory, digest, names):
            return directory
        if files is None:
            return None
        made = tempfile.mkdtemp(dir=home)
    except OSError:
        return None
    try:
        for name, data in files.items():
            target = os.path.join(made, "new", name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "xb") as file:
                file.write(data)
        # A directory in its place is damaged, or another process has just made it.
        if os.path.lexists(directory) and not holds(directory, digest, names):
            os.rename(directory, os.path.join(made, "old"))
        os.rename(os.path.join(made, "new"), directory)
    except OSError:
        if not holds(directory, digest, names):
            return None
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return directory


def holds(directory: str, digest: str, names: tuple[str, ...]) -> bool:
    """Whether a directory has exactly these files, without any link; beside them what Python made of them."""
    found = []
    try:
        if os.path.islink(directory):
            return False
        for folder, folders, files in os.walk(directory):
            inside = [os.path.join(folder, name) for name in (*folders, *files)]
            if any(map(os.path.islink, inside)):
                return False
            if os.path.basename(folder) != "__pycache__":
                found += [os.path.relpath(os.path.join(folder, name), directory) for name in files]

        def read(name: str) -> bytes:
            with open(os.path.join(directory, name), "rb") as file:
                return file.read()

        return sorted(found) == sorted(names) and digest_of(read, names) == digest
    except OSError:
        return False


def import_from_memory(files: dict[str, bytes], digest: str) -> None:
    """For machines where no file can be written, or somebody else's lies in its place."""
    root = f"{os.sep}<shoal {digest}>"  # absolute, or Python would make it so from the working directory

    class ShoalFromMemory(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):  # type: ignore[misc]
        def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
            try:
                place = self.get_filename(fullname)
            except ImportError:
                return None
            return importlib.util.spec_from_file_location(fullname, place, loader=self)

        def get_filename(self, fullname: str) -> str:
            base = fullname.replace(".", "/")
            for name in (f"{base}/__init__.py", f"{base}.py"):
                if name in files:
                    return os.path.join(root, name)
            raise ImportError(fullname)

        def get_data(self, path: Any) -> bytes:
            name = os.path.relpath(path, root)
            if name not in files:
                raise FileNotFoundError(path)
            return files[name]

    sys.meta_path.insert(0, ShoalFromMemory())
