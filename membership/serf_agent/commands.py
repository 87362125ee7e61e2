"""Every command of the Serf agent's RPC, by name, with its request and its reply.

Law of this file: what each command sends and expects. The classes that provide `call` say how it travels:
rpc.py has one connection and one client that keeps connected.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from shoal.membership.interface import KeyChange, Member
from shoal.membership.serf.own_queries import QueryRequest
from shoal.membership.serf_agent.rpc_wire import (
    KeyReply,
    decode_joined,
    decode_keys,
    decode_members,
    decode_stats,
)
from shoal.membership.wire.messages import host_and_port

T = TypeVar("T")

CALL_TIMEOUT_S = 10.0
"""Most commands are a look into memory."""

JOIN_TIMEOUT_S = 60.0
"""The agent dials one address after the other, 10 s each when nobody answers there (LAN profile)."""

LEAVE_TIMEOUT_S = 30.0
"""Two broadcasts of at most 5 s each and a second of listening; force-leave waits too."""

KEYS_TIMEOUT_S = 30.0
"""A query that ends when all have answered or its time is up: 3.2 s, more in large pools."""


class Command(NamedTuple):
    """One request: `decode` takes the body (None where there is none) and the error. Some commands answer
    with a body although they failed: `body_on_error`."""

    name: str
    body: Mapping[str, object] | None
    has_body: bool
    body_on_error: bool
    timeout_s: float


class RpcError(OSError):
    """A command that did not succeed.

    reason: refused (the agent says why), timeout, closed (the connection was lost or is not there), limit
    (too many calls), format (the agent's bytes are not its protocol).
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


class Commands(ABC):
    """All commands but the streams. Each raises RpcError: refused by the agent at `peer` (with its words),
    timed out, or the connection was lost."""

    peer: str

    @abstractmethod
    async def call(self, command: Command, decode: Callable[[Any, str], T]) -> T:
        """Send, await the reply, decode its body."""

    def refused(self, command: str, error: str) -> RpcError:
        """The error of a command that the agent did not do."""
        return RpcError("refused", f"{self.peer} refuses {command}: {error}")

    async def _plain(
        self, name: str, body: Mapping[str, object] | None = None, timeout_s: float = CALL_TIMEOUT_S
    ) -> None:
        await self.call(Command(name, body, False, False, timeout_s), lambda _value, _error: None)

    async def _ask(self, name: str, body: Mapping[str, object] | None, decode: Callable[[Any], T]) -> T:
        command = Command(name, body, True, False, CALL_TIMEOUT_S)
        return await self.call(command, lambda value, _error: decode(value))

    async def handshake(self) -> None:
        """Must be the first; a connection does it by itself."""
        await self._plain("handshake", {"Version": 1})

    async def auth(self, key: str) -> None:
        """Must be the second; a connection does it by itself. An agent without a key takes the empty one."""
        await self._plain("auth", {"AuthKey": key})

    async def members(self) -> tuple[Member, ...]:
        return await self._ask("members", None, decode_members)

    async def join(self, addresses: Sequence[tuple[str, int]]) -> int:
        """How many nodes were reached; RpcError only when none was."""

        def joined(value: Any, error: str) -> int:
            reached = decode_joined(value)
            if error and not reached:
                raise self.refused("join", error)
            return reached

        body = {"Existing": [host_and_port(*address) for address in addresses], "Replay": False}
        return await self.call(Command("join", body, True, True, JOIN_TIMEOUT_S), joined)

    async def leave(self) -> None:
        """Leave the pool; the agent then ends."""
        await self._plain("leave", None, LEAVE_TIMEOUT_S)

    async def force_leave(self, node: str) -> None:
        """Take a failed node for one that left. An unknown one is no error."""
        await self._plain("force-leave", {"Node": node, "Prune": False}, LEAVE_TIMEOUT_S)

    async def event(self, name: str, payload: bytes = b"") -> None:
        await self._plain("event", {"Name": name, "Payload": payload, "Coalesce": False})

    async def respond(self, query_id: int, payload: bytes) -> None:
        """Answer a query that came over a stream of this very connection."""
        await self._plain("respond", {"ID": query_id, "Payload": payload})

    async def tags(self, tags: Mapping[str, str], delete: Sequence[str] = ()) -> None:
        """Deletes first, then sets; other tags stay."""
        await self._plain("tags", {"Tags": dict(tags), "DeleteTags": list(delete)})

    async def stats(self) -> dict[str, dict[str, str]]:
        return await self._ask("stats", None, decode_stats)

    async def change_keys(self, change: KeyChange, key: str) -> KeyReply:
        """`key` is base64."""
        return await self._keys(f"{change.value}-key", {"Key": key})

    async def list_keys(self) -> KeyReply:
        return await self._keys("list-keys", None)

    async def _keys(self, name: str, body: Mapping[str, object] | None) -> KeyReply:
        return await self.call(Command(name, body, True, True, KEYS_TIMEOUT_S), decode_keys)


def query_body(request: QueryRequest) -> dict[str, object]:
    """The request of the query command; a timeout of 0 is Serf's default."""
    return {
        "FilterNodes": list(request.nodes) or None,
        "FilterTags": dict(request.tags) or None,
        "RequestAck": request.want_acks,
        "RelayFactor": request.relay_factor,
        "Timeout": (request.timeout_ms or 0) * 1_000_000,
        "Name": request.name,
        "Payload": request.payload,
    }
