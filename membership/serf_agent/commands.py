"""Every command of the Serf agent's RPC, by name, with its request and its reply.

Law of this file: what each command sends and expects. How it travels is up to whoever provides `call`:
rpc.py has one connection and one client that keeps connected.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from shoal.membership.serf.own_queries import QueryRequest
from shoal.membership.serf_agent.rpc_wire import (
    Coordinate,
    KeyReply,
    RpcMember,
    addresses_text,
    decode_coordinate,
    decode_joined,
    decode_keys,
    decode_members,
    decode_stats,
)

T = TypeVar("T")

CALL_TIMEOUT_S = 10.0
"""Most commands are a look into memory."""

JOIN_TIMEOUT_S = 60.0
"""The agent dials one address after the other, 10 s each when nobody answers there (LAN profile)."""

LEAVE_TIMEOUT_S = 30.0
"""Two broadcasts of at most 5 s each and a second of listening; force-leave -prune waits too."""

KEYS_TIMEOUT_S = 30.0
"""A query that ends when all have answered or its time is up: 3.2 s, more in large pools."""


@dataclass(frozen=True, slots=True)
class Command:
    """One request: `decode` takes the body (None where there is none) and the error. Some commands answer
    with a body although they failed: `body_on_error`."""

    name: str
    body: Mapping[str, object] | None
    has_body: bool
    body_on_error: bool
    timeout_s: float


class Commands(ABC):
    """All commands but the streams. Each raises RpcError: refused by the agent (with its words), timed out,
    or the connection was lost."""

    @abstractmethod
    async def call(self, command: Command, decode: Callable[[Any, str], T]) -> T:
        """Send, await the reply, decode its body."""

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

    async def members(self) -> tuple[RpcMember, ...]:
        return await self._ask("members", None, decode_members)

    async def members_filtered(
        self, *, tags: Mapping[str, str] | None = None, status: str = "", name: str = ""
    ) -> tuple[RpcMember, ...]:
        """Regular expressions that must match as a whole; empty means any. An invalid one costs the
        connection: the agent closes it without a word."""
        body = {"Tags": dict(tags or {}), "Status": status, "Name": name}
        return await self._ask("members-filtered", body, decode_members)

    async def join(self, addresses: Sequence[tuple[str, int]], *, replay: bool = False) -> int:
        """How many nodes were reached; RpcError only when none was. `replay`: hear old user events too."""
        body = {"Existing": addresses_text(addresses), "Replay": replay}
        return await self.call(Command("join", body, True, True, JOIN_TIMEOUT_S), self._joined)

    def _joined(self, value: Any, error: str) -> int:
        reached = decode_joined(value)
        if error and not reached:
            raise self.refused("join", error)
        return reached

    @abstractmethod
    def refused(self, command: str, error: str) -> Exception:
        """The error of a command that the agent did not do."""

    async def leave(self) -> None:
        """Leave the pool; the agent then ends."""
        await self._plain("leave", None, LEAVE_TIMEOUT_S)

    async def force_leave(self, node: str, *, prune: bool = False) -> None:
        """Take a failed node for one that left; `prune` removes it from the list. An unknown one is no
        error."""
        await self._plain("force-leave", {"Node": node, "Prune": prune}, LEAVE_TIMEOUT_S)

    async def event(self, name: str, payload: bytes = b"", *, coalesce: bool = False) -> None:
        await self._plain("event", {"Name": name, "Payload": payload, "Coalesce": coalesce})

    async def respond(self, query_id: int, payload: bytes) -> None:
        """Answer a query that came over a stream of this very connection."""
        await self._plain("respond", {"ID": query_id, "Payload": payload})

    async def tags(self, tags: Mapping[str, str], delete: Sequence[str] = ()) -> None:
        """Deletes first, then sets; other tags stay."""
        await self._plain("tags", {"Tags": dict(tags), "DeleteTags": list(delete)})

    async def stats(self) -> dict[str, dict[str, str]]:
        return await self._ask("stats", None, decode_stats)

    async def get_coordinate(self, node: str) -> Coordinate | None:
        return await self._ask("get-coordinate", {"Node": node}, decode_coordinate)

    async def install_key(self, key: str) -> KeyReply:
        """`key` is base64, as in all key commands."""
        return await self._keys("install-key", {"Key": key})

    async def use_key(self, key: str) -> KeyReply:
        return await self._keys("use-key", {"Key": key})

    async def remove_key(self, key: str) -> KeyReply:
        return await self._keys("remove-key", {"Key": key})

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
