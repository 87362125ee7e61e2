"""`shoal agent` and `shoal dev`: run an agent in this process.

Law of this file: it gathers flags, environment and file into an AgentConfig, and hands over to run_agent;
what the values mean is decided there.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shutil
import tempfile
import time
import tomllib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.agent.cli.terminal.output import CliError, example, say

if TYPE_CHECKING:
    from shoal.agent.agent import Agent
    from shoal.agent.config import AgentConfig

CONFIG_FILE_BYTES_MAX = 1 << 20
DEV_PREFIX = "shoal-dev-"
ABANDONED_SECONDS = 60
"""A directory that was changed since may belong to a run that has not taken its lock yet."""
COLLECTED_OBJECTS = 10_000
"""New objects between two collections of the youngest: a third of a millisecond each, where 700, the default,
would have tens of them a second look at the same requests in flight."""


ScrubOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="Read what is stored again, so fast; default 8388608; 0: never."),
]
WeightOption = Annotated[
    int | None, typer.Option("--weight", metavar="N", help="Its share of the replicas; default 100.")
]


def register(app: typer.Typer) -> None:
    """Add the commands to `shoal`."""
    app.command(
        epilog=example(
            "shoal agent --data /var/lib/shoal",
            "shoal agent --data d2 --bind 10.0.0.8 --cluster prod --join 10.0.0.7:7946 --expect 3",
        )
    )(agent)
    app.command(epilog=example("shoal dev", "shoal dev --http-port 8080"))(dev)


def agent(
    data: Annotated[str | None, typer.Option(metavar="DIR", help="Where everything is kept.")] = None,
    bind: Annotated[
        str | None, typer.Option(metavar="ADDR", help="Listen here; the default is 127.0.0.1.")
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(metavar="ADDR", help="The address others reach this agent at, if not --bind's."),
    ] = None,
    http_port: Annotated[
        int | None, typer.Option(metavar="PORT", help="HTTP; default 7070, or the next one that is free.")
    ] = None,
    gossip_port: Annotated[
        int | None, typer.Option(metavar="PORT", help="Gossip; default 7946, or the next one that is free.")
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(metavar="NAME", help="The cluster; given, it is also looked for by mDNS.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="This agent's name; default HOST-xxxxxxxx.")
    ] = None,
    join: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST:PORT", help="Gossip address of a member; may be repeated."),
    ] = None,
    expect: Annotated[
        int | None, typer.Option(metavar="N", help="Start a new cluster only once N agents have met.")
    ] = None,
    failure_domain: Annotated[
        str | None,
        typer.Option(metavar="D", help="What fails together, as a rack; replicas prefer different ones."),
    ] = None,
    weight: WeightOption = None,
    replace_after: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Replace the replicas of an agent gone for so long; default 5m."),
    ] = None,
    scrub_bytes_per_s: ScrubOption = None,
    gossip: Annotated[
        str | None, typer.Option(metavar="KIND", help="embedded, the default, or serf: by a Serf agent.")
    ] = None,
    serf_rpc: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="That Serf agent's RPC; default 127.0.0.1:7373."),
    ] = None,
    serf_auth_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Its rpc_auth, if it has one.")
    ] = None,
    gossip_key: Annotated[
        str | None,
        typer.Option(metavar="KEY|@FILE", help="Seal gossip with this key; `shoal keygen` prints one."),
    ] = None,
    gossip_label: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only meet agents of the same label; Serf has none.")
    ] = None,
    cores: Annotated[
        int | None,
        typer.Option(metavar="N", help="Run N agents on this host, each with a directory of its own."),
    ] = None,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="TOML with the same names as the flags.")
    ] = None,
) -> None:
    """Run an agent. Flags win over SHOAL_* variables, those over the file.

    SIGTERM or Ctrl-C hands leadership over and leaves; a second one stops at once.
    """
    flags = dict(locals())  # every parameter, and nothing else yet: their names are those of the settings
    del flags["config"]
    raise typer.Exit(_run(_configuration(flags, dict(os.environ), _read_file(config))))


def _read_file(path: str | None) -> dict[str, Any]:
    path = path or os.environ.get("SHOAL_CONFIG")
    if not path:
        return {}
    try:
        with open(path, "rb") as file:
            return tomllib.loads(file.read(CONFIG_FILE_BYTES_MAX).decode())
    except OSError as error:
        raise CliError(f"--config {path}: {error.strerror}", "name a readable TOML file") from error
    except ValueError as error:
        raise CliError(f"--config {path} is not TOML: {error}", "mend the file") from error


def _configuration(flags: dict[str, Any], environment: dict[str, str], file: dict[str, Any]) -> AgentConfig:
    from shoal.agent.config import AgentConfig, ConfigError

    try:
        return AgentConfig.from_sources(flags, environment, file)
    except ConfigError as error:
        raise CliError(str(error), exit_code=2) from error


def _run(config: AgentConfig, *, greet: bool = False) -> int:
    from shoal.agent.process.footprint import import_no_frames, keep_freed_memory

    import_no_frames()  # before pyarrow is imported, with all that follows
    keep_freed_memory()
    from shoal.agent.agent import run_agent
    from shoal.agent.log_lines.repeats import RepeatFilter
    from shoal.agent.process.event_loop import new_event_loop

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    for handler in logging.getLogger().handlers:
        handler.addFilter(RepeatFilter())
    direct = config.event_loop == "direct"
    with asyncio.Runner(loop_factory=lambda: new_event_loop(direct=direct)) as runner:
        return runner.run(run_agent(config, lambda agent: _begin(agent, greet)))


def _begin(agent: Agent, greet: bool) -> None:
    """The agent serves. What its start has made lives as long as it does: the collector need not go through
    half a million objects again and again while requests wait (a tenth of a small request's time)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECTED_OBJECTS, *gc.get_threshold()[1:])
    if greet:
        _greet(agent)


def dev(
    http_port: Annotated[
        int | None, typer.Option(metavar="PORT", help="HTTP; default 7070, or the next one that is free.")
    ] = None,
) -> None:
    """Run one agent for trying things out: no configuration, temporary data, alone.

    The data are removed when it ends.
    """
    clear_abandoned(tempfile.gettempdir(), time.time())
    directory = tempfile.mkdtemp(prefix=DEV_PREFIX)
    say(f"data: {directory} (removed when this ends)")
    flags = {
        "data": directory,
        "http_port": http_port,
        "mdns": False,
        "expect": 1,
        "name": "dev",
        "cluster": "dev",
    }
    try:
        code = _run(_configuration(flags, {}, {}), greet=True)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    raise typer.Exit(code)


def clear_abandoned(parent: str, now_s: float) -> list[str]:
    """Remove the data of `shoal dev` runs that could not (kill -9, a crash): this user's own directories that
    no living process holds. One that is about to begin is left alone. Returns what was removed."""
    from shoal.segment_store.disk.lock import LOCK_FILE, DirectoryLock
    from shoal.segment_store.errors import NotOwner

    removed = []
    for entry in os.scandir(parent):
        if not entry.name.startswith(DEV_PREFIX) or not entry.is_dir(follow_symlinks=False):
            continue
        state = entry.stat(follow_symlinks=False)
        is_young = now_s - state.st_mtime < ABANDONED_SECONDS
        if state.st_uid != os.getuid() or is_young or not os.path.exists(os.path.join(entry.path, LOCK_FILE)):
            continue
        lock = DirectoryLock(entry.path)
        try:
            lock.acquire()
        except (NotOwner, OSError):
            continue  # it runs, or is somebody's whom this process may not touch
        shutil.rmtree(entry.path, ignore_errors=True)
        lock.release()
        removed.append(entry.path)
    return removed


def _greet(running: Agent) -> None:
    url = running.url
    say(f"ready: {url}")
    print(f"curl --data-binary hello {url}/v1/topics/greetings/records")
    print(f"curl {url}/v1/topics/greetings/partitions/0/records")
    print(f"curl {url}/v1/members", flush=True)
