"""The directory of a cluster's authority, as `shoal secure` keeps it, and the files of each holder.

Law of this file: names and contents of files. How they are written is decided in places.py, what a
certificate says in agent/tls/authority.py.

    DIR/ca.crt, authority.key, gossip.key, cluster.toml      The authority's; its key signs anything.
    DIR/hosts/NAME/                                          All that the host NAME needs.
    DIR/clients/NAME/                                        All that the client NAME needs.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import NamedTuple

from shoal.addresses import is_address
from shoal.agent.cli.secure.places import check_path, former_of, read_file
from shoal.agent.cli.terminal.output import CliError, UsageError
from shoal.agent.config import (
    DEFAULT_GOSSIP_PORT,
    DEFAULT_HTTP_PORT,
    MAX_SEEDS,
    is_loopback,
    is_unspecified,
)
from shoal.agent.tls.authority import (
    AUTHORITY_YEARS_MAX,
    CERTIFICATE_DAYS_MAX,
    PLAIN_NAME,
    Authority,
    AuthorityError,
    Pair,
    host_in_certificate,
)
from shoal.agent.tls.names import CLIENT_NAME, RESERVED

CA, AUTHORITY_KEY, GOSSIP_KEY, CLUSTER_FILE = "ca.crt", "authority.key", "gossip.key", "cluster.toml"
HOSTS, CLIENTS = "hosts", "clients"
CONFIGURATION = "shoal.toml"
AGENT, CLIENT = "agent", "client"
"""NAME.crt and NAME.key of a holder."""
DATA = "/var/lib/shoal"
INSTALLED = "/etc/shoal"
"""The usual place on a host of what is made for it; any other does, since all paths are relative."""


class CommonFiles(NamedTuple):
    """The parts of every host's files that are the same."""

    cluster: str
    ca: bytes
    gossip_key: bytes
    token_hash: str


@dataclass(frozen=True, slots=True)
class Store:
    """An authority's directory that exists. `path`: as it was given."""

    path: str
    authority: Authority
    shared: CommonFiles

    @classmethod
    def open(cls, path: str) -> Store:
        """Raises CliError, which says what is missing or does not fit."""
        check_path(path, "--dir")
        advice = "`shoal secure init` makes an authority; --dir names its directory"
        if not os.path.isdir(path):
            raise CliError(f"{path} is no directory with an authority", advice)
        ca, gossip_key = (read_file(os.path.join(path, name), advice) for name in (CA, GOSSIP_KEY))
        key = read_file(
            os.path.join(path, AUTHORITY_KEY),
            "without it nothing can be signed: bring it back, or name its place",
        )
        about = _table(os.path.join(path, CLUSTER_FILE), advice)
        try:
            authority = Authority.from_pair(Pair(ca, key))
        except AuthorityError as error:
            raise CliError(f"{path}: {error}", advice) from None
        cluster, token_hash = about.get("cluster"), about.get("bootstrap_token_hash")
        if not isinstance(token_hash, str) or cluster != authority.cluster:
            raise CliError(
                f"{os.path.join(path, CLUSTER_FILE)} is of cluster {cluster!r}, and the authority of"
                f" {authority.cluster}",
                "put back the file that belongs to it",
            )
        return cls(path, authority, CommonFiles(authority.cluster, ca, gossip_key, token_hash))

    def of_host(self, name: str) -> str:
        """Its directory."""
        return os.path.join(self.path, HOSTS, name)

    def of_client(self, name: str) -> str:
        """Its directory."""
        return os.path.join(self.path, CLIENTS, name)

    def seeds(self, but: str) -> list[str]:
        """Gossip addresses of the hosts that have been made, without one. Raises CliError."""
        found = []
        for name in self.names(HOSTS):
            if name != but:
                table = _table(
                    os.path.join(self.of_host(name), CONFIGURATION), "mend it, or remove its directory"
                )
                found.append(seed_of(str(table.get("advertise", table.get("bind", "")))))
        return found[:MAX_SEEDS]

    def names(self, kind: str) -> list[str]:
        """Of the hosts or clients that were made here and not replaced by --force, sorted."""
        try:
            found = {name for name in os.listdir(os.path.join(self.path, kind)) if not name.startswith(".")}
        except FileNotFoundError:
            return []
        return sorted(name for name in found if former_of(name) not in found)


def seed_of(host: str) -> str:
    """Where its gossip is."""
    return f"[{host}]:{DEFAULT_GOSSIP_PORT}" if ":" in host else f"{host}:{DEFAULT_GOSSIP_PORT}"


def url_of(host: str) -> str:
    """Where its HTTP is."""
    return f"https://[{host}]:{DEFAULT_HTTP_PORT}" if ":" in host else f"https://{host}:{DEFAULT_HTTP_PORT}"


def authority_files(shared: CommonFiles, pair: Pair) -> dict[str, bytes]:
    """Those of the authority itself. The table says what it is for."""
    table = (
        "# Made by `shoal secure init`, and read by `shoal secure agent`.\n"
        f"cluster = {json.dumps(shared.cluster)}\n"
        f"bootstrap_token_hash = {json.dumps(shared.token_hash)}\n"
    )
    return {
        CA: shared.ca,
        AUTHORITY_KEY: pair.key,
        GOSSIP_KEY: shared.gossip_key,
        CLUSTER_FILE: table.encode(),
    }


def host_files(
    shared: CommonFiles, pair: Pair, name: str, addresses: Sequence[str], seeds: Sequence[str], data: str
) -> dict[str, bytes]:
    """All that a host needs to run an agent."""
    return {
        CA: shared.ca,
        f"{AGENT}.crt": pair.certificate,
        f"{AGENT}.key": pair.key,
        GOSSIP_KEY: shared.gossip_key,
        CONFIGURATION: configuration(shared, name, addresses, seeds, data).encode(),
    }


def client_files(shared: CommonFiles, pair: Pair) -> dict[str, bytes]:
    """All that a client needs."""
    return {CA: shared.ca, f"{CLIENT}.crt": pair.certificate, f"{CLIENT}.key": pair.key}


def configuration(
    shared: CommonFiles, name: str, addresses: Sequence[str], seeds: Sequence[str], data: str
) -> str:
    """The TOML that `shoal agent --config` takes. Paths in it are relative to the file."""
    first, *further = addresses
    everywhere = "::" if ":" in first else "0.0.0.0"  # noqa: S104 -- nobody is let in without a proof
    lines = {
        "cluster": shared.cluster,
        "name": name,
        "data": data,
        "bind": first if is_loopback(first) else everywhere,
        "advertise": first,
        "http_port": DEFAULT_HTTP_PORT,
        "gossip_port": DEFAULT_GOSSIP_PORT,
        "join": list(seeds),
        "allowed_hosts": [host for host in further if not is_address(host)],
        "tls_cert": f"{AGENT}.crt",
        "tls_key": f"{AGENT}.key",
        "tls_ca": CA,
        "gossip_key": f"@{GOSSIP_KEY}",
        "authentication": "on",
        "bootstrap_token_hash": shared.token_hash,
    }
    # JSON's texts, numbers and lists are TOML's.
    text = "\n".join(
        f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in lines.items() if value != []
    )
    return (
        f"# One agent of cluster {shared.cluster}. Paths are relative to this file.\n"
        f"# shoal agent --config {INSTALLED}/{CONFIGURATION}\n{text}\n"
    )


def check_span(count: int, unit: str) -> None:
    """Of an authority (years) or a certificate (days). Raises UsageError."""
    most = {"years": AUTHORITY_YEARS_MAX, "days": CERTIFICATE_DAYS_MAX}[unit]
    if not 1 <= count <= most:
        raise UsageError(f"{count} {unit} is out of range", f"give 1 to {most}")


def check_name(name: str, what: str) -> str:
    """Of an agent, a client or a cluster. Raises UsageError."""
    pattern = CLIENT_NAME if what == "client" else PLAIN_NAME
    if pattern.fullmatch(name) is None:
        shown = name if len(name) <= 80 else f"{name[:80]}..."
        signs = ". _ - @" if what == "client" else ". _ -"
        raise UsageError(
            f"{shown!r} is not a name of {'an agent' if what == 'agent' else f'a {what}'}",
            f"use 1 to 64 letters, digits, {signs}, beginning with a letter or a digit",
        )
    if what == "client" and name in RESERVED:
        raise UsageError(f"{name} is no principal that a certificate proves", "choose another name")
    return name


def check_addresses(addresses: Sequence[str]) -> list[str]:
    """Each once. Raises UsageError."""
    for address in addresses:
        try:
            host_in_certificate(address)
        except AuthorityError as error:
            raise UsageError(
                f"--address: {str(error)[:160]}",
                "give one without port and wildcard, such as 10.0.0.5 or shoal-1.example.com",
            ) from None
        if is_address(address) and (is_unspecified(address) or ip_address(address).is_multicast):
            raise UsageError(f"--address {address} is nobody's address", "give one that others reach")
    return list(dict.fromkeys(addresses))


def now() -> datetime:
    """By this machine's clock, in whole seconds, as certificates have them."""
    return datetime.now(UTC).replace(microsecond=0)


def _table(path: str, advice: str) -> dict[str, object]:
    try:
        return tomllib.loads(read_file(path, advice).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CliError(f"{path} is not TOML: {error}", advice) from None
