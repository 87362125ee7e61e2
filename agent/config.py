"""The configuration of one agent: a single frozen value.

Law of this file: pure. It turns mappings (flags, environment, a parsed TOML file) into an AgentConfig, and
refuses combinations that cannot work with advice. A setting is declared once, as a field. Its name in flags,
variables and files follows from the field, and so does how it is read there (agent/settings.py). Related
settings stand in a group of their own.

Precedence: flags > environment (SHOAL_*) > file > defaults.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from shoal.addresses import is_host_name, plain_origin
from shoal.agent.log_lines.schema import FORMATS, LEVELS
from shoal.agent.security.jwt_settings import JwtSettings
from shoal.agent.security.posture import Exposure, Protection, exposure_of
from shoal.agent.security.tokens import TokenError, hash_from_text
from shoal.agent.settings import ConfigError as ConfigError
from shoal.agent.settings import (
    Effect,
    Given,
    build,
    derived,
    in_environment,
    in_file,
    in_flags,
    read,
    setting,
    settings_of,
)
from shoal.agent.tls_settings import TlsSettings as TlsSettings

DEFAULT_HTTP_PORT = 7070
DEFAULT_GOSSIP_PORT = 7946
DEFAULT_SERF_RPC_PORT = 7373
DEFAULT_CLUSTER = "shoal"
MAX_NAME_CHARACTERS = 64  # names and domains travel in gossip tags, which share 512 bytes
MAX_SEEDS = 64  # enough for any seed list; a longer one is a mistake in a template
MAX_HTTP_NAMES = 256
SOCKET_PATH_BYTES_MAX = 107  # sun_path, without its end
MAX_EXPECTED_MEMBERS = 99
MAX_CORES = 256
LONGEST_REPLACE_AFTER_MS = 7 * 24 * 60 * 60_000
LONGEST_WINDOW_MS = 10 * 60_000  # a start that waits longer than this looks like a hang
KEY_BYTES = (16, 24, 32)  # AES-128, 192, 256
RANGES = (
    ("http_port", 0, 65_535, "is not a port: give 1 to 65535, or 0 for any free one"),
    ("gossip_port", 0, 65_535, "is not a port: give 1 to 65535, or 0 for any free one"),
    ("expect", 1, MAX_EXPECTED_MEMBERS, f"is out of range: give 1 to {MAX_EXPECTED_MEMBERS} members"),
    ("cores", 1, MAX_CORES, f"is out of range: give 1 to {MAX_CORES}"),
    ("weight", 1, 10_000, "is out of range: give 1 to 10000 (100 is normal)"),
    ("scrub_bytes_per_s", 0, 2**40, "is out of range: 8388608 is usual, and 0 never looks"),
    ("discovery_window_ms", 0, LONGEST_WINDOW_MS, "ms is not between 0 and 10 minutes"),
    (
        "heartbeat_interval_ms",
        10,
        LONGEST_REPLACE_AFTER_MS,
        "ms is out of range: give 10ms to 7d, 100ms is normal",
    ),
    ("shutdown_timeout_ms", 1, LONGEST_WINDOW_MS, "ms is not more than 0 and at most 10 minutes"),
    ("dissolve_timeout_ms", 1, LONGEST_WINDOW_MS, "ms is not more than 0 and at most 10 minutes"),
)
"""Fields, their lowest and highest values, and the end of the sentence that refuses others."""
NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
DISKS = ("auto", "ring", "threads")
EVENT_LOOPS = ("direct", "asyncio")
AUTHENTICATION = ("auto", "on", "off")


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """A place for HTTP beside the port, and the hosts and web pages that may speak it."""

    http_socket: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """The keys of the gossip pool, and a Serf agent that gossips for this agent."""

    gossip_key: str | None = setting(None, effect=Effect.FIRST_START, secret=True)
    gossip_label: str | None = None
    gossip_verify_incoming: bool = True
    gossip_verify_outgoing: bool = True
    serf_rpc: str | None = None
    serf_auth_key: str | None = setting(None, secret=True)


@dataclass(frozen=True, slots=True)
class SecuritySettings(JwtSettings):
    """Security beside TLS. `insecure`: a start beyond loopback without a protection is allowed.
    `bootstrap_token_hash`: SHA-256 of the token that counts until there is an administrator."""

    insecure: bool = False
    authentication: str = "auto"
    bootstrap_token_hash: str | None = setting(None, secret=True)

    @property
    def first_token(self) -> bytes | None:
        """The hash of that token."""
        return None if self.bootstrap_token_hash is None else hash_from_text(self.bootstrap_token_hash)

    def validate(self) -> None:
        """Raises ConfigError, which shows no hash."""
        if self.authentication not in AUTHENTICATION:
            raise ConfigError(f"authentication {self.authentication!r}: use {', '.join(AUTHENTICATION)}")
        if (fault := self.jwt_fault(is_off=self.authentication == "off")) is not None:
            raise ConfigError(fault)
        if self.bootstrap_token_hash is not None:
            try:
                hash_from_text(self.bootstrap_token_hash)
            except TokenError as error:
                raise ConfigError(f"bootstrap_token_hash: {error}") from None


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The log: its form, and the least level of its lines."""

    log_format: str = "auto"
    log_level: str = setting("info", effect=Effect.RELOAD)


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """A port of None means the default, or the next free one above it. Ports of 0 let the kernel choose.
    Durations are milliseconds."""

    data: str
    bind: str = "127.0.0.1"
    advertise: str | None = None
    http_port: int | None = None
    http: HttpSettings = field(default_factory=HttpSettings)
    tls: TlsSettings = field(default_factory=TlsSettings)
    security: SecuritySettings = field(default_factory=SecuritySettings)
    gossip_port: int | None = None
    cluster: str = setting(DEFAULT_CLUSTER, effect=Effect.FIRST_START)
    cluster_is_explicit: bool = derived(False)
    name: str | None = None
    join: tuple[str, ...] = ()
    expect: int | None = setting(None, effect=Effect.FOUNDING)
    failure_domain: str | None = None
    weight: int = 100
    gossip: str = "embedded"
    pool: PoolSettings = field(default_factory=PoolSettings)
    log: LogSettings = field(default_factory=LogSettings)
    cores: int = 1
    mdns: bool | None = None
    disk: str = "auto"
    event_loop: str = "direct"
    auto_create_topics: bool = setting(True, effect=Effect.RELOAD)
    discovery_window_ms: int = setting(3_000, effect=Effect.FOUNDING)
    heartbeat_interval_ms: int = 100
    election_timeout_ms: int = 600
    shutdown_timeout_ms: int = setting(10_000, effect=Effect.RELOAD)
    dissolve_timeout_ms: int = 15_000
    replace_after_ms: int = setting(5 * 60_000, effect=Effect.RELOAD)
    scrub_bytes_per_s: int = setting(8 * 2**20, effect=Effect.RELOAD)
    hold_level: bool = False

    @classmethod
    def from_sources(
        cls,
        flags: Mapping[str, Any],
        environment: Mapping[str, str] | None = None,
        file: Mapping[str, Any] | None = None,
    ) -> AgentConfig:
        """Merge the sources and validate. A flag of None, or an empty list, was not given. Raises
        ConfigError, which names the source of the value at fault."""
        values = {
            given.name: read(given, SETTINGS) for given in all_given(flags, environment or {}, file or {})
        }
        if "data" not in values:
            raise ConfigError("no data directory: give --data DIR, SHOAL_DATA or `data` in the file")
        config = cls(**build(cls, SETTINGS, values), cluster_is_explicit="cluster" in values)
        config.validate()
        return config

    def validate(self) -> None:
        """Check every field and every rule between fields; raises ConfigError."""
        if not self.data or "\0" in self.data:
            raise ConfigError("the data directory is empty: give --data DIR")
        for name, low, high, advice in RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ConfigError(f"{name.removesuffix('_ms')} {value} {advice}")
        self._validate_addresses()
        self._validate_http()
        self.tls.validate()
        self.security.validate()
        self._validate_names()
        self._validate_key()
        self._validate_gossip()
        self._validate_start()
        self._validate_timing()

    def _validate_addresses(self) -> None:
        _check_address("--bind", self.bind, allow_unspecified=True)
        if self.advertise is not None and not is_host_name(self.advertise):
            _check_address("--advertise", self.advertise, allow_unspecified=False)
        if self.advertise is None and is_unspecified(self.bind):
            raise ConfigError(
                f"--bind {self.bind} listens on every interface, so peers need one address to reach: "
                "add --advertise ADDR"
            )
        is_name = self.advertised_name is not None
        if (
            self.advertise is not None
            and not is_name
            and is_loopback(self.bind)
            and not is_loopback(self.advertise)
        ):
            raise ConfigError(
                f"--advertise {self.advertise} cannot be reached while --bind is {self.bind} (loopback): "
                "bind that address, or 0.0.0.0"
            )
        if self.http_port and self.http_port == self.gossip_port:
            raise ConfigError(
                f"--http-port and --gossip-port are both {self.http_port}: give two different ports"
            )

    def _validate_http(self) -> None:
        path = self.http.http_socket
        size_bytes = len((path or "").encode(errors="surrogateescape"))  # as the system has it
        if path is not None and ("\0" in path or not 1 <= size_bytes <= SOCKET_PATH_BYTES_MAX):
            raise ConfigError(
                f"--http-socket {path!r} is not a path of 1 to {SOCKET_PATH_BYTES_MAX} bytes, which is what"
                " the system allows: give a shorter one, such as /run/shoal/http.sock"
            )
        named = self.http.allowed_hosts + self.http.cors_origins
        if len(named) > MAX_HTTP_NAMES:
            raise ConfigError(f"--allowed-hosts and --cors-origins name over {MAX_HTTP_NAMES} in all")
        for name in self.http.allowed_hosts:
            if not is_host_name(name):
                raise ConfigError(
                    f"--allowed-hosts {name!r} is not a DNS name: give it without scheme, port and wildcard"
                    " (addresses are always allowed)"
                )
        for origin in self.http.cors_origins:
            if plain_origin(origin) is None:
                raise ConfigError(
                    f"--cors-origins {origin!r} is not an origin: give SCHEME://HOST[:PORT], such as"
                    " https://app.example.com; '*' would let every web page use this agent"
                )

    def _validate_names(self) -> None:
        named = (
            ("--cluster", self.cluster),
            ("--name", self.name),
            ("--failure-domain", self.failure_domain),
            ("--gossip-label", self.pool.gossip_label),
        )
        for flag, value in named:
            if value is None:
                continue
            if len(value) > MAX_NAME_CHARACTERS or NAME_PATTERN.fullmatch(value) is None:
                raise ConfigError(
                    f"{flag} {value!r} is not a name: use 1 to {MAX_NAME_CHARACTERS} letters, digits, . _ -"
                )
        if self.log.log_format not in FORMATS:
            raise ConfigError(
                f"log_format {self.log.log_format!r} is unknown: use one of {', '.join(FORMATS)}"
            )
        if self.log.log_level not in LEVELS:
            raise ConfigError(f"log_level {self.log.log_level!r} is none: use one of {', '.join(LEVELS)}")
        if self.disk not in DISKS:
            raise ConfigError(f"disk {self.disk!r} is unknown: use one of {', '.join(DISKS)}")
        if self.event_loop not in EVENT_LOOPS:
            raise ConfigError(f"event_loop {self.event_loop!r} is unknown: use {' or '.join(EVENT_LOOPS)}")
        if self.mdns and not is_loopback(self.bind) and not self.cluster_is_explicit:
            raise ConfigError(
                "mDNS beyond loopback would meet strangers under the default cluster name: add --cluster NAME"
            )

    def _validate_gossip(self) -> None:
        """With a Serf agent, ports and keys of gossip are that agent's; without one there is none to call."""
        if self.gossip not in ("embedded", "serf"):
            raise ConfigError(
                f"--gossip {self.gossip!r} is unknown: use embedded (it speaks Serf's wire format), or serf "
                "(a Serf agent that runs already)"
            )
        own = {
            "--gossip-port": self.gossip_port,
            "--gossip-key": self.pool.gossip_key,
            "--gossip-label": self.pool.gossip_label,
        }
        serfs = {"--serf-rpc": self.pool.serf_rpc, "--serf-auth-key": self.pool.serf_auth_key}
        for flag, value in (own if self.uses_serf else serfs).items():
            if value is not None and self.uses_serf:
                raise ConfigError(f"{flag} is the Serf agent's own with --gossip serf: leave it out here")
            if value is not None:
                raise ConfigError(f"{flag} is for an agent with --gossip serf: add that, or leave it out")
        if self.uses_serf and self.cores > 1:
            raise ConfigError("--cores with --gossip serf: each agent needs a Serf agent of its own")
        parse_host_port(self.pool.serf_rpc or "127.0.0.1", "--serf-rpc", DEFAULT_SERF_RPC_PORT)

    def _validate_key(self) -> None:
        """A key in a file is read when the agent starts. No error shows a key."""
        if self.pool.gossip_key is None or (
            self.pool.gossip_key.startswith("@") and len(self.pool.gossip_key) > 1
        ):
            return
        try:
            key = base64.b64decode(self.pool.gossip_key, validate=True)
        except ValueError:
            key = b""
        if len(key) not in KEY_BYTES:
            raise ConfigError(
                "--gossip-key is not 16, 24 or 32 bytes in base64: `shoal keygen` prints one, and @FILE "
                "names a file that holds one"
            )

    def _validate_start(self) -> None:
        if len(self.join) > MAX_SEEDS:
            raise ConfigError(f"--join names {len(self.join)} addresses; at most {MAX_SEEDS} are useful")
        for text in self.join:
            parse_host_port(text, "--join")
        if self.cores > 1 and (self.http_port == 0 or self.gossip_port == 0):
            raise ConfigError("--cores needs ports that can be counted up: give ports above 0, or none")

    def _validate_timing(self) -> None:
        if self.election_timeout_ms < 3 * self.heartbeat_interval_ms:
            raise ConfigError(
                f"election_timeout {self.election_timeout_ms} ms must be at least three heartbeat intervals "
                f"({3 * self.heartbeat_interval_ms} ms), else one lost frame starts an election"
            )
        if not self.election_timeout_ms <= self.replace_after_ms <= LONGEST_REPLACE_AFTER_MS:
            raise ConfigError(
                f"replace_after {self.replace_after_ms} ms must be at least the election timeout "
                f"({self.election_timeout_ms} ms) and at most 7 days: 5m is usual, seconds are for trying out"
            )

    @property
    def advertised_host(self) -> str:
        """The name or address that peers and clients are told."""
        return self.advertise if self.advertise is not None else self.bind

    @property
    def advertised_name(self) -> str | None:
        """The same where it is a name: its address is looked up."""
        return self.advertise if self.advertise is not None and is_host_name(self.advertise) else None

    @property
    def scheme(self) -> str:
        """Of this agent's URL."""
        return "https" if self.tls.is_on else "http"

    @property
    def is_loopback(self) -> bool:
        return is_loopback(self.bind)

    @property
    def asks_for_credentials(self) -> bool:
        """`auto`: where others than this host's users reach it, unless somebody said --insecure."""
        if self.security.authentication == "auto":
            return not self.is_loopback and not self.security.insecure
        return self.security.authentication == "on"

    def exposure(self, *, has_gossip_key: bool) -> Exposure:
        """The hosts that can reach this agent, and what is missing. `has_gossip_key`: given here, or kept in
        the data directory. With a Serf agent the key is that agent's, and it is not asked."""
        in_force = {
            Protection.TLS: self.tls.is_on,
            Protection.AUTHENTICATION: self.asks_for_credentials,
            Protection.GOSSIP_KEY: self.uses_serf or (has_gossip_key and self.pool.gossip_verify_incoming),
        }
        has = frozenset(one for one, is_in_force in in_force.items() if is_in_force)
        return exposure_of(self.bind, is_loopback=self.is_loopback, has=has)

    @property
    def uses_mdns(self) -> bool:
        """Loopback agents by default; others only with an explicit cluster name (cli-and-packaging)."""
        if self.mdns is not None:
            return self.mdns
        return self.is_loopback or self.cluster_is_explicit

    @property
    def uses_serf(self) -> bool:
        """Whether a Serf agent gossips for this one."""
        return self.gossip == "serf"

    @property
    def serf_address(self) -> tuple[str, int]:
        return parse_host_port(self.pool.serf_rpc or "127.0.0.1", "--serf-rpc", DEFAULT_SERF_RPC_PORT)

    @property
    def seeds(self) -> tuple[tuple[str, int], ...]:
        return tuple(parse_host_port(text, "--join") for text in self.join)

    def for_core(self, core: int) -> AgentConfig:
        """For one of `cores` agents on this host: own directory and ports, one failure domain."""
        assert 0 <= core < self.cores
        if self.cores == 1:
            return self
        path = self.http.http_socket
        return replace(
            self,
            cores=1,
            data=f"{self.data}/core-{core}",
            http_port=_port_of(self.http_port, core),
            gossip_port=_port_of(self.gossip_port, core),
            name=None if self.name is None else f"{self.name}-{core}",
            http=self.http if path is None else replace(self.http, http_socket=f"{path}.{core}"),
        )

    def as_environment(self) -> dict[str, str]:
        """SHOAL_ variables from which from_sources() makes an equal value."""
        variables = {}
        for known in SETTINGS.values():
            value = known.of(self)
            if value in (None, ()) or (known.name == "cluster" and not self.cluster_is_explicit):
                continue
            variables[known.variable] = " ".join(value) if isinstance(value, tuple) else str(value)
        return variables

    def as_document(self) -> dict[str, Any]:
        """The configuration in force, JSON-ready, for GET /v1/agent: no groups, and no secret."""
        document: dict[str, Any] = {"cluster_is_explicit": self.cluster_is_explicit}
        for known in SETTINGS.values():
            if not known.is_secret:
                value = known.of(self)
                document[known.path[-1]] = list(value) if isinstance(value, tuple) else value
        return document


def all_given(
    flags: Mapping[str, Any], environment: Mapping[str, str], file: Mapping[str, Any]
) -> tuple[Given, ...]:
    """The values of each source, the strongest last. Raises ConfigError for a name that is no setting."""
    return (
        *in_file(file, SETTINGS),
        *in_environment(environment, SETTINGS),
        *in_flags(flags, SETTINGS),
    )


def _port_of(port: int | None, core: int) -> int | None:
    """None and 0 leave the choice to a start."""
    return port + core if port else port


def _ip_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def is_unspecified(address: str) -> bool:
    """True for 0.0.0.0 and ::."""
    ip = _ip_address(address)
    return ip is not None and ip.is_unspecified


def is_loopback(address: str) -> bool:
    """True for 127.0.0.0/8 and ::1."""
    ip = _ip_address(address)
    return ip is not None and ip.is_loopback


def parse_host_port(text: str, flag: str, default_port: int = DEFAULT_GOSSIP_PORT) -> tuple[str, int]:
    """`host:port`, `[v6]:port` or `host` (then the default port, that of gossip). Raises ConfigError."""
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:\[\]/]+))(?::([0-9]{1,5}))?", text)
    if match is None:
        raise ConfigError(
            f"{flag} {text!r} is not an address: give HOST:PORT, such as 10.0.0.5:{default_port}"
        )
    port = int(match[3]) if match[3] else default_port
    if not 1 <= port <= 65_535:
        raise ConfigError(f"{flag} {text!r}: {port} is not a port; give 1 to 65535")
    return match[1] or match[2], port


def _check_address(flag: str, value: str, *, allow_unspecified: bool) -> None:
    if is_unspecified(value) and not allow_unspecified:
        raise ConfigError(
            f"{flag} {value} is no address a peer could reach: give one of this host's addresses"
        )
    if _ip_address(value) is None:
        if allow_unspecified:
            hint = "127.0.0.1" if value == "localhost" else "a number such as 10.0.0.5"
            raise ConfigError(f"{flag} {value!r} is not an IP address: give {hint}")
        raise ConfigError(
            f"{flag} {value!r} is not an IP address or a DNS name: give a number such as 10.0.0.5, or a name"
            " such as shoal-1.example.com, without port, wildcard and a dot at its end"
        )


SETTINGS = settings_of(AgentConfig)
"""All of them by name. An agent reloads those whose effect is RELOAD."""
