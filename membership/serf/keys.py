"""The pool's key queries: this node's keyring as others list and change it, and what their answers add up to.

Law of this file: pure. A change is worked out here, kept by the driver (a file, if there is one), and only
then in force and answered: a key that would be gone after a restart must not be reported as installed.
One change at a time, in the order in which the queries came.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from shoal.membership.serf.own_queries import MAX_QUERY_BYTES
from shoal.membership.wire.errors import WireError
from shoal.membership.wire.key_messages import (
    KeyAnswer,
    decode_key_answer,
    decode_key_request,
    encode_key_answer,
)
from shoal.membership.wire.keyring import Keyring, KeyringError, key_text, parse_key
from shoal.membership.wire.serf import Query, QueryResponse, encode_serf

INSTALL_QUERY = "_serf_install-key"
USE_QUERY = "_serf_use-key"
REMOVE_QUERY = "_serf_remove-key"
LIST_QUERY = "_serf_list-keys"

MAX_WAITING = 16
"""Changes that wait for the one before them to be kept. More are refused: nobody rotates that fast."""

NOT_IN_PLAIN = "keys are neither listed nor changed while this node speaks or accepts plain text"
"""Else a listener would read them, and any sender of a packet could change them."""

_CHANGES: Mapping[str, Callable[[Keyring, bytes], Keyring]] = {
    INSTALL_QUERY: Keyring.install,
    USE_QUERY: Keyring.use,
    REMOVE_QUERY: Keyring.remove,
}

KEY_QUERIES = frozenset((*_CHANGES, LIST_QUERY))


class KeyDesk:
    """The keyring of this node, None without encryption, and its answers.

    `change` is a keyring to be kept; when it is, or could not be, say kept(). `answers` are to be sent.
    """

    def __init__(self, name: str, keyring: Keyring | None, *, only_sealed: bool = True) -> None:
        self.keyring = keyring
        self.change: Keyring | None = None
        self.answers: list[tuple[Query, QueryResponse]] = []
        self._name = name
        self._only_sealed = only_sealed
        self._waiting: deque[Query] = deque()

    def on_query(self, query: Query) -> None:
        """One of KEY_QUERIES, meant for us."""
        if self.keyring is None:
            listing = query.name == LIST_QUERY
            reason = "Keyring is empty" if listing else "No keyring to modify"
            self._answer(query, KeyAnswer(False, f"{reason} (encryption not enabled)"))
        elif not self._only_sealed:
            self._answer(query, KeyAnswer(False, NOT_IN_PLAIN))
        elif query.name == LIST_QUERY:
            keys = tuple(key_text(key) for key in self.keyring.keys)
            self._answer(query, KeyAnswer(True, "", keys, keys[0]))
        elif len(self._waiting) >= MAX_WAITING:
            self._answer(query, KeyAnswer(False, "too many changes of the keyring wait already"))
        else:
            self._waiting.append(query)
            self._work()

    def kept(self, fault: str) -> None:
        """The change is kept, unless there is a fault to tell."""
        assert self.change is not None
        keyring, self.change = self.change, None
        if not fault:
            self.keyring = keyring
        self._answer(self._waiting.popleft(), KeyAnswer(not fault, fault))
        self._work()

    def _work(self) -> None:
        """The oldest change, and those after it as long as they need not be kept."""
        while self._waiting and self.change is None:
            assert self.keyring is not None
            query = self._waiting[0]
            try:
                changed = _CHANGES[query.name](self.keyring, decode_key_request(query.payload))
            except (KeyringError, WireError) as fault:
                self._answer(self._waiting.popleft(), KeyAnswer(False, str(fault)))
                continue
            if changed == self.keyring:
                self._answer(self._waiting.popleft(), KeyAnswer(True))
            else:
                self.change = changed

    def _answer(self, query: Query, answer: KeyAnswer) -> None:
        response = QueryResponse(query.ltime, query.id, self._name, 0, encode_key_answer(answer))
        assert len(encode_serf(response)) <= MAX_QUERY_BYTES  # MAX_KEYS see to it, Serf has to cut its list
        self.answers.append((query, response))

    def check_invariants(self) -> None:
        assert len(self._waiting) <= MAX_WAITING
        assert (self.change is None) == (not self._waiting)
        assert self.change != self.keyring or self.keyring is None


@dataclass(slots=True)
class KeyReport:
    """What a key query came to: of `members` asked, `failures` says who did not do it and why, silence
    included. Of a listing also which key how many hold, and use as their primary one; the latter is empty
    where it is not told, as over a Serf agent's RPC."""

    members: int
    failures: dict[str, str] = field(default_factory=dict)
    keys: dict[bytes, int] = field(default_factory=dict)
    primaries: dict[bytes, int] = field(default_factory=dict)


def report(asked: Collection[str], answers: Mapping[str, bytes]) -> KeyReport:
    """Add the answers up. `asked` are the members alive when the question was put; others who answered count
    as well."""
    names = sorted({*asked, *answers})
    result = KeyReport(len(names))
    for name in names:
        if name not in answers:
            result.failures[name] = "no answer"
            continue
        try:
            answer = decode_key_answer(answers[name])
            # Serf leaves out those that do not fit, but never the primary one.
            primary = parse_key(answer.primary) if answer.primary else b""
            keys = {*map(parse_key, answer.keys), primary} - {b""}
        except (WireError, KeyringError) as fault:
            result.failures[name] = f"its answer cannot be read: {fault}"
            continue
        if not answer.ok:
            result.failures[name] = answer.message or "it refused"
        for key in keys:
            result.keys[key] = result.keys.get(key, 0) + 1
        if primary:
            result.primaries[primary] = result.primaries.get(primary, 0) + 1
    return result
