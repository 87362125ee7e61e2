"""A start that is forked from the warm process is as any other: what a program sees of it, and its end."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import resource
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import warm_process
import warm_start
from warm_process import HEADER
from warm_start import WARM, decisive, program_of

SECONDS = 60.0
SEEN = """
import json, os, resource, signal, sys
open_files = sorted(name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}"))
limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
print(json.dumps({
    "arguments": sys.argv, "original": sys.orig_argv[1:], "path": sys.path[0], "name": __name__,
    "directory": os.getcwd(), "environment": dict(os.environ), "umask": os.umask(0), "files": open_files,
    "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()], "parent": os.getppid(),
    "limits": {name: resource.getrlimit(getattr(resource, name)) for name in limits},
    "signals": {int(one): str(signal.getsignal(one)).split(" at ")[0] for one in signal.valid_signals()},
    "blocked": sorted(map(str, signal.pthread_sigmask(signal.SIG_BLOCK, ()))),
    "input": sys.stdin.read(),
    "streams": [
        [stream.encoding, stream.errors, stream.line_buffering, stream.isatty(), repr(stream)]
        for stream in (sys.stdin, sys.stdout, sys.stderr)
    ],
}, sort_keys=True))
"""
ENDS = {
    "nothing": "print('done')",
    "number": "import sys; print('done'); sys.exit(3)",
    "large number": "import sys; sys.exit(259)",
    "words": "import sys; sys.exit('cannot')",
    "interruption": "print('until now', flush=True); raise KeyboardInterrupt",
    "signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "at exit": "import atexit, sys; atexit.register(print, 'last'); sys.exit(1)",
    "thread": "import sys, threading, time; threading.Timer(0.3, print, ['later']).start(); sys.exit(0)",
    "output that fails": "import os, sys; print('x'); os.close(1); sys.exit(0)",
    "garbage": textwrap.dedent("""
        import sys
        class Left:
            def __del__(self): print('collected', file=sys.stderr)
        left = Left(); left.itself = left; del left
        sys.exit(0)
    """),
}


@pytest.fixture
def command(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Makes a program that stands for the command `shoal`; returns its path."""

    def make(code: str) -> str:
        path = tmp_path / "shoal"
        path.write_text(f"#!{sys.executable}\n{code}")
        path.chmod(0o755)
        monkeypatch.setattr(warm_start, "SHOAL", os.fsencode(path))
        return str(path)

    return make


def both(start: Callable[[], Any]) -> tuple[Any, Any]:
    """What a real start gives, and a warm one."""
    WARM.is_off = True
    real = start()
    WARM.is_off, starts = False, WARM.starts
    warm = start()
    assert WARM.starts == starts + 1
    return real, warm


def run(*words: str, **options: Any) -> tuple[int, str, str]:
    """Exit code, output and complaints."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=SECONDS, **options)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"start_new_session": True, "env": {"A": "b", "PATH": "/bin", "ODD": "\udcff"}},
        {"process_group": 0, "cwd": "/", "input": "typed"},
    ],
    ids=["plain", "session", "group"],
)
def test_a_program_sees_the_same(command: Callable[[str], str], options: dict[str, Any]) -> None:
    """Arguments, variables, files, limits, signals, and whose child it is."""
    path = command(SEEN)
    if "env" in options:
        kept = {os.fsdecode(name): os.fsdecode(value) for name, value in decisive(os.environb).items()}
        options = options | {"env": options["env"] | kept}
    real, warm = both(lambda: run(path, "one", "zwei \u00fc", "\udcfe", **({"input": ""} | options)))
    assert (real[0], real[2]) == (warm[0], warm[2]) == (0, "")
    assert json.loads(real[1]) == json.loads(warm[1])
    assert json.loads(warm[1])["parent"] == os.getpid()


def test_what_this_process_has_changed_is_inherited(
    command: Callable[[str], str], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its mask, directory, variables, limits, and the signals that it ignores or blocks."""
    path = command(SEEN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_ODD", "1")
    umask = os.umask(0o027)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files[0] - 1, files[1]))
        real, warm = both(lambda: run(path, input=""))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, files)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
        signal.signal(signal.SIGINT, interrupt)
        os.umask(umask)
    seen = json.loads(warm[1])
    assert json.loads(real[1]) == seen
    assert (seen["umask"], seen["directory"], seen["environment"]["SHOAL_ODD"]) == (0o027, str(tmp_path), "1")
    assert seen["limits"]["RLIMIT_NOFILE"][0] == files[0] - 1
    assert seen["signals"][str(int(signal.SIGINT))] == str(signal.SIG_IGN)


@pytest.mark.parametrize("code", ENDS.values(), ids=ENDS.keys())
def test_a_program_ends_the_same(command: Callable[[str], str], code: str) -> None:
    """Its code or signal, and what it says; a trace names one more place."""
    path = command(code)
    real, warm = both(lambda: run(path))
    assert real[:2] == warm[:2]
    assert real[2].splitlines()[-1:] == warm[2].splitlines()[-1:]
    if "Traceback" not in real[2]:
        assert real[2] == warm[2]


async def test_asyncio_starts_it_and_hears_of_its_end(command: Callable[[str], str]) -> None:
    """Pipes, a signal, and the end of a process that was killed."""
    path = command("import sys\nfor line in sys.stdin: print(line.upper(), end='', flush=True)")
    starts = WARM.starts
    process = await asyncio.create_subprocess_exec(
        path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert WARM.starts == starts + 1
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"one\n")
    async with asyncio.timeout(SECONDS):
        assert await process.stdout.readline() == b"ONE\n"
        process.kill()
        assert await process.wait() == -signal.SIGKILL


def test_the_command_itself_says_the_same() -> None:
    """Both ways to call it, a success and a failure."""
    shoal = str(pathlib.Path(sys.executable).parent / "shoal")
    for words in ((shoal,), (sys.executable, "-m", "shoal.agent")):
        for arguments in (("--version",), ("nothing",), ("members", "--agent", "http://127.0.0.1:1")):
            real, warm = both(lambda said=(*words, *arguments): run(*said))
            assert real == warm


def test_what_is_no_plain_start_of_the_command_is_left_alone() -> None:
    """Other programs, and variables that are read at import."""
    python = os.fsencode(sys.executable)
    assert program_of([python, b"-c", b"pass"]) is None
    assert program_of([python, b"-m", b"shoal.agents"]) is None
    assert program_of([b"/bin/true"]) is None
    assert program_of([python, b"-m", b"shoal.agent", b"x"]) == (None, [b"x"])
    starts = WARM.starts
    said = [sys.executable, "-m", "shoal.agent", "--version"]
    assert run(*said, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "x"})[0] == 0
    assert run(*said, preexec_fn=lambda: None)[0] == 0
    assert WARM.starts == starts


@pytest.mark.parametrize("sent", [b"", b"\0\0", HEADER.pack(9), HEADER.pack(9) + b"\0" * 8])
def test_the_warm_process_ends_with_its_asker_in_the_middle_of_a_word(sent: bytes) -> None:
    """And does not ask for the rest for ever."""
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall(sent)
        assert warm_process.receive(theirs) is None


def test_an_interrupted_start_leaves_no_answer_for_the_next(
    command: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next would wait for the process of the one before."""
    path = command("import sys; print(sys.argv[1])")
    send = socket.send_fds

    def interrupted(*arguments: Any) -> None:
        send(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as once:
        once.setattr(socket, "send_fds", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(path, "first")
    assert run(path, "second") == (0, "second\n", "")
