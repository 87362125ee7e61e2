"""How Shoal comes to processes of Spark that have none, or another one: no Java, Spark's part is played."""

from __future__ import annotations

import json
import os
import pathlib
import pickle
import site
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from shoal.spark import ShoalDataSource
from shoal.spark import setup as spark_setup
from shoal.spark.options.errors import SourceError
from shoal.spark.read.fetch import Scan
from shoal.spark.read.plan import OffsetRange
from shoal.spark.read.readers import ShoalPartition
from shoal.spark.ship import bootstrap, shipment
from shoal.spark.ship.shipment import SentSource, Shipment

FILES = {"shoal/__init__.py": b"", "shoal/a/__init__.py": b"", "shoal/a/b.py": b"VALUE = 1\n"}
NAMES = tuple(FILES)
DIGEST = bootstrap.digest_of(FILES.__getitem__, NAMES)


@pytest.fixture
def place(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """This user's own directory in a temporary directory of the test's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"shoal-spark-{os.geteuid()}"


def test_it_is_unpacked_once_for_its_owner(place: pathlib.Path) -> None:
    """What is there already is used as it is; two versions lie side by side."""
    assert bootstrap.unpacked(DIGEST, NAMES, None) is None
    directory = bootstrap.unpacked(DIGEST, NAMES, FILES)
    assert directory == str(place / DIGEST)
    assert place.stat().st_mode & 0o777 == 0o700
    assert {name: (place / DIGEST / name).read_bytes() for name in NAMES} == FILES
    inode = os.stat(directory).st_ino
    (place / DIGEST / "shoal" / "__pycache__").mkdir()
    (place / DIGEST / "shoal" / "__pycache__" / "b.pyc").write_bytes(b"")  # as Python does
    assert bootstrap.unpacked(DIGEST, NAMES, FILES) == bootstrap.unpacked(DIGEST, NAMES, None) == directory
    assert os.stat(directory).st_ino == inode
    other = {**FILES, "shoal/a/b.py": b"VALUE = 2\n"}
    digest = bootstrap.digest_of(other.__getitem__, NAMES)
    assert bootstrap.unpacked(digest, NAMES, other) == str(place / digest)
    assert sorted(path.name for path in place.iterdir()) == sorted((DIGEST, digest))


def link(path: pathlib.Path) -> None:
    elsewhere = path.with_name("elsewhere")
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


@pytest.mark.parametrize(
    "damage",
    [
        lambda directory: (directory / "shoal/a/b.py").write_bytes(b"VALUE = 3\n"),
        lambda directory: (directory / "shoal/a/b.py").unlink(),
        lambda directory: (directory / "shoal/a/foreign.py").write_bytes(b""),
        lambda directory: link(directory / "shoal/a/b.py"),
        lambda directory: link(directory / "shoal/a"),
        lambda directory: link(directory),
        lambda directory: (directory.rename(directory.with_name("moved")), directory.write_bytes(b"PK")),
    ],
    ids=["changed", "missing", "foreign", "linked file", "linked folder", "link", "a file"],
)
def test_what_is_damaged_is_replaced(place: pathlib.Path, damage: Callable[[pathlib.Path], Any]) -> None:
    """Never imported: where there is no zip to make it anew, it counts as missing."""
    bootstrap.unpacked(DIGEST, NAMES, FILES)
    damage(place / DIGEST)
    assert bootstrap.unpacked(DIGEST, NAMES, None) is None
    assert bootstrap.unpacked(DIGEST, NAMES, FILES) == str(place / DIGEST)
    assert bootstrap.holds(str(place / DIGEST), DIGEST, NAMES)
    assert not [path for path in place.iterdir() if path.name.startswith("tmp")]


def test_a_race_is_won_by_the_first(place: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process puts it there between this one's look and its own rename."""
    rename = os.rename

    def late(source: str, target: str) -> None:
        monkeypatch.setattr(os, "rename", rename)
        bootstrap.unpacked(DIGEST, NAMES, FILES)
        rename(source, target)

    monkeypatch.setattr(os, "rename", late)
    assert bootstrap.unpacked(DIGEST, NAMES, FILES) == str(place / DIGEST)
    assert [path.name for path in place.iterdir()] == [DIGEST]


def test_nothing_of_another_user_is_used(place: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that others may write to, a link, a file, and one that another user made."""
    bootstrap.unpacked(DIGEST, NAMES, FILES)
    place.chmod(0o770)
    assert bootstrap.unpacked(DIGEST, NAMES, FILES) is None
    place.chmod(0o700)
    assert bootstrap.unpacked(DIGEST, NAMES, FILES) is not None
    ours = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: ours + 1)
    theirs = place.with_name(f"shoal-spark-{ours + 1}")
    place.rename(theirs)
    assert bootstrap.unpacked(DIGEST, NAMES, FILES) is None
    monkeypatch.setattr(os, "geteuid", lambda: ours)
    place.symlink_to(theirs)
    assert bootstrap.unpacked(DIGEST, NAMES, FILES) is None
    place.unlink()
    place.write_bytes(b"")
    assert bootstrap.unpacked(DIGEST, NAMES, FILES) is None


def test_no_temporary_directory_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python finds none, or one that takes no file."""
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    assert bootstrap.unpacked(DIGEST, NAMES, FILES) is None
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", list)
    assert bootstrap.unpacked(DIGEST, NAMES, FILES) is None


PROGRAM = """
import json, os, pathlib, pickle, sys, tempfile, traceback
sys.path.append(SITE)
HERE = pathlib.Path.cwd()
tempfile.tempdir = str(HERE / "tmp")
said = {}

def opened(name):
    try:
        error = pickle.loads((HERE / name).read_bytes())
    except ImportError as refused:
        return str(refused)
    import shoal.errors
    assert error is shoal.errors.ShoalError
    return [getattr(shoal.errors, "OTHER", 0), shoal.errors.__file__]

said["nothing"] = opened("light")
said["damaged"], said["foreign"] = opened("damaged"), opened("foreign")
said["first"] = opened("whole")
said["other"] = opened("other")
said["back"] = opened("light")  # unpacked on this machine: nothing has to be sent
tempfile.tempdir = "/proc"
said["memory"] = opened("other")
sys.path.insert(1, str(HERE / "spark-files"))
said["delivered"] = opened("light")
print(json.dumps(said))
"""


def sealed(made: Shipment, name: str, **changes: Any) -> None:
    """A pickle of one of Shoal's classes, as Spark would carry it."""
    import shoal.errors

    function, arguments = made._replace(**changes).around(shoal.errors.ShoalError, False)
    pathlib.Path(name).write_bytes(pickle.dumps(_Reduced(function, arguments)))


class _Reduced:
    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __reduce__(self) -> Any:
        return self.parts


def run_bare(program: str, directory: pathlib.Path) -> Any:
    """What a program prints in an interpreter that has this one's packages, but no Shoal."""
    text = program.replace("SITE", repr(site.getsitepackages()[0]))
    ran = subprocess.run(
        [sys.executable, "-I", "-S", "-c", text], cwd=directory, capture_output=True, text=True, timeout=100
    )
    assert ran.returncode == 0, ran.stderr[-3_000:]
    return json.loads(ran.stdout)


def test_two_versions_in_one_worker(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pickle finds the Shoal it was made with, from the zip, the machine, memory or Spark's files; a zip
    that is damaged or holds something else is refused in one line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tmp").mkdir()
    (tmp_path / "spark-files").mkdir()
    files = spark_setup.files()
    made = shipment.pack(files, spark_setup.zipped(files))
    assert made.archive is not None
    altered = {**files, "shoal/errors.py": files["shoal/errors.py"] + b"\nOTHER = 1\n"}
    other = shipment.pack(altered, spark_setup.zipped(altered))
    sealed(made, "whole")
    sealed(made, "light", archive=None)
    sealed(made, "damaged", archive=made.archive[:1_000] + b"\xff" + made.archive[1_001:])
    sealed(made, "foreign", archive=other.archive)
    sealed(other, "other")
    (tmp_path / "spark-files" / f"shoal-{made.digest}.zip").write_bytes(made.archive)
    said = run_bare(PROGRAM, tmp_path)
    home = tmp_path / "tmp" / f"shoal-spark-{os.geteuid()}"
    assert said["nothing"].endswith(".zip here: call register(spark) again")
    assert " is damaged (" in said["damaged"]
    assert said["foreign"].endswith(" holds another Shoal: call register(spark) again")
    assert said["first"] == said["back"] == [0, str(home / made.digest / "shoal" / "errors.py")]
    assert said["other"] == [1, str(home / other.digest / "shoal" / "errors.py")]
    assert said["memory"] == [1, f"/<shoal {other.digest}>/shoal/errors.py"]
    assert said["delivered"] == [0, f"/<shoal {made.digest}>/shoal/errors.py"]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch, place: pathlib.Path) -> Iterator[Shipment]:
    """As in a planning process of Spark where the same Shoal is installed."""
    files = spark_setup.files()
    made = shipment.pack(files, spark_setup.zipped(files))._replace(is_delivered=True)
    monkeypatch.setattr(shipment, "received", None)
    assert pickle.loads(pickle.dumps(SentSource(ShoalDataSource, made))) is ShoalDataSource
    assert not place.exists()  # the same Shoal is here: nothing was unpacked
    yield made
    vars(sys.modules["shoal"]).pop("_digest")


def test_the_zip_goes_to_planners_and_never_with_a_task(
    sent: Shipment, monkeypatch: pytest.MonkeyPatch, place: pathlib.Path
) -> None:
    """Sizes of all that Spark pickles. Objects come out as they went in."""
    assert sent.archive is not None
    zip_bytes = len(sent.archive)
    source = ShoalDataSource({"subscribe": "t"})
    assert zip_bytes < len(pickle.dumps(source)) < zip_bytes + 6_000  # for the process that plans a stream
    schema = source.schema()
    reader, stream = source.reader(schema=schema), source.streamReader(schema=schema)
    writer = ShoalDataSource({"topic": "t"}).streamWriter(
        StructType([StructField("value", BinaryType())]), False
    )
    for shipped in (source, reader, stream, writer):
        pickled = pickle.dumps(shipped)
        assert len(pickled) < 6_000
        assert type(pickle.loads(pickled)) is type(shipped)
    assert pickle.loads(pickle.dumps(reader))._options == reader._options
    scan = Scan(OffsetRange("t", 0, 0, 9, ("http://h:1",)), ("http://h:1",), ("key",), True)
    assert len(pickle.dumps(ShoalPartition(scan))) < 600
    monkeypatch.setattr(shipment, "received", sent._replace(is_delivered=False))
    assert len(pickle.dumps(reader)) > zip_bytes  # no temporary directory to deliver it from
    assert not place.exists()


def test_the_zip_is_delivered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among the files of a context, or as an artifact of a session; not where no file can be written."""
    made = Shipment("0" * 32, ("shoal/__init__.py",), b"zip", is_delivered=False)

    listed: list[str] = []
    served: list[str] = []
    context = SimpleNamespace(
        listFiles=listed,
        addFile=lambda path: (
            served.append(path) or listed.append(f"spark://h/files/{os.path.basename(path)}")
        ),
    )
    for _ in range(2):
        assert shipment.deliver(made, SimpleNamespace(sparkContext=context)).is_delivered
    assert listed == [f"spark://h/files/shoal-{made.digest}.zip"]
    assert pathlib.Path(*served).read_bytes() == b"zip"
    artifacts: list[tuple[bytes, bool]] = []
    connected = SimpleNamespace(
        addArtifacts=lambda path, file: artifacts.append((pathlib.Path(path).read_bytes(), file))
    )
    assert shipment.deliver(made, connected).is_delivered
    assert artifacts == [(b"zip", True)]
    monkeypatch.setattr(tempfile, "tempdir", "/proc")
    assert shipment.deliver(made, connected) == made


def test_a_source_without_register_is_pickled_as_ever() -> None:
    """By name, for workers that have Shoal installed."""
    reader = ShoalDataSource({"subscribe": "t"}).streamReader(ShoalDataSource({"subscribe": "t"}).schema())
    assert len(pickle.dumps(reader)) < 1_000
    assert isinstance(pickle.loads(pickle.dumps(SourceError("x"))), SourceError)
