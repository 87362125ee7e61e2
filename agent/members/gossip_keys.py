"""Gossip keys for those who run a cluster: who holds which, and changing them without losing a member.

Law of this file: it asks the pool, and refuses a step that would lock somebody out; it hands no key out.
Keys are named by their fingerprints: a client of HTTP need not be able to join the gossip.

Why a step is refused: a member that lacks the new key cannot read those who use it, and one that still uses
the old key is not heard by those who removed it. A failed member may come back, so it counts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from string import hexdigits
from typing import Any

from shoal.agent.members.tags import TAG_NAME
from shoal.errors import ShoalError
from shoal.membership.interface import GossipKeys, KeyChange, Member, QueryError
from shoal.membership.serf.keys import KeyReport
from shoal.membership.wire.keyring import (
    FINGERPRINT_CHARACTERS,
    KeyringError,
    fingerprint,
    parse_key,
)

NOT_SEALED = "(encryption not enabled)"  # the end of Serf's two messages that say so


class KeyService:
    """`gossip` raises ShoalError not-ready until gossip has started."""

    def __init__(self, gossip: Callable[[], GossipKeys]) -> None:
        self._gossip = gossip

    async def listing(self) -> dict[str, Any]:
        """GET /v1/keys."""
        gossip = self._gossip()
        return self._document(await self._list(gossip), gossip.members())

    async def change(self, change: KeyChange, text: str, *, force: bool) -> dict[str, Any]:
        """POST /v1/keys/...: have every member do it; the listing afterwards.

        `text` is a key in base64, or, except to install it, its fingerprint. Raises ShoalError: bad-request,
        keys-differ when the step would lock members out (`force` takes it all the same) or some refused it,
        timeout when some did not answer.
        """
        gossip = self._gossip()
        before = await self._list(gossip)
        key = _key(text, before, change)
        if not force:
            self._check(change, key, before, gossip.members())
        report = await _asked(gossip.change_keys(change, key))
        self._raise_failures(f"{fingerprint(key)}: {change.value}", report, gossip.members())
        return self._document(await self._list(gossip), gossip.members())

    def fingerprint_of(self, text: str) -> str:
        """A key's name where it must not be shown. `text`: as for change(). Raises ShoalError
        bad-request for what is neither a key nor a fingerprint."""
        if len(text) == FINGERPRINT_CHARACTERS and all(one in hexdigits for one in text):
            return text.lower()
        return fingerprint(_parsed(text))

    async def _list(self, gossip: GossipKeys) -> KeyReport:
        report = await _asked(gossip.keys())
        if report.failures and all(reason.endswith(NOT_SEALED) for reason in report.failures.values()):
            raise ShoalError(
                "keys-differ", "gossip is not sealed here: agents need --gossip-key from their start"
            )
        return report

    def _check(self, change: KeyChange, key: bytes, report: KeyReport, members: Sequence[Member]) -> None:
        """Raises ShoalError before anything has happened."""
        if change is KeyChange.INSTALL:
            return
        self._raise_failures("who holds which keys is not known", report, members, definite=True)
        failed = _names(member for member in members if member.status == "failed")
        if failed:
            raise ShoalError(
                "keys-differ",
                f"{', '.join(failed)} failed, and would be locked out when they come back: wait for them, or "
                "force-leave them, or say force",
            )
        held, used = report.keys.get(key, 0), report.primaries.get(key, 0)
        if change is KeyChange.USE and held < report.members:
            raise ShoalError(
                "keys-differ",
                f"{fingerprint(key)} is installed on {held} of {report.members} members: install it first",
            )
        if change is KeyChange.REMOVE and not report.primaries:
            raise ShoalError(
                "keys-differ",
                "a Serf agent does not tell who uses which key: say force once `use` of another key has "
                "succeeded on all members",
            )
        if change is KeyChange.REMOVE and used:
            raise ShoalError(
                "keys-differ",
                f"{fingerprint(key)} is in use by {used} of {report.members} members: use another one first",
            )

    def _raise_failures(
        self, what: str, report: KeyReport, members: Sequence[Member], *, definite: bool = False
    ) -> None:
        if not report.failures:
            return
        failures = _failures(report, members)
        silent = all(reason == "no answer" for reason in report.failures.values())
        done = report.members - len(report.failures)
        told = "; ".join(f"{failure['name']}: {failure['reason']}" for failure in failures[:8])
        raise ShoalError(
            "timeout" if silent else "keys-differ",
            f"{what}: {done} of {report.members} members; {told}",
            definite=definite,
            failures=failures,
        )

    def _document(self, report: KeyReport, members: Sequence[Member]) -> dict[str, Any]:
        used: Mapping[bytes, int | None] = report.primaries or dict.fromkeys(report.keys)
        order = sorted(report.keys, key=lambda key: (-(used.get(key, 0) or 0), fingerprint(key)))
        away = [member for member in members if member.status in ("failed", "left")]
        return {
            "members": report.members,
            "keys": [
                {"fingerprint": fingerprint(key), "held_by": report.keys[key], "used_by": used.get(key, 0)}
                for key in order
            ],
            "failures": _failures(report, members),
            "away": _names(away),
        }


async def _asked(asking: Awaitable[KeyReport]) -> KeyReport:
    try:
        return await asking
    except QueryError as error:
        raise ShoalError("overloaded", f"the pool could not be asked: {error}") from None


def _key(text: str, report: KeyReport, change: KeyChange) -> bytes:
    """The key meant. Only one that is to be installed has to be given whole."""
    if change is not KeyChange.INSTALL and len(text) == FINGERPRINT_CHARACTERS:
        found = [key for key in report.keys if fingerprint(key) == text.lower()]
        if not found:
            raise ShoalError("keys-differ", f"no member holds a key with the fingerprint {text!r}")
        return found[0]
    return _parsed(text)


def _parsed(text: str) -> bytes:
    try:
        return parse_key(text)
    except KeyringError as error:
        raise ShoalError("bad-request", str(error)) from None


def _failures(report: KeyReport, members: Sequence[Member]) -> list[Any]:
    names = {member.name: member.tags.get(TAG_NAME, member.name) for member in members}
    return [
        {"id": member_id, "name": names.get(member_id, member_id), "reason": reason}
        for member_id, reason in sorted(report.failures.items())
    ]


def _names(members: Iterable[Member]) -> list[str]:
    return sorted(member.tags.get(TAG_NAME, member.name) for member in members)
