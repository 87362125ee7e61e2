"""`shoal secure`: make the authority of a cluster, and the certificates of its agents and clients.

Law of this file: it checks what was asked for, and says what comes next. store.py knows the files,
places.py how they are written.
"""

from __future__ import annotations

import os
import shlex
import socket
from typing import Annotated

from shoal.agent.cli.secure.principals import GROUPS
from shoal.agent.cli.terminal.options import (
    Output,
    OutputOption,
    argument,
    example,
    flag,
    group,
    name_of,
    option,
)
from shoal.agent.cli.terminal.output import CliError, UsageError, plural, say, show_json

YEARS = 10
DAYS = 365
RENEWED_DAYS = 30
"""Certificates with so few days left are made anew: `shoal doctor` tells of them from then on."""

DirOption = Annotated[str, option("DIR", "The authority's directory.", "--dir", callback=name_of)]
AddressOption = Annotated[
    list[str] | None,
    option("ADDR", "IP address or DNS name of the host; repeatable. Others use the first.", "--address"),
]
DaysOption = Annotated[int, option("N", "How long a certificate is good.", "--days")]
DataOption = Annotated[
    str, option("DIR", "The agent's data directory, on that host.", "--data", callback=name_of)
]
ForceOption = Annotated[bool, flag("Replace what is there; the old directory is kept beside.", "--force")]

secure = group(
    "secure",
    "Make certificates, keys and configurations; and principals, roles and tokens of a running cluster.",
    "shoal secure init --cluster fish --address 10.0.0.1",
    "shoal secure agent host-2 --address 10.0.0.2",
    "shoal secure client ann",
    "shoal secure token create ann",
)
for commands in GROUPS:
    secure.add_typer(commands)


@secure.command(
    epilog=example("shoal secure init --cluster fish --dir secrets --address 10.0.0.1 --name host-1")
)
def init(
    cluster: Annotated[str, option("NAME", "The cluster.", "--cluster", callback=name_of)],
    directory: DirOption = "secrets",
    address: AddressOption = None,
    name: Annotated[
        str | None, option("NAME", "This host's agent; default: the host's name.", "--name", callback=name_of)
    ] = None,
    data: DataOption = "/var/lib/shoal",
    years: Annotated[int, option("N", "How long the authority is good.", "--years")] = YEARS,
    days: DaysOption = DAYS,
    force: ForceOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make an authority, a gossip key, this host's files, and the first administrator's token.

    The token is shown once, on standard output. The cluster keeps a hash of it.
    """
    from shoal.addresses import is_host_name
    from shoal.agent.cli.secure import store
    from shoal.agent.cli.secure.places import check_path, place
    from shoal.agent.security.tokens import SECRET_BYTES, TOKEN_ID_BYTES, make_token
    from shoal.agent.tls.authority import Authority, AuthorityError, make_authority
    from shoal.membership.wire.keyring import key_text

    check_path(directory, "--dir")
    store.check_name(cluster, "cluster")
    store.check_span(years, "years")
    store.check_span(days, "days")
    host_name = socket.gethostname()
    own = host_name.partition(".")[0] if name is None else name
    store.check_name(own, "agent")
    own_hosts = [host_name] if is_host_name(host_name) else []
    addresses = store.check_addresses(address or [_own_address(), *own_hosts])
    check_path(data, "--data")
    token = make_token(os.urandom(TOKEN_ID_BYTES), os.urandom(SECRET_BYTES))
    now = store.now()
    try:
        made = make_authority(cluster, now, years)
        pair = Authority.from_pair(made).sign_agent(own, addresses, now, days)
    except AuthorityError as error:
        raise CliError(str(error)) from None
    shared = store.CommonFiles(
        cluster, made.certificate, f"{key_text(os.urandom(32))}\n".encode(), token.hash().hex()
    )
    of_host = store.host_files(shared, pair, own, addresses, [], data)
    files = store.authority_files(shared, made)
    files |= {f"{store.HOSTS}/{own}/{file}": content for file, content in of_host.items()}
    former = place(directory, files, force=force)
    host_directory = os.path.join(directory, store.HOSTS, own)
    if output is Output.JSON:
        show_json({"directory": directory, "host": host_directory, "former": former, "token": token.reveal()})
        return
    _say_former(former)
    say(f"the authority of cluster {cluster}, which signs agents: {directory}; keep it from everybody else")
    say(f"this host, {own} at {', '.join(addresses)}: {host_directory}")
    say("the first administrator's token, which is not shown again:")
    print(token.reveal(), flush=True)
    say("next, here:")
    say(f"  cp -rp {shlex.quote(host_directory)} {store.INSTALLED}")
    say(f"  shoal agent --config {store.INSTALLED}/{store.CONFIGURATION}")
    say("for each further host:")
    say(f"  shoal secure agent NAME --dir {shlex.quote(directory)} --address ADDRESS")
    say("then, with the token in a file of your own:")
    ca = shlex.quote(os.path.join(directory, store.CA))
    say(f"  shoal status --agent {store.url_of(addresses[0])} --ca {ca} --token @FILE")


@secure.command(epilog=example("shoal secure agent host-2 --address 10.0.0.2 --address shoal-2.example.com"))
def agent(
    name: Annotated[str, argument("NAME", "The agent of another host.", callback=name_of)],
    address: AddressOption = None,
    directory: DirOption = "secrets",
    data: DataOption = "/var/lib/shoal",
    days: DaysOption = DAYS,
    force: ForceOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a host's certificate, and the directory with all that its agent needs."""
    from shoal.agent.cli.secure import store
    from shoal.agent.cli.secure.places import check_path, make_parent, place
    from shoal.agent.tls.authority import AuthorityError

    store.check_name(name, "agent")
    store.check_span(days, "days")
    if not address:
        raise UsageError("--address is missing", "give the addresses and names that others use for it")
    addresses = store.check_addresses(address)
    check_path(data, "--data")
    known = store.Store.open(directory)
    try:
        pair = known.authority.sign_agent(name, addresses, store.now(), days)
    except AuthorityError as error:
        raise CliError(str(error)) from None
    files = store.host_files(known.shared, pair, name, addresses, known.seeds(but=name), data)
    make_parent(known.of_host(name))
    former = place(known.of_host(name), files, force=force)
    if output is Output.JSON:
        show_json({"directory": known.of_host(name), "former": former})
        return
    _say_former(former)
    target = f"[{addresses[0]}]" if ":" in addresses[0] else addresses[0]
    target += f":{store.INSTALLED}"
    say(f"{name} at {', '.join(addresses)}: {known.of_host(name)}")
    say("next, with all of it in one directory on that host:")
    say(f"  scp -rp {shlex.quote(known.of_host(name))} {shlex.quote(target)}")
    say(f"  shoal agent --config {store.INSTALLED}/{store.CONFIGURATION}")


@secure.command(epilog=example("shoal secure client ann", "shoal secure client prometheus --days 90"))
def client(
    name: Annotated[str, argument("NAME", "The principal that the client is.", callback=name_of)],
    directory: DirOption = "secrets",
    days: DaysOption = DAYS,
    force: ForceOption = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a client's certificate; it proves who somebody is, and permits nothing by itself."""
    from shoal.agent.cli.secure import store
    from shoal.agent.cli.secure.places import make_parent, place
    from shoal.agent.tls.authority import AuthorityError

    store.check_name(name, "client")
    store.check_span(days, "days")
    known = store.Store.open(directory)
    try:
        pair = known.authority.sign_client(name, store.now(), days)
    except AuthorityError as error:
        raise CliError(str(error)) from None
    path = known.of_client(name)
    make_parent(path)
    former = place(path, store.client_files(known.shared, pair), force=force)
    if output is Output.JSON:
        show_json({"directory": path, "former": former})
        return
    _say_former(former)
    say(f"client {name}: {path}")
    path = shlex.quote(path)
    say(
        f"  curl --cacert {path}/{store.CA} --cert {path}/client.crt --key {path}/client.key"
        " https://HOST:7070/v1/members"
    )


@secure.command(epilog=example("shoal secure renew", "shoal secure renew host-2 ann"))
def renew(
    names: Annotated[
        list[str] | None, argument("NAME", "Agents and clients; default: all with few days left.")
    ] = None,
    directory: DirOption = "secrets",
    within: Annotated[int, option("N", "Without names: those with so few days left.", "--within", min=0)] = (
        RENEWED_DAYS
    ),
    days: DaysOption = DAYS,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make certificates anew, with the same names and another key.

    Copy both files to the host; a running agent takes them within ten seconds.
    """
    from shoal.agent.cli.secure import store
    from shoal.agent.cli.secure.renewal import renewed

    for name in names or []:
        store.check_name(name, "client")
    store.check_span(days, "days")
    known = store.Store.open(directory)
    made = renewed(known, names or [], within, days)
    if output is Output.JSON:
        show_json({"renewed": [one._asdict() for one in made]})
        return
    for one in made:
        say(f"{one.kind} {one.name}, good until {one.until}: copy {one.certificate} and {one.key}")
    say(plural(len(made), "certificate") + (" renewed" if made else f": none has under {within} days left"))


def _own_address() -> str:
    """The address from which this host reaches others. Raises UsageError."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
            return str(probe.getsockname()[0])
    except OSError as error:
        raise UsageError(
            f"cannot tell the address of this host: {error.strerror or error}", "give --address"
        ) from None


def _say_former(former: str | None) -> None:
    if former is not None:
        say(f"the old directory is kept as {former}")
