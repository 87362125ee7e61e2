"""`shoal spark init` and `shoal spark run` until Spark would start: the project, each fault in one line."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import pathlib
import re
import socket
from typing import Any, TypeAlias

import pytest

from shoal.agent.cli import spark as spark_command
from shoal.agent.cli.main import main
from shoal.spark import setup as spark_setup
from shoal.spark.options.errors import SourceError
from shoal.spark.pipelines import launch, project
from shoal.spark.pipelines.template import FILES, SETTINGS_FILE, SPEC_FILE

Cluster: TypeAlias = Any  # conftest's
PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "spark.md"
HAS_PIPELINES = importlib.util.find_spec("pyspark.pipelines") is not None  # from Spark 4.1
SHOWN = (SETTINGS_FILE, "transformations/orders.py", "transformations/customers.sql")
Started = list[tuple[list[str], dict[str, str], pathlib.Path]]


@pytest.fixture(autouse=True)
def spark_with_pipelines(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The installed Spark, or one that is made up where that has no pipelines (4.0): nothing is started."""
    if not HAS_PIPELINES:
        program = tmp_path_factory.mktemp("spark") / "pyspark" / "bin" / "spark-pipelines"
        program.parent.mkdir(parents=True)
        program.touch()
        monkeypatch.setenv("SPARK_HOME", str(program.parent.parent))


@pytest.fixture
def shop(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """A new project, and the working directory is in it."""
    place = project.create(tmp_path / "shop")
    monkeypatch.chdir(place / "transformations")
    return place


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """What would become of the process instead of Spark; its port is free."""
    found: Started = []
    monkeypatch.setattr(spark_command, "become", lambda *given: found.append(given))
    monkeypatch.setattr(launch, "check_port", lambda: None)
    monkeypatch.setattr(spark_setup.java, "find", lambda directory, environment: pathlib.Path("/opt/java"))
    return found


def refused(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of a command that fails."""
    assert main(["spark", *arguments]) in (1, 2)
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    return err


def test_the_page_shows_the_template() -> None:
    """docs/spark.md has the text that `init` writes, for a project in /home/ann/shop."""
    text = PAGE.read_text()
    for name in SHOWN:
        written = project.filled(FILES[name], pathlib.Path("/home/ann/shop"))
        assert f"\n{written}```\n" in text, name


def test_init_writes_a_project(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    """All files, with the paths of this project; the words say what comes next."""
    place = tmp_path / "new" / "läden"
    assert main(["spark", "init", str(place)]) == 0
    assert {str(path.relative_to(place)) for path in place.rglob("*") if path.is_file()} == set(FILES)
    assert f'name: "läden"\nstorage: "file://{place}/pipeline-storage"\n' in (place / SPEC_FILE).read_text()
    assert f"databaseName={place}/metastore_db;create=true" in (place / SETTINGS_FILE).read_text()
    assert not re.search("@[a-z]+@", "".join(path.read_text() for path in place.glob("spark*")))
    said = capfd.readouterr().err
    assert "shoal spark run" in said
    for topic in re.findall(r"""subscribe", "(\w+)|"topic": "(\w+)""", FILES["transformations/orders.py"]):
        assert f"shoal topic create {''.join(topic)}" in said


def test_init_overwrites_nothing(tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A directory that is there, one below a file, a path that Spark would read otherwise."""
    (tmp_path / "shop").mkdir()
    assert "shop exists: nothing was written" in refused(capfd, "init", str(tmp_path / "shop"))
    assert list((tmp_path / "shop").iterdir()) == []
    (tmp_path / "file").touch()
    assert "cannot be made: Not a directory" in refused(capfd, "init", str(tmp_path / "file" / "shop"))
    for name in ("my shop", "shop;create=true", "a*b"):
        assert "Spark cannot keep a project below a path with" in refused(capfd, "init", str(tmp_path / name))
        assert not (tmp_path / name).exists()


def test_init_on_a_full_or_read_only_disk_leaves_nothing(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Half a project would look like a whole one."""
    write = pathlib.Path.write_text

    def fail_late(path: pathlib.Path, text: str, **given: Any) -> int:
        if path.suffix == ".sql":
            raise OSError(28, "No space left on device", str(path))
        return write(path, text, **given)

    monkeypatch.setattr(pathlib.Path, "write_text", fail_late)
    assert "customers.sql cannot be written: No space left" in refused(capfd, "init", str(tmp_path / "shop"))
    assert not (tmp_path / "shop").exists()
    monkeypatch.setattr(project.os, "mkdir", fail_to_make)
    assert "cannot be made: Read-only file system" in refused(capfd, "init", str(tmp_path / "shop"))


def fail_to_make(path: str, *_: Any, **__: Any) -> None:
    """As on a read-only disk, also for root."""
    raise OSError(30, "Read-only file system", str(path))


def test_run_becomes_spark_pipelines(
    shop: pathlib.Path, started: Started, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From below the project: spec and settings, all cores, Java, Python, the agent; options of Spark
    stand as they are."""
    if HAS_PIPELINES:
        monkeypatch.delenv("SPARK_HOME", raising=False)
    url = cluster.url(0)
    refresh = ["--full-refresh", "orders,customers", "--refresh", "a"]
    assert main(["spark", "run", "--agent", url, *refresh, "--", "--conf", "a=b"]) == 0
    assert main(["spark", "run", "--dry-run", "--", "--remote=local[3]"]) == 0
    (words, variables, directory), (dry, _, _) = started
    assert directory == shop
    assert words[0].endswith("/pyspark/bin/spark-pipelines")
    assert words[1:4] == ["run", "--spec", str(shop / SPEC_FILE)]
    settings = ["--properties-file", str(shop / SETTINGS_FILE)]
    wanted = ["--full-refresh", "orders,customers", "--refresh", "a"]
    assert words[4:] == [*settings, "--remote", "local[*]", "--conf", "a=b", *wanted]
    assert (variables["SHOAL_AGENT"], variables["JAVA_HOME"]) == (url, "/opt/java")
    assert variables["PYSPARK_PYTHON"]
    assert dry[1:] == ["dry-run", "--spec", str(shop / SPEC_FILE), *settings, "--remote=local[3]"]


def test_a_server_has_settings_of_its_own(
    shop: pathlib.Path, started: Started, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With --remote sc://, neither the project's settings nor a free port count."""
    monkeypatch.setattr(launch, "check_port", lambda: pytest.fail("it was asked for"))
    remote = ["--remote", "sc://server:15002"]
    assert main(["spark", "run", "--full-refresh-all", "--agent", cluster.url(0), "--", *remote]) == 0
    assert started[0][0][2:] == ["--spec", str(shop / SPEC_FILE), *remote, "--full-refresh-all"]


def test_no_agent_is_told_before_spark_starts(
    shop: pathlib.Path, started: Started, capfd: pytest.CaptureFixture[str]
) -> None:
    """Unless the project's own files name agents."""
    nobody = ("run", "--agent", "http://127.0.0.1:1")
    assert "is an agent running? Start one with `shoal dev`" in refused(capfd, *nobody)
    assert started == []
    path = shop / "transformations" / "orders.py"
    path.write_text(path.read_text().replace('{"topic"', '{"agent": "http://log:7070", "topic"'))
    assert main(["spark", *nobody]) == 0
    assert len(started) == 1


def test_what_is_missing_is_told(
    shop: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """PySpark, its pipelines, what its extra brings."""
    install = "pip install 'shoal-log[pipelines]'"
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda name: None)
        assert refused(capfd, "run") == f"shoal: PySpark is not installed: {install}\n"
    with monkeypatch.context() as patch:
        patch.setenv("SPARK_HOME", str(shop))
        assert "has no spark-pipelines: pipelines came with Spark 4.1" in refused(capfd, "run")
    with monkeypatch.context() as patch:
        if HAS_PIPELINES:
            patch.delenv("SPARK_HOME", raising=False)
        patch.setattr(launch, "missing_distributions", lambda: ["pyyaml", "grpcio"])
        assert refused(capfd, "run") == f"shoal: Spark's pipelines need pyyaml, grpcio: {install}\n"


def test_what_pyspark_lists_is_looked_for() -> None:
    """The extra's packages by their names, and nothing of other extras."""
    listed = ["py4j<0.11", 'numpy>=1; extra == "ml"', 'grpcio-status>=1.76.0; extra == "pipelines"']
    asked = []

    def version(name: str) -> str:
        asked.append(name)
        raise importlib.metadata.PackageNotFoundError(name)

    assert launch.missing_distributions(lambda _: listed, version) == ["grpcio-status"]
    assert asked == ["grpcio-status"]
    assert launch.missing_distributions() == []
    extra = "pyyaml" in " ".join(importlib.metadata.requires("pyspark") or [])
    assert extra == HAS_PIPELINES


def test_a_held_port_is_told() -> None:
    """Of an address or of all; a free one is free afterwards, too."""
    for address in ("127.0.0.1", ""):
        with socket.create_server((address, 0)) as held:
            port = held.getsockname()[1]
            with pytest.raises(SourceError, match=rf"^port {port} is in use: another run of Spark has it"):
                launch.check_port(port)
        launch.check_port(port)
        launch.check_port(port)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["orders"], "'orders' is no option of Spark; name a spec with --spec"),
        (["--full-refres", "orders"], "No such option"),
        (["--spec", "none.yml"], "--spec: there is no file 'none.yml'"),
        (["--full-refresh-all", "--refresh", "orders"], "--full-refresh-all takes all tables"),
        (["--dry-run", "--full-refresh", "orders"], "--dry-run refreshes nothing"),
        (["--", "--conf", "spark.connect.grpc.binding.port=15003"], "dials 15002 whatever it says"),
    ],
)
def test_other_misuse_is_told(
    shop: pathlib.Path, started: Started, capfd: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    """Before anything starts."""
    assert says in refused(capfd, "run", *arguments)
    assert started == []


def test_a_project_has_to_be_found_and_writable(
    shop: pathlib.Path,
    started: Started,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """None, two specs, a directory that this user may only read, one that was moved below a space."""
    with monkeypatch.context() as patch:
        patch.setattr(project.os, "access", lambda path, mode: False)
        assert "shop is read-only for this user" in refused(capfd, "run")
    moved = shop.rename(shop.with_name("my shop"))
    assert "Spark cannot keep a project below a path with ' '" in refused(
        capfd, "run", "--spec", str(moved / SPEC_FILE)
    )
    (moved / "spark-pipeline.yaml").touch()
    assert "has both spark-pipeline.yml and spark-pipeline.yaml" in refused(capfd, "run")
    monkeypatch.chdir(moved.parent)
    assert "or begin one with `shoal spark init NAME`" in refused(capfd, "run")
    assert started == []
