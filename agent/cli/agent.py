"""`shoal agent` and `shoal dev`: run an agent in this process.

Law of this file: it gathers flags, environment and file into an AgentConfig for run_agent. The meaning of a
value is decided there.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shutil
import stat
import tempfile
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shoal.agent.cli.terminal.options import example, flag, option
from shoal.agent.cli.terminal.output import UsageError, say

if TYPE_CHECKING:
    from shoal.agent.agent import Agent
    from shoal.agent.config import AgentConfig
    from shoal.agent.process.config_source import ConfigFile, ConfigSource

DEV_PREFIX = "shoal-dev-"
ABANDONED_SECONDS = 60
"""A directory that was changed since may belong to a run that has not taken its lock yet."""
COLLECTED_OBJECTS = 10_000
"""New objects between two collections of the youngest generation: a third of a millisecond each. The default
of 700 would look at the same requests in flight tens of times."""

KEY_FLAGS = ("gossip_key", "serf_auth_key")
KEY_FILE_BYTES_MAX = 4_096

InsecureFlag = Annotated[
    bool | None, flag("Start beyond loopback without TLS, authentication or a gossip key.", "--insecure")
]
CertificateOption = Annotated[
    str | None, option("FILE", "This agent's certificate: HTTP and links speak TLS.")
]
AuthorityOption = Annotated[str | None, option("FILE", "Authorities of agents' and clients' certificates.")]
TlsClientsOption = Annotated[
    str | None, option("KIND", "Clients' certificates: none, optional or required; default optional.")
]
HttpPort = Annotated[int | None, option("PORT", "HTTP; default 7070, or the next free port.")]

app = typer.Typer()


@app.command(
    epilog=example(
        "shoal agent --data /var/lib/shoal",
        "shoal agent --config /etc/shoal/shoal.toml",
        "shoal agent --insecure --data d --bind 10.0.0.8 --cluster prod --join 10.0.0.7:7946 --expect 3",
    )
)
def agent(
    data: Annotated[str | None, option("DIR", "The data directory.")] = None,
    bind: Annotated[str | None, option("ADDR", "Address to listen on; default 127.0.0.1.")] = None,
    advertise: Annotated[
        str | None, option("HOST", "Address or DNS name that others use, if not --bind's.")
    ] = None,
    http_port: HttpPort = None,
    http_socket: Annotated[str | None, option("PATH", "Serve HTTP at a unix socket, too.")] = None,
    allowed_hosts: Annotated[
        list[str] | None, option("NAME", "A further name for this agent, such as a proxy's; repeatable.")
    ] = None,
    cors_origins: Annotated[
        list[str] | None, option("ORIGIN", "A web page's origin that may use this agent; repeatable.")
    ] = None,
    tls_cert: CertificateOption = None,
    tls_key: Annotated[str | None, option("FILE", "The key of that certificate.")] = None,
    tls_ca: AuthorityOption = None,
    tls_clients: TlsClientsOption = None,
    gossip_port: Annotated[int | None, option("PORT", "Gossip; default 7946, or the next free port.")] = None,
    cluster: Annotated[
        str | None, option("NAME", "The cluster; a given name is searched by mDNS too.")
    ] = None,
    name: Annotated[str | None, option("NAME", "This agent's name; default HOST-xxxxxxxx.")] = None,
    join: Annotated[list[str] | None, option("HOST:PORT", "Gossip address of a member; repeatable.")] = None,
    expect: Annotated[int | None, option("N", "Found a cluster only when N agents have met.")] = None,
    failure_domain: Annotated[
        str | None, option("D", "Rack or zone; replicas are spread over domains.")
    ] = None,
    weight: Annotated[int | None, option("N", "Its share of the replicas; default 100.")] = None,
    replace_after: Annotated[
        str | None, option("TIME", "Replace an agent's replicas after this absence; default 5m.")
    ] = None,
    scrub_bytes_per_s: Annotated[
        int | None, option("N", "Rate at which stored data are verified; default 8388608; 0: never.")
    ] = None,
    hold_level: Annotated[
        bool | None,
        flag("Keep the cluster's feature level until `shoal cluster raise-level`.", "--hold-level"),
    ] = None,
    gossip: Annotated[str | None, option("KIND", "embedded, the default, or serf: by a Serf agent.")] = None,
    serf_rpc: Annotated[
        str | None, option("HOST:PORT", "That Serf agent's RPC; default 127.0.0.1:7373.")
    ] = None,
    serf_auth_key: Annotated[str | None, option("@FILE", "A file with its rpc_auth, if it has one.")] = None,
    gossip_key: Annotated[
        str | None, option("@FILE", "Encrypt gossip with this file's key; `shoal keygen` prints one.")
    ] = None,
    gossip_label: Annotated[
        str | None, option("NAME", "Meet only agents of this label; Serf has none.")
    ] = None,
    insecure: InsecureFlag = None,
    log_format: Annotated[
        str | None, option("FORM", "text, json, or auto: text on a terminal, JSON lines elsewhere.")
    ] = None,
    log_level: Annotated[str | None, option("LEVEL", "debug, info, warning or error; default info.")] = None,
    cores: Annotated[int | None, option("N", "Run N agents, each with a directory of its own.")] = None,
    config: Annotated[str | None, option("FILE", "TOML with the same names as the flags.")] = None,
    check: Annotated[bool, flag("Only check what a start needs; nothing is changed.", "--check")] = False,
) -> None:
    """Run an agent. Flags win over SHOAL_* variables, and variables over the file.

    SIGTERM or Ctrl-C hands leadership over and leaves the cluster; a second one stops at once.
    SIGHUP reads the file again; without a file it is like SIGTERM.
    """
    flags = dict(locals())  # every parameter, and nothing else yet: their names are those of the settings
    del flags["config"], flags["check"]
    source = source_of(flags, config)
    settled, _ = configuration(source)
    raise typer.Exit(_check(settled) if check else _run(settled, source))


def source_of(flags: dict[str, Any], path: str | None) -> ConfigSource:
    """These flags, this process's variables, and the file, which a variable may name. Raises UsageError."""
    from shoal.agent.process.config_source import ConfigSource

    for name in KEY_FLAGS:
        value = flags.get(name)
        if value is not None and not value.startswith("@"):
            option_name = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{option_name} takes @FILE: a key in a command line shows in every process list",
                f"put it into a file of your own, or into SHOAL_{name.upper()}",
            )
    if (named := flags.get("serf_auth_key")) is not None:
        flags = {**flags, "serf_auth_key": _content("--serf-auth-key", named[1:])}
    return ConfigSource(flags, dict(os.environ), path or os.environ.get("SHOAL_CONFIG", ""))


def _content(flag: str, path: str) -> str:
    """Of a file with a key."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(KEY_FILE_BYTES_MAX).strip()
    except OSError as error:
        raise UsageError(f"{flag} @{path}: {error.strerror}", "name a file that holds it") from None
    except UnicodeDecodeError:
        raise UsageError(f"{flag} @{path} is no text", "name a file that holds it") from None


def configuration(source: ConfigSource) -> tuple[AgentConfig, ConfigFile]:
    """Flags, variables and file merged; and the file. Raises UsageError."""
    from shoal.agent.config import ConfigError
    from shoal.agent.process.config_source import ConfigFileError

    try:
        file = source.file()
        return source.settle(file), file
    except ConfigFileError as error:
        raise UsageError(f"--config {error}") from error
    except ConfigError as error:
        raise UsageError(str(error)) from error


def _check(config: AgentConfig) -> int:
    """One line each; 1 where a start would fail."""
    from shoal.agent.start_check import check_start

    findings = asyncio.run(check_start(config))
    for finding in findings:
        print(f"{'ok' if finding.is_good else 'FAILED':<7} {finding.what}: {finding.found}")
    return 0 if all(finding.is_good for finding in findings) else 1


def _run(config: AgentConfig, source: ConfigSource | None = None, *, greet: bool = False) -> int:
    from shoal.agent.process.footprint import import_no_frames, keep_freed_memory

    import_no_frames()  # before pyarrow is imported, with all that follows
    keep_freed_memory()
    from shoal.agent.agent import EXIT_FAILED, run_agent
    from shoal.agent.log_lines.output import install
    from shoal.agent.process.event_loop import new_event_loop

    # Its files have records and keys of sessions in them, and others may have made the directory.
    os.umask(os.umask(stat.S_IRWXO) | stat.S_IRWXO)
    install(config.log.log_format, config.log.log_level)
    direct = config.event_loop == "direct"
    try:
        with asyncio.Runner(loop_factory=lambda: new_event_loop(direct=direct)) as runner:
            return runner.run(run_agent(config, lambda agent: _begin(agent, greet), source))
    except Exception:
        logging.getLogger("shoal.agent").critical("the agent failed and stops; this is a bug", exc_info=True)
        return EXIT_FAILED


def _begin(agent: Agent, greet: bool) -> None:
    """The agent serves. The half million objects of its start live as long as it does, so the collector need
    not look at them again while requests wait (a tenth of a small request's time)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECTED_OBJECTS, *gc.get_threshold()[1:])
    if greet:
        say(f"ready: {agent.url}")
        print(f"curl --data-binary hello {agent.url}/v1/topics/greetings/records")
        print(f"curl {agent.url}/v1/topics/greetings/partitions/0/records")
        print(f"curl {agent.url}/v1/members", flush=True)


@app.command(epilog=example("shoal dev", "shoal dev --http-port 8080"))
def dev(http_port: HttpPort = None) -> None:
    """Run one agent alone for a first try: no configuration, temporary data.

    The data are removed when the agent ends.
    """
    from shoal.agent.process.config_source import ConfigSource

    clear_abandoned(tempfile.gettempdir(), time.time())
    directory = tempfile.mkdtemp(prefix=DEV_PREFIX)
    say(f"data: {directory} (removed when this ends)")
    alone = {"mdns": False, "expect": 1, "name": "dev", "cluster": "dev"}
    flags = {"data": directory, "http_port": http_port, **alone}
    try:
        settled, _ = configuration(ConfigSource(flags, {}, ""))
        code = _run(settled, greet=True)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    raise typer.Exit(code)


def clear_abandoned(parent: str, now_s: float) -> list[str]:
    """Remove the data of `shoal dev` runs that were killed: this user's directories that no living process
    holds. A run that is about to begin is left alone. Returns the removed paths."""
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
            continue  # it runs, or this process may not touch it
        shutil.rmtree(entry.path, ignore_errors=True)
        lock.release()
        removed.append(entry.path)
    return removed
