"""The audit of an agent: who did what from where, with which outcome, until it stands in the topic `_audit`.

Law of this file: pure; the wall clock's time is an argument. Records wait here in a bounded buffer, and
nobody waits for them. Floods are counted, not written. A record has no token, no header and no content of any
request; of a token it has the id. Records of security's changes are made of committed commands alone. They
carry the command's place in the catalog's log: two agents that tell of one tell it once.
"""

from __future__ import annotations

import json
import math
import re
from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from typing import Final, NamedTuple, TypeAlias

from shoal.agent.security.access import AskedBy, Identity, Place, Proof
from shoal.agent.security.principals import (
    DeletePrincipal,
    DeleteRole,
    MakeToken,
    PutPrincipal,
    PutRole,
    RevokeToken,
    SecurityCommand,
)
from shoal.agent.security.sessions import SESSION_PATTERN, EndSession, MakeSessionKey
from shoal.agent.security.tokens import TOKEN_PATTERN
from shoal.format.timestamps import format_time

AUDIT_TOPIC: Final = "_audit"
AUDIT_RETENTION_MS: Final = 30 * 86_400_000
REFUSALS_PER_SECOND_MAX: Final = 100
"""Of one address: a program that tries again shows itself with fewer, and a disk stands as many."""
LOGINS_PER_SECOND_MAX: Final = 100
"""Of browsers at one address: each of theirs is told, and any program can log in as they do."""
ADDRESSES_MAX: Final = 1_024
"""Counted apart within one second; all further ones count as one."""
BUFFERED_MAX: Final = 4_096
"""Records that wait for the topic: 2 MiB at most. Further ones are counted and left out."""
UNASKED_MAX: Final = BUFFERED_MAX * 3 // 4
"""Of these, what refusals and logins may fill: anybody makes them, and they leave room for changes."""
CHANGES_MAX: Final = 1_024
"""Committed changes of security that wait here, as many as the catalog's log has of them in an hour."""
CHANGES_LEFT_MS: Final = 5_000
"""So long an agent leaves them to the leader of the catalog, then it writes them too: a lost leader may not
have, and the next one may be new and know nothing of them."""
LOGIN_AGAIN_MS: Final = 900_000
"""A credential that an address uses all the time is one login in so long at each agent."""
LOGINS_MAX: Final = 4_096
"""Remembered. When full they are forgotten, not searched: each is told once more."""
TEXT_CHARACTERS_MAX: Final = 256
"""Of one field: names of topics and groups have no more, and a path of a client may have any number."""
OTHER_ADDRESSES: Final = "others"
_SECRET: Final = re.compile(f"{TOKEN_PATTERN}|{SESSION_PATTERN}")
_SECRET_NAME_END: Final = len("shoal_xxxxxxxx")
"""Of a token: its id. Of a session: some of its key's."""

LOGIN_PROOFS: Final = frozenset((Proof.TOKEN, Proof.JWT, Proof.SESSION, Proof.CERTIFICATE))
Login: TypeAlias = bytes
"""The digest of a credential and of the address that uses it: itself it is kept nowhere."""


class Happening(NamedTuple):
    """An event at a door. `operation`: as the API's description calls it. `outcome`: `done`, or the code of
    the error."""

    principal: str
    proof: str
    address: str
    operation: str
    resource: str
    outcome: str


class SecurityChange(NamedTuple):
    """The record of a committed command, and its place in the catalog's log. `told_ms`: when this agent heard
    of it, by a clock that never jumps."""

    place: Place
    told_ms: int
    text: bytes


class RefusalWindow:
    """Refusals, and logins of browsers, of one address within one second. `written`, `logins`: records."""

    __slots__ = ("began_ms", "left_out", "logins", "written")

    def __init__(self, began_ms: int) -> None:
        self.began_ms = began_ms
        self.written = 0
        self.logins = 0
        self.left_out = 0


class AuditTrail:
    """Of one agent that asks for credentials. `agent`: its name."""

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._waiting: deque[bytes] = deque()
        self._windows: dict[str, RefusalWindow] = {}
        self._logins: dict[Login, int] = {}
        self._overflowed = 0
        self.changes: deque[SecurityChange] = deque()
        """In the order of the log."""
        self.written = 0
        self.left_out = 0
        self.on_news: Callable[[], None] | None = None
        """Called with each record that begins to wait; it must not wait."""

    # ---- events ----------------------------------------------------------------------------------

    def refused(self, event: Happening, now_ms: int) -> None:
        """A request got 401 or 403."""
        if not self.only_counted(event.address, now_ms):
            self._window(event.address, now_ms).written += 1
            self._write("refusal", event, now_ms, UNASKED_MAX)

    def only_counted(self, address: str, now_ms: int) -> bool:
        """Whether a request of this address that got 401 or 403 is one of too many. Then it is counted, and
        nobody has to say what it was. Else it is for refused()."""
        window = self._window(address, now_ms)
        if window.written < REFUSALS_PER_SECOND_MAX:
            return False
        window.left_out += 1
        self.left_out += 1
        return True

    def changed(self, event: Happening, now_ms: int) -> None:
        """A request that changes topics, groups, members or the agent has ended, well or not."""
        self._write("change", event, now_ms, BUFFERED_MAX)

    def logged_in(self, login: Login, event: Happening, now_ms: int) -> None:
        """A credential was good, for the first time for a while, or a browser has logged in with it again.
        Too many of browsers are counted. They hide no token of another, nor does a flood of refusals."""
        is_browsers = event.proof == Proof.SESSION or self.login_known_until_ms(login, now_ms) > 0
        if len(self._logins) >= LOGINS_MAX:
            self._logins.clear()
        self._logins[login] = now_ms
        if is_browsers:
            window = self._window(event.address, now_ms)
            if window.logins >= LOGINS_PER_SECOND_MAX:
                window.left_out += 1
                self.left_out += 1
                return
            window.logins += 1
        self._write("login", event, now_ms, UNASKED_MAX)

    def login_known_until_ms(self, login: Login, now_ms: int) -> int:
        """When it has to be told again; 0: now, for it was not told, or long ago. A clock that has gone back
        counts as a while."""
        told_ms = self._logins.get(login)
        is_known = told_ms is not None and 0 <= now_ms - told_ms < LOGIN_AGAIN_MS
        return told_ms + LOGIN_AGAIN_MS if told_ms is not None and is_known else 0

    def committed(self, place: Place, command: SecurityCommand, told_ms: int) -> None:
        """The catalog has taken a command. Of too many the oldest is left out: the catalog has it."""
        if len(self.changes) >= CHANGES_MAX:
            self.changes.popleft()
            self._overflowed += 1
            self.left_out += 1
        self.changes.append(SecurityChange(place, told_ms, change_text(place, command)))
        self._tell()

    # ---- for the one that writes them ------------------------------------------------------------

    def take(self, now_ms: int, records_max: int) -> list[bytes]:
        """Records that leave the buffer now, the oldest first, among them how many were left out before."""
        for address, window in list(self._windows.items()):
            if not 0 <= now_ms - window.began_ms < 1_000:
                self._close(address, window, now_ms)
        count = min(records_max, len(self._waiting))
        taken = [self._waiting.popleft() for _ in range(count)]
        if self._overflowed and not self._waiting:
            taken.append(self._left_out_text("", self._overflowed, now_ms))
            self._overflowed = 0
        return taken

    def end_windows(self, now_ms: int) -> None:
        """The agent stops: how many refusals were left out is told now."""
        for address, window in list(self._windows.items()):
            self._close(address, window, now_ms)

    @property
    def waiting(self) -> int:
        """Records in the buffer, without committed changes, which other agents have too."""
        return len(self._waiting) + bool(self._overflowed)

    @property
    def has_news(self) -> bool:
        """Whether a call of take() may bring something, now or within a second."""
        return bool(self._waiting or self._windows or self._overflowed or self.changes)

    # ---- within ----------------------------------------------------------------------------------

    def _window(self, address: str, now_ms: int) -> RefusalWindow:
        if address not in self._windows and len(self._windows) >= ADDRESSES_MAX:
            address = OTHER_ADDRESSES
        window = self._windows.get(address)
        if window is not None and 0 <= now_ms - window.began_ms < 1_000:
            return window
        if window is not None:
            self._close(address, window, now_ms)
        window = self._windows[address] = RefusalWindow(now_ms)
        return window

    def _close(self, address: str, window: RefusalWindow, now_ms: int) -> None:
        del self._windows[address]
        if window.left_out:
            text = self._left_out_text(address, window.left_out, now_ms)
            self._append(text, UNASKED_MAX, leaves_out=window.left_out)

    def _left_out_text(self, address: str, count: int, now_ms: int) -> bytes:
        record = {"time": _time(now_ms), "agent": self._agent, "kind": "left-out"}
        return _json({**record, "address": address, "count": count})

    def _write(self, kind: str, event: Happening, now_ms: int, waiting_max: int) -> None:
        fields = {name: shortened(value) for name, value in event._asdict().items()}
        record = {"time": _time(now_ms), "agent": self._agent, "kind": kind, **fields}
        self._append(_json(record), waiting_max)

    def _append(self, text: bytes, waiting_max: int, leaves_out: int = 0) -> None:
        """`leaves_out`: of a record that tells how many are missing; the number is told with others then."""
        if len(self._waiting) >= waiting_max:
            self._overflowed += leaves_out or 1
            self.left_out += 0 if leaves_out else 1
            return
        self._waiting.append(text)
        self._tell()

    def _tell(self) -> None:
        if self.on_news is not None:
            self.on_news()


class ShownLogin:
    """The login that a connection has shown last, and until when the audit need not hear of it again.
    `address`: of its other end."""

    __slots__ = ("_address", "_authorization", "until_ms")

    def __init__(self, address: str) -> None:
        self._address = address
        self._authorization: str | None = None
        self.until_ms = 0.0

    def is_told(
        self,
        trail: AuditTrail,
        authorization: str | None,
        certificate: str | None,
        now_ms: float,
    ) -> bool:
        """Whether the audit knows this one, or there is none."""
        if authorization is self._authorization and now_ms < self.until_ms:
            return True  # asked by each request: the text is the same object where its head is remembered
        login = login_of(authorization, certificate, self._address)
        self._authorization = authorization
        self.until_ms = math.inf if login is None else trail.login_known_until_ms(login, int(now_ms))
        return self.until_ms > 0


def shortened(text: str) -> str:
    """Without secrets: a token in the path of a request is shown by its id."""
    return _SECRET.sub(lambda found: found[0][:_SECRET_NAME_END], text)[:TEXT_CHARACTERS_MAX]


def login_of(authorization: str | None, certificate: str | None, address: str) -> Login | None:
    """The credential of a request, and where it is used, by their digest; None where it shows none.
    `certificate`: its principal."""
    if authorization is None and certificate is None:
        return None
    shown = f"certificate {certificate}" if authorization is None else f"header {authorization}"
    return blake2b(f"{address} {shown}".encode("utf-8", "surrogateescape"), digest_size=16).digest()


def happening(identity: Identity, address: str, operation: str, resource: str, outcome: str) -> Happening:
    """With the identity as it was proven."""
    return Happening(identity.principal, identity.proof.value, address, operation, resource, outcome)


def change_text(place: Place, command: SecurityCommand) -> bytes:
    """The record of a command that the catalog has taken: the same at every agent."""
    operation, resource = told(command)
    by: AskedBy = command.by
    epoch, offset = place
    return _json(
        {
            "time": _time(by.at_ms),
            "kind": "change",
            "principal": by.principal,
            "proof": by.proof,
            "address": by.address,
            "operation": operation,
            "resource": resource,
            "outcome": "done",
            "request": by.request,
            "place": f"{epoch:x}-{offset:x}",
        }
    )


def told(command: SecurityCommand) -> tuple[str, str]:
    """The operation of a command, as the API calls it, and the thing that it changed."""
    match command:
        case PutPrincipal(name=name):
            return "putPrincipal", f"principal:{name}"
        case DeletePrincipal(name=name):
            return "deletePrincipal", f"principal:{name}"
        case PutRole(name=name):
            return "putRole", f"role:{name}"
        case DeleteRole(name=name):
            return "deleteRole", f"role:{name}"
        case MakeToken(principal=principal, id=token_id):
            return "makeToken", f"token:{token_id} of principal:{principal}"
        case RevokeToken(id=token_id):
            return "revokeToken", f"token:{token_id}"
        case MakeSessionKey(id=key_id):
            return "makeSessionKey", f"session-key:{key_id}"
        case EndSession(id=session_id, principal=principal):
            return "endSession", f"session:{session_id} of principal:{principal}"


def _time(now_ms: int) -> str:
    return format_time(now_ms * 1_000)


def _json(record: dict[str, object] | dict[str, str]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode()
