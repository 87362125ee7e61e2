"""One round of hostile credentials: for the test beside this, and for `scripts/campaign credentials`.

Each case is accepted exactly where an independent strict reader accepts it, or refused with the one error of
its decoder; within a bounded time, and with bounded memory in the cases that are measured; and no word of the
refusal repeats a secret.
"""

from __future__ import annotations

import asyncio
import datetime
import os
import pathlib
import random
import ssl
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from typing import Final

from jwt_issuer import CONFIGURED, NOW_MS, key_set

from shoal.agent.security.jwt import JwtError, verify
from shoal.agent.security.jwt_keys import KeySet, keys_from
from shoal.agent.tls.authority import Authority, AuthorityError, Pair, belong_together, read_issued
from shoal.agent.tls.contexts import shake_hands
from shoal.agent.tls.names import NameFault
from tests.agent.credential_fuzz import certificates, front, headers, jwts, key_sets, sessions
from tests.agent.credential_fuzz.certificates import Mint
from tests.agent.credential_fuzz.texts import repeats

SHARES: Final = {
    "headers": 20, "jwts": 20, "sessions": 10, "key sets": 5, "certificates": 20, "pem files": 5,
    "handshakes": 1, "heads": 19,
}  # fmt: skip
"""Cases of each kind in a hundred."""
SLOWEST_S: Final = 0.5
"""Of CPU, for one case with what makes and judges it: a good one takes a millisecond."""
MEMORY_BYTES_MAX: Final = 8 << 20
"""Of one case: a head has 16 KiB, a key set 64 KiB, and they are copied some times."""
MEASURED_EACH: Final = 200
"""Of so many cases the memory of one is measured: it takes ten times as long."""
HANDSHAKE_EACH: Final = 10
"""Of so many certificates one is shown to the agent, and so is each that the two readers take for others."""

Case = Callable[[random.Random], bool]


def bounded(case: Case, rng: random.Random, number: int) -> bool:
    """Run it within its bounds."""
    is_measured = number % MEASURED_EACH == 0
    if is_measured:
        tracemalloc.start()
    started = time.thread_time()
    try:
        taken = case(rng)
        taken_s = time.thread_time() - started
        if is_measured:
            peak = tracemalloc.get_traced_memory()[1]
            assert peak < MEMORY_BYTES_MAX, f"{peak} bytes of memory"
    finally:
        if is_measured:
            tracemalloc.stop()
    assert is_measured or taken_s < SLOWEST_S, f"{taken_s:.2f} s"
    return taken


def check_jwt(rng: random.Random, keys: KeySet) -> bool:
    """Whether it was taken."""
    text = jwts.hostile(rng)
    now_ms = NOW_MS + rng.choice((0, 0, 0, 0, 599_999, 600_000, -60_000, -60_001, 3_600_000, -3_600_000))
    found, words = None, ""
    try:
        told = verify(text, keys, CONFIGURED, now_ms)
        found = told.principal, told.expires_ms, told.roles
    except JwtError as error:
        words = str(error)
    assert not repeats(words, text), f"{words} repeats {text!r}"
    expected = jwts.valid(text, now_ms)
    assert found == expected, f"{found} and not {expected} for {text!r}"
    return found is not None


def check_certificate(rng: random.Random, mint: Mint) -> bool:
    """Whether it was taken for anybody."""
    name, der, is_signed = mint.hostile(rng)
    expected = certificates.who(certificates.facts(der))
    read = mint.read(der)
    told, words = None, ""
    if read is not None:
        try:
            peer = mint.contexts.rules.peer(read)
            told = f"{'agent' if peer.is_agent else 'client'} {peer.name}"
        except NameFault as fault:
            words = str(fault)
        assert not repeats(words, str(read.get("subjectAltName"))), words
    if told != expected or rng.randrange(HANDSHAKE_EACH) == 0:
        told = mint.shown(name, der)
        now = datetime.datetime.now(datetime.UTC)
        is_good = is_signed and certificates.is_in_time(der, now)
        assert told is None or (told == expected and is_good), f"{told} and not {expected}: {der.hex()}"
    return told is not None


def check_pem(rng: random.Random, mint: Mint, authority: Pair) -> bool:
    """What `shoal secure` reads: certificates and keys as files."""
    _, der, _ = mint.hostile(rng)
    pem = bytearray(rng.choice((certificates.pem_of(der), authority.certificate, mint.bases["agent"].cert)))
    key = bytearray(authority.key)
    for one in (pem, key):
        if rng.random() < 0.5:
            at = rng.randrange(len(one))
            one[at : at + rng.randrange(3)] = rng.choice(
                (b"", b"\0", b"-----END", b"\n", b"A", rng.randbytes(2))
            )
    taken, words = 0, ""
    for read in (
        lambda: read_issued(bytes(pem)),
        lambda: belong_together(Pair(bytes(pem), bytes(key))),
        lambda: Authority.from_pair(Pair(bytes(pem), bytes(key))),
        lambda: Authority.from_pair(authority).has_signed(bytes(pem)),
    ):
        try:
            read()
            taken += 1
        except AuthorityError as error:
            words += f"{error}; "
    assert not repeats(words, key.decode("latin-1")), words
    return taken > 0


def check_handshake(rng: random.Random, mint: Mint) -> bool:
    """Two agents whose words are changed between them: neither takes the other for one then."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    from_server, from_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = mint.contexts.agents.wrap_bio(to_client, from_client)
    server = mint.contexts.server.wrap_bio(to_server, from_server, server_side=True)
    hit = rng.randrange(4)
    changed_any = False
    for turn in range(8):
        end, source, target = (
            (client, from_client, to_server) if turn % 2 == 0 else (server, from_server, to_client)
        )
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            return False
        data = bytearray(source.read())
        if turn == hit and data:
            at = rng.randrange(len(data))
            # The version of a record is looked at by nobody (RFC 8446, 5.1).
            if at not in (1, 2):
                data[at] ^= 1 << rng.randrange(8)
                changed_any = True
        target.write(bytes(data))
    try:
        shake_hands([client, server])
        server.do_handshake()
    except ssl.SSLError:
        return False
    assert not changed_any, f"changed in turn {hit}, and taken all the same"
    return True


def run_round(
    seed: int, count: int, counted: Callable[[int], None] = lambda _: None
) -> dict[str, tuple[int, int]]:
    """By kind: how many cases were taken, and how many refused. `counted` is told of cases as they pass.
    AssertionError says what was wrong."""
    with tempfile.TemporaryDirectory(dir=_memory_directory()) as directory:
        mint = Mint(pathlib.Path(directory))
        authority = certificates.authority_pair()
        judge = front.judge_of(sessions.with_sessions(front.principals()))
        keys = keys_from(key_set(*jwts.PUBLISHED))
        cases: dict[str, Case] = {
            "headers": lambda rng: headers.check_value(rng, judge),
            "jwts": lambda rng: check_jwt(rng, keys),
            "sessions": lambda rng: sessions.check_session(rng, judge),
            "key sets": key_sets.check_key_set,
            "certificates": lambda rng: check_certificate(rng, mint),
            "pem files": lambda rng: check_pem(rng, mint, authority),
            "handshakes": lambda rng: check_handshake(rng, mint),
        }
        outcomes = {}
        for kind, case in cases.items():
            outcomes[kind] = _many(kind, case, seed, count * SHARES[kind] // 100)
            counted(sum(outcomes[kind]))
    outcomes["heads"] = asyncio.run(front.ask(seed, count * SHARES["heads"] // 100))
    counted(sum(outcomes["heads"]))
    return outcomes


def _many(kind: str, case: Case, seed: int, count: int) -> tuple[int, int]:
    rng = random.Random(f"{kind} {seed}")
    taken = 0
    for number in range(count):
        try:
            taken += bounded(case, rng, number)
        except Exception as error:
            error.add_note(f"{kind}, case {number} of seed {seed}")
            raise
    return taken, count - taken


def _memory_directory() -> str | None:
    """Files of hostile certificates are written a thousand times a second."""
    return "/dev/shm" if os.path.isdir("/dev/shm") else None
