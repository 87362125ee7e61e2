"""The checks of `shoal doctor --security`: who reaches an agent, who reads its secrets, and what expires.

Law of this file: it looks at a configuration and at the files that it names. It changes nothing and never
raises. A check that cannot tell returns a finding too.
"""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from shoal.addresses import plain_address
from shoal.agent.cli.terminal.findings import Finding
from shoal.agent.config import SETTINGS, AgentConfig
from shoal.agent.process.config_source import ConfigFile
from shoal.agent.security.posture import Posture
from shoal.agent.settings import FILE_SECTION
from shoal.agent.tls.authority import LOOPBACK_HOSTS
from shoal.agent.tls.contexts import TlsError, make_contexts
from shoal.agent.tls.names import names_host

EXPIRES_SOON_DAYS = 30
KEY_OLD_DAYS = 180
"""AES-GCM with random nonces wants a new key after 2**32 messages: half a year in a pool of a hundred."""
KEYRING = "gossip-keyring.json"
DAY_S = 86_400
READABLE = stat.S_IROTH | stat.S_IWOTH
RENEWAL = "`shoal secure renew` makes certificates anew"


def security_findings(config: AgentConfig, file: ConfigFile, now_s: float) -> list[Finding]:
    """Every finding of a configuration, as an agent would start with it. `now_s`: of the wall clock."""
    findings = [
        _posture(config),
        *_certificates(config, now_s),
        *_modes(config, file),
        *_gossip_key_age(config, now_s),
    ]
    if resource.getrlimit(resource.RLIMIT_CORE)[0]:
        advice = "a core dump has keys and records in it: ulimit -c 0, or LimitCORE=0 in systemd"
        return [*findings, Finding("core dumps", "note", "are written", advice)]
    return [*findings, Finding("core dumps", "ok", "none are written")]


def _posture(config: AgentConfig) -> Finding:
    has_key = config.pool.gossip_key is not None or os.path.exists(os.path.join(config.data, KEYRING))
    exposure = config.exposure(has_gossip_key=has_key)
    if exposure.posture is Posture.SECURED:
        return Finding("posture", "ok", f"secured, bound to {config.bind}")
    if exposure.posture is Posture.LOOPBACK:
        return Finding(
            "posture", "ok", f"loopback: each user of this host is administrator, at {config.bind}"
        )
    lacking = ", ".join(exposure.missing)
    advice = f"`shoal secure init --cluster {config.cluster} --address {config.advertised_host}` makes it"
    how = "started with --insecure" if config.security.insecure else "would not start"
    return Finding("posture", "problem", f"bound to {config.bind} without {lacking}: {how}", advice)


def _certificates(config: AgentConfig, now_s: float) -> Iterator[Finding]:
    if not config.tls.is_on:
        return
    try:
        contexts = make_contexts(config.tls, config.cluster)
    except TlsError as error:
        yield Finding("TLS", "problem", str(error), "an agent would not take these files")
        return
    for setting, expires_s in contexts.expires.items():
        day = f"{datetime.fromtimestamp(expires_s, UTC):%Y-%m-%d}"
        days = int((expires_s - now_s) // DAY_S)
        found = f"good until {day}, {days} days"
        advice = RENEWAL if setting == "tls_cert" else "make a new authority, and trust both for a while"
        if days < 0:
            yield Finding(setting, "problem", f"expired on {day}", advice)
        elif days <= EXPIRES_SOON_DAYS:
            yield Finding(setting, "note", found, advice)
        else:
            yield Finding(setting, "ok", found)
    if not config.is_loopback and not names_host(contexts.certificate, config.advertised_host):
        names = contexts.certificate.get("subjectAltName", ())
        hosts = [plain_address(name) for kind, name in names if kind in ("DNS", "IP Address")]
        named = [host for host in hosts if host not in LOOPBACK_HOSTS]
        found = f"names {', '.join(named) or 'no host'}, and others use {config.advertised_host}"
        advice = "`shoal secure agent NAME --address ADDRESS --force`, or your own authority, names it"
        yield Finding("names", "problem", found, advice)


def _modes(config: AgentConfig, file: ConfigFile) -> Iterator[Finding]:
    """Secrets are for their owner, and nobody else exchanges what an agent believes. On loopback every user
    of the host may read the data anyway."""
    section = file.settings.get(FILE_SECTION, file.settings)
    names = [name for name, known in SETTINGS.items() if known.is_secret]
    values = [section.get(name) for name in names] if isinstance(section, Mapping) else []
    has_secrets = any(isinstance(value, str) and not _is_file(value) for value in values)
    named_key = _file_of(config.pool.gossip_key)
    if named_key is not None and not os.path.lexists(named_key):
        advice = "an agent does not start without it: copy it from another host, as it is the key of all"
        yield Finding("gossip_key", "problem", f"{named_key}: No such file or directory", advice)
    secret: dict[str, str | None] = {
        "tls_key": config.tls.tls_key,
        "gossip_key": named_key,
        "keyring": os.path.join(config.data, KEYRING),
        "data": None if config.is_loopback else config.data,
        "configuration": file.path if has_secrets else None,
    }
    public = {
        "tls_ca mode": config.tls.tls_ca,
        "tls_cert mode": config.tls.tls_cert,
        "file": None if has_secrets else file.path,
    }
    for paths, forbidden in ((secret, READABLE | stat.S_IXOTH), (public, stat.S_IWOTH)):
        for what, path in paths.items():
            if path and os.path.lexists(path):
                yield _mode(what, path, forbidden)
    yield from _owners({what: path for what, path in (secret | public).items() if path}, config.data)


def _owners(paths: Mapping[str, str], data: str) -> Iterator[Finding]:
    """Files of others: not root's, nor the agent's, whose user owns the data, nor the asker's. Directories in
    which every user may put another file in the place of one."""
    asked = (data, paths.get("configuration", paths.get("file", "")))
    trusted = {0, os.geteuid(), *(found.st_uid for found in map(_stat, asked) if found is not None)}
    for what, path in paths.items():
        if (status := _stat(path)) is not None and status.st_uid not in trusted:
            found = f"{path} belongs to user {status.st_uid}, who may use and change it"
            advice = f"give it to the user of the agent: chown USER {path}"
            yield Finding(f"{what.removesuffix(' mode')} owner", "problem", found, advice)
    directories = sorted({os.path.dirname(os.path.abspath(path)) for path in paths.values()})
    modes = {path: status.st_mode for path in directories if (status := _stat(path)) is not None}
    is_open = [path for path, mode in modes.items() if mode & stat.S_IWOTH and not mode & stat.S_ISVTX]
    if is_open:
        found = f"every user of this host may exchange files in {', '.join(is_open)}"
        yield Finding("directories", "problem", found, f"chmod o-w {' '.join(is_open)}")


def _stat(path: str) -> os.stat_result | None:
    """None where nothing is there, or may not be looked at: _mode() tells why."""
    try:
        return os.stat(path)
    except OSError:
        return None


def _mode(what: str, path: str, forbidden: int) -> Finding:
    try:
        found = stat.S_IMODE(os.stat(path).st_mode)
    except OSError as error:
        return Finding(what, "note", f"{path}: {error.strerror or error}", "run it as the user of the agent")
    shown = f"{path} has mode {found:o}"
    if found & forbidden:
        who = "may change it" if forbidden == stat.S_IWOTH else "may use it"
        return Finding(what, "problem", f"{shown}: every user of this host {who}", f"chmod o= {path}")
    return Finding(what, "ok", shown)


def _gossip_key_age(config: AgentConfig, now_s: float) -> Iterator[Finding]:
    named = _file_of(config.pool.gossip_key) or ""
    for path in (os.path.join(config.data, KEYRING), named):
        try:
            days = int((now_s - os.stat(path).st_mtime) // DAY_S)
        except OSError:
            continue  # not there: the next one may be
        if days > KEY_OLD_DAYS:
            advice = "`shoal keys install`, `use` and `remove` exchange it while everything runs"
            yield Finding("gossip key", "note", f"{path} is {days} days old", advice)
        else:
            yield Finding("gossip key", "ok", f"{path} is {max(days, 0)} days old")
        return


def _is_file(value: str | None) -> bool:
    return value is not None and value.startswith("@")


def _file_of(gossip_key: str | None) -> str | None:
    """The path of a key in a file."""
    return gossip_key[1:] if gossip_key is not None and _is_file(gossip_key) else None
