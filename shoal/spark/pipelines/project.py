"""A project's directory: written once by `shoal spark init`, found again by `shoal spark run`.

Law of this file: a project is written whole or not at all, and nothing that exists is overwritten.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shutil
from pathlib import Path
from typing import Final

from shoal.spark.options.errors import SourceError
from shoal.spark.pipelines.template import FILES, SPEC_FILE, STORAGE

SPEC_FILES: Final = (SPEC_FILE, "spark-pipeline.yaml")
_UNFIT: Final = re.compile(r"""[\s\x00-\x1f\x7f;\\$%#?*\[\]{}:"'<>|^`@]""")
"""Characters of a path that the properties file, Derby's URL, Hive or Spark's patterns read otherwise. With
a space, Spark 4.2 keeps checkpoints beside the project, in a directory with %20 in its name."""
_INCLUDED: Final = re.compile(r"""^\s*include:\s*["']?([^"'\s]+)""", re.MULTILINE)
_NAMES_AGENTS: Final = re.compile(r"""["']agent["']|\bagent\s*=""")


def create(directory: Path) -> Path:
    """Write the template into a new directory; returns its absolute path. Raises SourceError."""
    place = Path(os.path.abspath(directory))
    check_path(place)
    try:
        place.mkdir(parents=True)
    except FileExistsError:
        raise SourceError(f"{place} exists: nothing was written; choose another name") from None
    except OSError as error:
        raise SourceError(f"{error.filename or place} cannot be made: {error.strerror}") from None
    try:
        for name, text in FILES.items():
            path = place / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(filled(text, place), encoding="utf-8")
    except OSError as error:
        shutil.rmtree(place, ignore_errors=True)
        raise SourceError(f"{error.filename or place} cannot be written: {error.strerror}") from None
    return place


def check_path(place: Path) -> None:
    """Raises SourceError for a path that Spark would read otherwise."""
    unfit = _UNFIT.search(str(place))
    if unfit is not None:
        raise SourceError(
            f"{place}: Spark cannot keep a project below a path with {unfit[0]!r}: take another"
        )


def filled(text: str, place: Path) -> str:
    """A file of the template for a project that lies at `place`."""
    values = {
        "@name@": json.dumps(place.name, ensure_ascii=False),  # JSON's strings are YAML's, too
        "@storage@": json.dumps(f"file://{place}/{STORAGE}", ensure_ascii=False),
        "@directory@": str(place),
    }
    for mark, value in values.items():
        text = text.replace(mark, value)
    return text


def find(start: Path) -> Path:
    """The spec of the project that `start` lies in. Raises SourceError."""
    for directory in (start, *start.parents):
        found = [directory / name for name in SPEC_FILES if (directory / name).is_file()]
        if len(found) > 1:
            raise SourceError(f"{directory} has both {' and '.join(SPEC_FILES)}: remove one of them")
        if found:
            return found[0]
    raise SourceError(
        f"there is no {SPEC_FILE} in {start} or above it: go into a project, name its spec with --spec,"
        " or begin one with `shoal spark init NAME`"
    )


def check_writable(project: Path) -> None:
    """A run leaves checkpoints and tables in the project. Raises SourceError."""
    check_path(project)
    if not os.access(project, os.W_OK | os.X_OK):
        raise SourceError(
            f"{project} is read-only for this user: a run keeps its checkpoints and tables there"
        )


def names_agents(spec: Path) -> bool:
    """Whether a Python file of the project gives agents of its own: then the default counts for nothing."""
    for pattern in _INCLUDED.findall(spec.read_text(encoding="utf-8", errors="replace")):
        deep = f"{pattern}/*" if pattern.endswith("/**") else pattern
        for name in glob.iglob(deep, root_dir=spec.parent, recursive=True):
            path = spec.parent / name
            if path.suffix == ".py" and _NAMES_AGENTS.search(path.read_text("utf-8", "replace")):
                return True
    return False
