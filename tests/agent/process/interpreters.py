"""Where other CPythons are: the one of the tests, pyenv's, and those on PATH."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

VERSIONS = ((3, 11), (3, 12), (3, 13))


def interpreter(version: tuple[int, int]) -> str | None:
    """One of that version that runs."""
    if sys.version_info[:2] == version:
        return sys.executable
    number = f"{version[0]}.{version[1]}"
    pyenv = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv"))
    paths = [str(path) for path in pyenv.glob(f"versions/{number}.*/bin/python{number}")]
    for path in [*sorted(paths), shutil.which(f"python{number}")]:
        if (
            path is not None
            and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0
        ):
            return path
    return None


FOUND = {version: path for version in VERSIONS if (path := interpreter(version)) is not None}
