"""Where the tests with real Serf agents find their binary, and how loudly they say that there is none."""

import os
import pathlib
import subprocess
import sys

import pytest
import serf_binary

WITHOUT_SERF = """
import pathlib, sys, pytest, serf_binary
serf_binary.BINARY = pathlib.Path("/nowhere/serf")
sys.exit(pytest.main(["tests/serf", "-q", "-p", "no:cacheprovider"]))
"""


def test_a_binary_that_is_named_must_be_serfs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """Another program under that name, or none at all, is said and not used."""
    monkeypatch.setenv(serf_binary.VARIABLE, "/bin/echo")
    with pytest.raises(serf_binary.SerfProblem, match="is not HashiCorp's Serf"):
        serf_binary.ensure()
    monkeypatch.setenv(serf_binary.VARIABLE, str(tmp_path / "serf"))
    with pytest.raises(serf_binary.SerfProblem, match="does not run"):
        serf_binary.ensure()


def test_without_apt_there_is_a_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """A machine of another kind runs all other tests."""
    monkeypatch.delenv(serf_binary.VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(serf_binary, "BINARY", tmp_path / "serf")
    with pytest.raises(serf_binary.SerfProblem, match="no `serf` on PATH, and no apt-get"):
        serf_binary.ensure()


def test_what_did_not_run_is_said() -> None:
    """With the reason that scripts/test gave, at the end of the run, where people look."""
    reason = "`apt-get -q download` failed: is there a network?"
    variables = {key: value for key, value in os.environ.items() if key != serf_binary.VARIABLE}
    path = [
        folder
        for folder in variables["PATH"].split(os.pathsep)
        if not (pathlib.Path(folder) / "serf").exists()
    ]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SERF],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        cwd=pathlib.Path(__file__).parents[2],
        env=variables
        | {
            serf_binary.REASON_VARIABLE: reason,
            "PATH": os.pathsep.join(path),
            "PYTHONPATH": os.pathsep.join([str(pathlib.Path(serf_binary.__file__).parent), os.getcwd()]),
        },
    )
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, done.stdout
    assert "DID NOT RUN" in done.stdout
    assert reason in done.stdout
