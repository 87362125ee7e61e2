"""Certificates made anew: the same names, another key, in the same files.

Law of this file: which certificates, and in what order the files of a pair are replaced. An interruption
between them leaves a pair that does not fit; agents keep the old one, and the next run makes both anew.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from shoal.agent.cli.secure.places import read_file, replace_file
from shoal.agent.cli.secure.store import AGENT, CLIENT, CLIENTS, HOSTS, Store, now
from shoal.agent.cli.terminal.output import CliError
from shoal.agent.tls.authority import AuthorityError, read_issued

ADVICE = "`shoal secure agent` or `shoal secure client` with --force makes it anew"


class Renewed(NamedTuple):
    """`certificate`, `key`: paths. `until`: the day."""

    kind: str
    name: str
    certificate: str
    key: str
    until: str


def renewed(store: Store, names: Sequence[str], within_days: int, days: int) -> list[Renewed]:
    """Without names: all that have at most `within_days` left. Raises CliError, before anything is replaced
    where a name is unknown."""
    found = [
        (name, os.path.join(store.path, kind, name, file))
        for kind, file in ((HOSTS, AGENT), (CLIENTS, CLIENT))
        for name in store.names(kind)
        if not names or name in names
    ]
    unknown = sorted(set(names) - {name for name, _ in found})
    if unknown:
        raise CliError(f"{store.path} has no host and no client {', '.join(unknown)}", ADVICE)
    made = []
    for name, stem in found:
        certificate, key = f"{stem}.crt", f"{stem}.key"
        try:
            issued = read_issued(read_file(certificate, ADVICE))
            if not names and issued.days_left(now()) > within_days:
                continue
            pair = store.authority.sign_again(issued, now(), days)
            until = read_issued(pair.certificate).not_after
        except AuthorityError as error:
            raise CliError(f"{certificate}: {error}", ADVICE) from None
        read_file(key, ADVICE)
        replace_file(key, pair.key)
        replace_file(certificate, pair.certificate)
        made.append(Renewed(str(issued.kind), name, certificate, key, f"{until:%Y-%m-%d}"))
    return made
