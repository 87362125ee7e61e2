"""What an agent that joins pays for 10,000 tokens: the catalog, from a copy and from the log.

Law of this file: no network and no disk. Each reading has an interpreter of its own, as an agent has.
"""

from __future__ import annotations

import gc
import multiprocessing
import statistics
import time
import tracemalloc
from typing import NamedTuple, Protocol

import terminal
from row import Row

from shoal.agent.levels import Level
from shoal.agent.security.access import AskedBy
from shoal.agent.security.principals import MakeToken, PutPrincipal, PutRole
from shoal.agent.security.rules import Rule, rule_from_text
from shoal.agent.security.tokens import SECRET_BYTES, TOKEN_ID_BYTES, make_token
from shoal.agent.topics.catalog import Catalog
from shoal.agent.topics.catalog_codec import decode_command, encode_command

PRINCIPALS = 10_000
"""Each with a token."""
ROLES = 1_000
LEVEL = Level(6)
SECONDS_BAR = 2.0
MEMORY_BAR_BYTES = 20 * 2**20
READING_TIMEOUT_SECONDS = 120.0


class Bench(Protocol):
    """What this file needs of a run."""

    rounds: int


class Readings(NamedTuple):
    """Of one interpreter. Seconds are elapsed ones."""

    copy_seconds: float
    copy_bytes: int
    log_seconds: float


def rows(bench: Bench) -> list[Row]:
    """The medians beside the bars."""
    found = []
    bar = terminal.Bar("catalogs")
    for number in range(bench.rounds):
        found.append(_reading_apart())
        bar.update((number + 1) / bench.rounds, f"{found[-1].copy_seconds:.2f} s from a copy")
    copy_s = statistics.median(reading.copy_seconds for reading in found)
    log_s = statistics.median(reading.log_seconds for reading in found)
    kept = statistics.median(reading.copy_bytes for reading in found)
    name = f"{PRINCIPALS:,} tokens, {ROLES:,} roles"
    bar_words, commands = f"bar: {SECONDS_BAR:.0f} s", ROLES + 2 * PRINCIPALS
    return [
        Row(f"{name}: applied from a copy", f"{copy_s:.2f} s", bar_words, copy_s / SECONDS_BAR, 1.0, True),
        Row(
            f"{name}: from {commands:,} commands of the log",
            f"{log_s:.2f} s",
            bar_words,
            log_s / SECONDS_BAR,
            1.0,
            True,
        ),
        Row(
            f"{name}: memory that stays",
            f"{kept / 2**20:.1f} MiB",
            f"bar: {MEMORY_BAR_BYTES // 2**20} MiB",
            kept / MEMORY_BAR_BYTES,
            1.0,
            True,
        ),
    ]


def commands() -> list[bytes]:
    """As the catalog's log has them: roles of two rules, principals of three roles, a token for each."""
    by = AskedBy("admin", "token", "127.0.0.1", 1_800_000_000_000, "0123456789abcdef")
    made = [
        PutRole(f"role-{number}", None, (_rule(f"orders-{number}"), _rule(f"receipts-{number}")), by)
        for number in range(ROLES)
    ]
    log = [encode_command(command) for command in made]
    for number in range(PRINCIPALS):
        name = f"principal-{number}"
        roles = tuple(sorted({f"role-{(number + step) % ROLES}" for step in (0, 7, 401)}))
        log.append(encode_command(PutPrincipal(name, None, roles, (), by)))
        token = make_token(number.to_bytes(TOKEN_ID_BYTES, "big"), number.to_bytes(SECRET_BYTES, "big"))
        log.append(encode_command(MakeToken(name, token.id, token.hash(), None, by)))
    return log


def _rule(prefix: str) -> Rule:
    return rule_from_text(f"topic:{prefix}*=describe,read,write")


def applied(log: list[bytes]) -> Catalog:
    """The catalog of these commands; every one of them takes effect."""
    catalog = Catalog(level=LEVEL)
    for data in log:
        outcome = catalog.apply(catalog.offset, decode_command(data))
        assert outcome == "done", outcome
    return catalog


def _reading_apart() -> Readings:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply_async(_reading).get(READING_TIMEOUT_SECONDS)


def _reading() -> Readings:
    log = commands()
    gc.collect()
    started = time.perf_counter()
    catalog = applied(log)
    log_seconds = time.perf_counter() - started
    assert len(catalog.security.principals) == PRINCIPALS
    data = catalog.to_bytes()
    del catalog, log
    gc.collect()
    started = time.perf_counter()
    Catalog.from_bytes(data)
    copy_seconds = time.perf_counter() - started
    gc.collect()
    tracemalloc.start()
    kept = Catalog.from_bytes(data)
    gc.collect()
    size, _ = tracemalloc.get_traced_memory()
    assert len(kept.security.principals) == PRINCIPALS
    return Readings(copy_seconds, size, log_seconds)
