"""`shoal agent --check`: whether a start would work, tried without one.

Law of this file: the directory is only read: its small files are loaded from copies elsewhere, by the code of
a start. Ports are bound for a moment. Each finding is one line that says what was found, or what to do.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from shoal.agent.config import DEFAULT_GOSSIP_PORT, DEFAULT_HTTP_PORT, AgentConfig
from shoal.agent.durable.data_directory import KEYRING_FILE, settle_identity
from shoal.agent.durable.identity import AgentIdentity, IdentityStore
from shoal.agent.durable.ids import IdentityError
from shoal.agent.durable.keyring_file import KeyringFile, settle_keyring
from shoal.agent.host.free_space import MIN_FREE_BYTES
from shoal.agent.members.own_address import address_now
from shoal.agent.process import unix_socket
from shoal.agent.process.errors import StartError
from shoal.agent.process.ports import PortChoice, PortError, is_own_address, listen
from shoal.agent.security.posture import refused_start, warning
from shoal.agent.tls.contexts import TlsError, make_contexts
from shoal.agent.tls.names import names_host
from shoal.agent.topics.cluster_file import ClusterFileError, load_cluster, settle_cluster
from shoal.lookup import Lookup
from shoal.segment_store.disk.disk import open_disk
from shoal.segment_store.disk.lock import LOCK_FILE, ReaderLock
from shoal.segment_store.errors import NotOwner

SMALL_FILES = ("identity.a", "identity.b", "cluster.a", "cluster.b", "cluster", KEYRING_FILE)
PROBE_BYTES = 4_096
MIB = 1 << 20


class StartFinding(NamedTuple):
    """`found`: what is there, or what is wrong and what to do."""

    what: str
    is_good: bool
    found: str


async def check_start(config: AgentConfig) -> list[StartFinding]:
    """Every finding, whatever the ones before it are. The configuration itself has been read by now."""
    otherwise = "" if config.cluster_is_explicit else " unless the directory has one"
    configuration = f"bind {config.bind}, cluster {config.cluster}{otherwise}"
    findings = [StartFinding("configuration", True, configuration)]
    if config.tls.is_on:
        findings.append(_check_tls(config))
    for core in range(config.cores):
        agent = config.for_core(core)
        directory, identity = await _check_directory(agent)
        findings += [directory, _check_disk(agent.data), *await _check_ports(agent, identity)]
        findings.append(_check_posture(agent))
        if agent.http.http_socket is not None:
            findings.append(_check_socket(agent.http.http_socket))
    if config.advertised_name is not None:
        findings.append(await _check_name(config.advertised_name, config.bind))
    return findings


# ---- the directory ---------------------------------------------------------------------------------------


async def _check_directory(config: AgentConfig) -> tuple[StartFinding, AgentIdentity | None]:
    path = config.data
    try:
        if not _is_there(path):
            await _load_copies(config)  # of nothing: a key in a file is read all the same
            return StartFinding("directory", True, f"{path} would be made"), None
        with _not_in_use(path):
            identity, said = await _load_copies(config)
    except StartError as error:
        return StartFinding("directory", False, str(error)), None
    return StartFinding("directory", True, f"{path}: {said}"), identity


def _is_there(path: str) -> bool:
    """Whether it is a directory that can be used; False for one that a start would make. StartError."""
    if os.path.isdir(path):
        if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
            raise StartError(f"cannot write to {path}: give --data a directory that this user may write")
        return True
    if os.path.lexists(path):
        raise StartError(f"{path} is not a directory: give another --data")
    parent = os.path.dirname(os.path.abspath(path))
    while not os.path.lexists(parent):
        parent = os.path.dirname(parent)
    if not os.path.isdir(parent) or not os.access(parent, os.W_OK | os.X_OK):
        raise StartError(f"cannot make {path} in {parent}: give --data a directory that this user may write")
    return False


@contextmanager
def _not_in_use(path: str) -> Iterator[None]:
    """No agent runs on it, nor starts meanwhile."""
    if not os.path.exists(os.path.join(path, LOCK_FILE)):
        yield
        return
    try:
        with ReaderLock(path):
            yield
    except NotOwner as error:
        raise StartError(f"{error}: stop that agent, or give another --data") from None


async def _load_copies(config: AgentConfig) -> tuple[AgentIdentity | None, str]:
    """The agent of the directory, as a start would find it. Raises StartError."""
    with tempfile.TemporaryDirectory(prefix="shoal-check-") as copies, _no_log_lines():
        disk = await open_disk("threads")
        try:
            for name in SMALL_FILES:
                with suppress(FileNotFoundError):
                    shutil.copyfile(os.path.join(config.data, name), os.path.join(copies, name))
            settle_keyring(config, KeyringFile(copies))
            identities = await IdentityStore.open(disk, copies)
            known = identities.load()
            await identities.close()
            record = await load_cluster(disk, copies)
        except (IdentityError, ClusterFileError, StartError) as error:
            raise StartError(str(error).replace(copies, config.data)) from None
        except OSError as error:
            raise StartError(f"cannot read {config.data}: {error.strerror or error}") from None
        finally:
            await disk.close()
    if record is not None and known is not None and known.cluster_id == record.cluster_id:
        settle_cluster(config, record)
        return known, f"agent {known.name} of cluster {record.cluster}"
    settle_identity(config, known)
    return known, "belongs to no cluster yet"


@contextmanager
def _no_log_lines() -> Iterator[None]:
    """The loaders speak of mending files; here those are copies."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


# ---- who reaches it --------------------------------------------------------------------------------------


def _check_posture(config: AgentConfig) -> StartFinding:
    has_key = config.pool.gossip_key is not None or os.path.exists(os.path.join(config.data, KEYRING_FILE))
    exposure = config.exposure(has_gossip_key=has_key)
    if not exposure.is_insecure:
        return StartFinding("posture", True, exposure.posture)
    if config.security.insecure:
        return StartFinding("posture", True, warning(exposure))
    return StartFinding("posture", False, refused_start(exposure, config.cluster, config.advertised_host))


# ---- the disk --------------------------------------------------------------------------------------------


def _check_disk(path: str) -> StartFinding:
    """Room, and a sync of a file without a name: it leaves no trace in any directory."""
    while not os.path.isdir(path):
        path = os.path.dirname(os.path.abspath(path))
    try:
        free_bytes = shutil.disk_usage(path).free
        sync_ms = _sync_ms(path)
    except OSError as error:
        return StartFinding("disk", False, f"{path}: {error.strerror or error}: choose another --data")
    if free_bytes < MIN_FREE_BYTES:
        found = f"{free_bytes // MIB} MiB are free in {path}, and appends are refused below"
        return StartFinding(
            "disk", False, f"{found} {MIN_FREE_BYTES // MIB}: make room, or choose another --data"
        )
    synced = "" if sync_ms is None else f", a sync takes {sync_ms:.1f} ms"
    return StartFinding("disk", True, f"{free_bytes // MIB} MiB are free in {path}{synced}")


def _sync_ms(path: str) -> float | None:
    """None where the file system has no files without names. Raises OSError."""
    try:
        handle = os.open(path, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT):
            return None
        raise
    try:
        started = time.monotonic()
        os.pwrite(handle, bytes(PROBE_BYTES), 0)
        os.fdatasync(handle)
        return (time.monotonic() - started) * 1_000
    finally:
        os.close(handle)


# ---- ports -----------------------------------------------------------------------------------------------


async def _check_ports(config: AgentConfig, identity: AgentIdentity | None) -> list[StartFinding]:
    kept_http, kept_gossip = (0, 0) if identity is None else (identity.http_port, identity.gossip_port)
    http = PortChoice("--http-port", config.http_port, kept_http or None, DEFAULT_HTTP_PORT)
    gossip = PortChoice("--gossip-port", config.gossip_port, kept_gossip or None, DEFAULT_GOSSIP_PORT)
    found = [await _check_port("HTTP port", http, config.bind, (socket.SOCK_STREAM,))]
    if not config.uses_serf:
        kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM)
        found.append(await _check_port("gossip port", gossip, config.bind, kinds))
    return found


async def _check_port(
    what: str, choice: PortChoice, address: str, kinds: tuple[socket.SocketKind, ...]
) -> StartFinding:
    async def bind(port: int) -> int:
        for kind in kinds:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            with socket.socket(family, kind) as probe:
                if kind is socket.SOCK_STREAM:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((address, port))
        return port

    try:
        port = await listen(choice, address, bind)
    except PortError as error:
        return StartFinding(what, False, str(error))
    if port == 0:
        return StartFinding(what, True, "any free one")
    stepped = f", since {choice.kept or choice.default} is in use" if choice.has_stepped(port) else ""
    return StartFinding(what, True, f"{port}{stepped}")


# ---- other places ----------------------------------------------------------------------------------------


def _check_tls(config: AgentConfig) -> StartFinding:
    try:
        contexts = make_contexts(config.tls, config.cluster)
    except TlsError as error:
        return StartFinding("TLS", False, str(error))
    until = time.strftime("%Y-%m-%d", time.gmtime(min(contexts.expires.values())))
    host = config.advertised_host
    found = f"this agent is {contexts.rules.agent_name}, until {until}"
    if not names_host(contexts.certificate, host):
        found += f"; clients will refuse it, since its certificate does not name {host}"
    return StartFinding("TLS", True, found)


def _check_socket(path: str) -> StartFinding:
    try:
        unix_socket.check(path)
    except PortError as error:
        return StartFinding("HTTP socket", False, str(error))
    return StartFinding("HTTP socket", True, path)


async def _check_name(name: str, bind: str) -> StartFinding:
    """Once, where a start would wait for a name that has no address yet."""
    try:
        address = await address_now(name, bind, Lookup())
    except StartError as error:
        return StartFinding("name", False, str(error))
    elsewhere = "" if is_own_address(address) else ", which is not an address of this host"
    return StartFinding("name", True, f"{name} leads to {address}{elsewhere}")
