"""Agents that ask for tokens: how they begin, who is there, and the verdict when the faults are over.

Law of this file: it puts together operators and holders (security_clients.py) and the invariants, which look
into agents (security_invariants.py). All other clients of the run have a principal of their own.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from client_credentials import CREDENTIALS, ClientCredentials
from log_clients import now_s

from cluster_sim.invariants import InvariantViolation
from cluster_sim.node import Node
from cluster_sim.security_clients import Holder, Operator, Tokens
from cluster_sim.security_invariants import GUARDED, SecurityInvariants
from shoal.agent.durable.ids import GroupId
from shoal.agent.partition.replica import Replica
from shoal.agent.security.audit import AUDIT_TOPIC
from shoal.agent.security.tokens import SECRET_BYTES, TOKEN_ID_BYTES, TOKEN_PATTERN, make_token
from shoal.format.batch import DEFAULT_SCHEMA, LogIndex, to_record_batch

if TYPE_CHECKING:
    from cluster_sim.simulation import ClusterSimulation

CLIENTS, ROOT = "clients", "root"
"""The principal of all other clients, and the first administrator."""
CLIENTS_RULES = ("topic:*=*", "group:*=*", "cluster=describe,operate")
OPERATORS, HOLDERS = 2, 2
LOOK_S = 0.5
LOOKED_AT = 4
"""Tokens, at each look."""
REVOKED_LIMIT_S = 5.0
"""What was revoked holds at every agent by then, waits included."""
TOLD_LIMIT_S = 30.0
READ_BYTES = 1 << 20
SECRET = re.compile(TOKEN_PATTERN)


class Secured:
    """See the head of this file. Nothing happens in a simulation without it."""

    def __init__(self, simulation: ClusterSimulation) -> None:
        self._simulation = simulation
        rng = self.rng = random.Random(simulation.seed * 104_729 + 19)  # no other draw becomes another one
        first = make_token(rng.randbytes(TOKEN_ID_BYTES), rng.randbytes(SECRET_BYTES))
        self._first_hash = first.hash().hex()
        self.invariants = SecurityInvariants(simulation)
        self.tokens = Tokens(first.reveal())
        self._operators = [Operator(self, f"operator.{number}") for number in range(OPERATORS)]
        self._holders = [Holder(self, f"holder.{number}") for number in range(HOLDERS)]

    @property
    def simulation(self) -> ClusterSimulation:
        """Whose agents these are."""
        return self._simulation

    @property
    def is_on(self) -> bool:
        """Principals need a level that an upgrade, or a disaster, holds back."""
        simulation = self._simulation
        return simulation.knobs.secured and not simulation.knobs.upgrades and not simulation.holds_level

    @property
    def config(self) -> dict[str, object]:
        """Of each agent."""
        if not self.is_on:
            return {}
        return {"authentication": "on", "bootstrap_token_hash": self._first_hash}

    def replacements(self) -> list[tuple[Any, str, Any]]:
        """What the simulation patches while it runs."""
        return self.invariants.replacements() if self.is_on else []

    def summary(self) -> str:
        """A part of a line; empty where nobody is asked."""
        if not self.is_on:
            return ""
        outcomes = ", ".join(f"{count} {name}" for name, count in sorted(self.invariants.outcomes.items()))
        held = self.tokens
        return (
            f"changes of security: {outcomes or 'none'}; {len(held.all)} tokens, {held.ended} ended, "
            f"{sum(item.let_in for item in self._holders)} let in, "
            f"{sum(item.refused for item in self._holders)} refused, {self.invariants.restored} restored; "
        )

    async def start(self) -> None:
        """The clients' principal by the first token, then the first administrator."""
        if not self.is_on:
            return
        operator = self._operators[0]
        self._show(self.tokens.first)
        await self._as_client(operator.make(CLIENTS, CLIENTS_RULES))
        self._show(await self._as_client(operator.make_token(CLIENTS)))
        await self._as_client(operator.make(ROOT, ("cluster=admin",)))
        root = await self._as_client(operator.make_token(ROOT))
        for operator in self._operators:
            operator.token = root
        self.tokens.end(self.tokens.first_id)
        body = self._simulation.topic_body(1) | {"partitions": 1}
        await self._as_client(self._simulation.topics.create(GUARDED, body))
        self._look()

    def _show(self, token: str) -> None:
        self._simulation.clients.context.run(CREDENTIALS.set, ClientCredentials(token))

    async def _as_client(self, coroutine: Any) -> Any:
        return await self._simulation._as_client(coroutine)

    def clients(self) -> list[Operator | Holder]:
        """Of this run."""
        return [*self._operators, *self._holders] if self.is_on else []

    def _look(self) -> None:
        known = self.tokens.all
        some = self.rng.sample(known, min(LOOKED_AT, len(known)))
        self.invariants.look([held.text for held in some])
        if not self.invariants.is_over:
            self._simulation.loop.call_later(LOOK_S, self._look)

    def look_at_line(self, line: str) -> None:
        """SecretsStaySecret: nothing that agents log has a token."""
        if self.is_on and (found := SECRET.search(line)) is not None:
            self._simulation.invariants.fail("SecretsStaySecret", f"a token in {line!r}: {found[0][:14]}")

    # ---- the verdict -------------------------------------------------------------------------------

    async def judge(self) -> None:
        """All is well again: each agent says of each token what the newest state says; what is revoked now
        is refused everywhere in time; and each change has its record. Raises InvariantViolation."""
        if not self.is_on:
            return
        holder = self._holders[0]
        await self._as_client(holder.ask_everywhere())
        await self._as_client(self._revoke_in_time())
        await self._audit_has_changes()

    async def _revoke_in_time(self) -> None:
        """RevokedInTime: at every agent, and a wait ends that began before."""
        holder, operator = self._holders[0], self._operators[0]
        token = await operator.make_and_give(GUARDED)
        if token is None:
            return  # no administrator's token is known any more: each was ended, or never told
        waits = [
            asyncio.ensure_future(holder.wait_at(node, token))
            for node in self._simulation.nodes
            if node.is_running
        ]
        await asyncio.sleep(1.0)
        await holder.let_in_everywhere(token)
        if not await operator.revoke(token):
            return
        revoked_s = now_s()
        answers = await asyncio.gather(*waits)
        if now_s() - revoked_s > REVOKED_LIMIT_S + holder.LATE_S:
            late = f"waits go on {now_s() - revoked_s:.1f} s after their token was revoked: {answers}"
            raise InvariantViolation("RevokedInTime", late)
        await asyncio.sleep(max(0.0, revoked_s + REVOKED_LIMIT_S - now_s()))
        await holder.refused_everywhere(token)

    async def _audit_has_changes(self) -> None:
        """ChangesAreTold: each change that a process which still lives was told of has its record in the
        topic, and none has two. Where few producers have room, records may wait for good."""
        simulation = self._simulation
        told = self.invariants.told
        wanted = {
            place
            for node in simulation.nodes
            if node.is_running and node.life is not None
            for place in told.get(node.life, ())
        }
        end_s = simulation.loop.time() + TOLD_LIMIT_S
        while True:
            found = await self._audit()
            places = Counter(record["place"] for record in found or () if record.get("place"))
            missing = [place for place in sorted(wanted) if "{:x}-{:x}".format(*place) not in places]
            if not missing:
                break
            if simulation.loop.time() > end_s:
                if simulation.knobs.few_producers:
                    break
                raise InvariantViolation("ChangesAreTold", f"the audit has not the changes of {missing}")
            await asyncio.sleep(LOOK_S)
        twice = [place for place, count in places.items() if count > 1]
        if twice:
            raise InvariantViolation("ChangesAreTold", f"the audit has changes twice: {twice}")
        for record in found or ():
            self.look_at_line(json.dumps(record))

    async def _audit(self) -> list[dict[str, Any]] | None:
        """As its leader has it. None while nobody leads it."""
        for node in self._simulation.nodes:
            replica = self._led_audit(node)
            if replica is not None:
                return await _records(replica)
        return None

    @staticmethod
    def _led_audit(node: Node) -> Replica | None:
        host, broker = node.host, getattr(node.agent, "broker", None)
        entry = None if host is None or broker is None else broker._catalog.topics.get(AUDIT_TOPIC)
        group = None if entry is None else GroupId(entry.topic_id, 0)
        if host is None or group is None or not host.has(group) or not host.replica(group).serves:
            return None
        return host.replica(group)


async def _records(replica: Replica) -> list[dict[str, Any]]:
    """All that is committed."""
    found: list[dict[str, Any]] = []
    index, last = replica.log.first_index, replica.core.commit_index
    while index <= last:
        frames = await replica.log.read(index, last, READ_BYTES)
        for frame in frames:
            values = to_record_batch(frame.data, DEFAULT_SCHEMA).column("value").to_pylist()
            found += (json.loads(value) for value in values)
        index = LogIndex(frames[-1].stamp.index + 1)
    return found
