"""Directories and files of secrets: for their owner's eyes only, whole or not there, and on the disk.

Law of this file: bytes, paths and modes. A directory is written aside and takes its place in one step,
so that an interruption leaves nothing, or all of it. Nothing that exists is replaced unless that was
asked for.
"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import tempfile
from collections.abc import Mapping

from shoal.agent.cli.terminal.output import CliError, UsageError

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
FOR_OTHERS = stat.S_IRWXG | stat.S_IRWXO
ASIDE = ".shoal-secure-"
"""Prefix of a directory that is being written; one that a kill left behind may be removed."""
FILE_BYTES_MAX = 1 << 20
FORMER_MAX = 1_000
FORMER = ".old-"
"""Between the name of a directory and a number: one that has given way to another."""


def check_path(path: str, flag: str) -> None:
    """Raises UsageError for a text that no system, or no configuration, takes as a path."""
    if not path or not path.isprintable():
        raise UsageError(f"{flag} {path[:80]!r} is not a path", "give that of a directory")


def place(path: str, files: Mapping[str, bytes], *, force: bool = False) -> str | None:
    """Make a directory with these files; a name may have directories before it. With `force` a directory that
    is there gives way, and its new name is returned. Raises CliError."""
    target = os.path.realpath(path)
    parent = os.path.dirname(target)
    try:
        is_there = os.path.lexists(target)
        if is_there and not os.path.isdir(target):
            raise CliError(f"{path} is not a directory", "give another one")
        is_in_use = is_there and bool(os.listdir(target))
        if is_in_use and not force:
            raise CliError(f"{path} exists", "give another directory, or --force: the old one is kept")
        if not os.path.isdir(parent):
            raise CliError(f"{parent} is no directory", f"make it first: mkdir -p {shlex.quote(parent)}")
        former = _place(target, parent, files, is_in_use=is_in_use)
    except OSError as error:
        raise CliError(f"cannot make {path}: {error.strerror or error}", "give another directory") from None
    return former


def make_parent(path: str) -> None:
    """The directory above, if it is missing. Raises CliError."""
    parent = os.path.dirname(path)
    try:
        if not os.path.isdir(parent):
            os.mkdir(parent, DIRECTORY_MODE)
            _sync_directory(os.path.dirname(parent))
    except OSError as error:
        raise CliError(f"cannot make {parent}: {error.strerror or error}") from None


def _place(target: str, parent: str, files: Mapping[str, bytes], *, is_in_use: bool) -> str | None:
    aside = tempfile.mkdtemp(prefix=ASIDE, dir=parent)  # mode 0700
    try:
        for name, content in files.items():
            below = aside
            for part in name.split("/")[:-1]:
                below = os.path.join(below, part)
                if not os.path.isdir(below):
                    os.mkdir(below, DIRECTORY_MODE)
            _write_new(os.path.join(aside, name), content)
        for directory, _, _ in os.walk(aside):
            _sync_directory(directory)
        former = _step_aside(target) if is_in_use else None
        try:
            os.rename(aside, target)  # of an empty directory too; fails if somebody has filled it meanwhile
        except BaseException:
            if former is not None:
                os.rename(former, target)
            raise
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    _sync_directory(parent)
    return former


def former_of(name: str) -> str | None:
    """The directory that has taken the place of this one, going by its name; None where none has."""
    stem, separator, number = name.rpartition(FORMER)
    return stem if separator and number.isdecimal() else None


def replace_file(path: str, content: bytes) -> None:
    """The old bytes or the new ones, of the same owner. Raises OSError."""
    before = os.stat(path)
    aside = os.path.join(os.path.dirname(path), f"{ASIDE}{os.path.basename(path)}")
    if os.path.lexists(aside):
        os.unlink(aside)
    try:
        _write_new(aside, content, owner=(before.st_uid, before.st_gid))
        os.replace(aside, path)
    except BaseException:
        if os.path.lexists(aside):
            os.unlink(aside)
        raise
    _sync_directory(os.path.dirname(path))


def read_file(path: str, advice: str) -> bytes:
    """A small file, whole. Raises CliError with that advice."""
    try:
        with open(path, "rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise CliError(f"{path}: {error.strerror or error}", advice) from None
    if not content or len(content) > FILE_BYTES_MAX:
        raise CliError(f"{path} is {'too large' if content else 'empty'}", advice)
    return content


def _write_new(path: str, content: bytes, owner: tuple[int, int] | None = None) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, FILE_MODE)
    with open(handle, "wb") as file:
        if owner is not None and owner != (os.getuid(), os.getgid()):
            os.fchown(handle, *owner)
        os.fchmod(handle, FILE_MODE)
        file.write(content)
        file.flush()
        os.fsync(handle)


def _step_aside(target: str) -> str:
    """Rename a directory to the first free of its own name with a number. Raises CliError, OSError."""
    for number in range(1, FORMER_MAX):
        former = f"{target}{FORMER}{number}"
        if not os.path.lexists(former):
            os.rename(target, former)
            return former
    raise CliError(f"{target} has {FORMER_MAX} predecessors", "remove those that nobody needs")


def _sync_directory(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
