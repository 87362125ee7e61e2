"""Operators who make and end principals, roles and tokens, and holders who try each token at each agent.

Law of this file: over HTTP, as operators and clients do. An answer is held against the state that the asked
agent had applied when the request left: the product's own judge says what follows from it. What nobody knows
may be either way.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from client_credentials import AUTHORIZATION
from log_clients import Answer, Connections, NoAnswer, now_s

from cluster_sim.invariants import InvariantViolation
from cluster_sim.loop import Life
from cluster_sim.node import Node
from cluster_sim.security_invariants import GUARDED, verdict
from shoal.agent.security.judge import Judge
from shoal.agent.security.needs import Action, Need, ResourceKind
from shoal.agent.security.principals import Place, Security
from shoal.agent.security.tokens import parse_token
from shoal.agent.topics.catalog_service import CUT_OFF_S

if TYPE_CHECKING:
    from cluster_sim.secured import Secured

OPERATOR_PAUSE_S, HOLDER_PAUSE_S = 0.3, 0.12
YOUNG_S, YOUNG_PAUSE_S = 1.0, 0.03
"""So long after its start an agent is asked most."""
BEGIN_ATTEMPTS_MAX, RETRY_S = 80, 0.25
NAMES = tuple(f"p{number}" for number in range(6))
"""Of principals: with two more than the bound of the simulation."""
ROLES = tuple(f"r{number}" for number in range(4))
RULES = (
    f"topic:{GUARDED}=write,describe,read",
    "topic:guard*=describe",
    "topic:*=*",
    "group:*=consume",
    "cluster=describe",
    "cluster=admin",
)
BUILT_IN = ("viewer", f"producer:{GUARDED}", f"consumer:{GUARDED}", "admin")
UNAUTHENTICATED, FORBIDDEN, TOO_MANY = 401, 403, 429
"""The last one where an address has failed too often: also a refusal."""
WAIT_S = 20.0
"""Longer than a revocation takes to end it."""
KEPT = 24
"""Tokens that holders choose among."""


@dataclass
class Held:
    """A token that was told. Times are the loop's: `made_s` when it was, `ended_s` when its end was answered;
    infinite while it was not."""

    text: str = field(repr=False)
    principal: str
    made_s: float
    is_lasting: bool = True
    ended_s: float = float("inf")

    @property
    def id(self) -> str:
        return parse_token(self.text).id


class Tokens:
    """All that operators were told. `first`: of the configuration."""

    def __init__(self, first: str) -> None:
        self.first = first
        held = Held(first, "bootstrap", 0.0)
        self.first_id = held.id
        self._by_id = {held.id: held}

    @property
    def all(self) -> list[Held]:
        return list(self._by_id.values())

    @property
    def ended(self) -> int:
        """How many are, as far as operators know."""
        return sum(held.ended_s < float("inf") for held in self._by_id.values())

    def add(self, held: Held) -> None:
        """It was told now."""
        self._by_id[held.id] = held

    def end(self, token_id: str) -> None:
        """Its end was answered."""
        held = self._by_id.get(token_id)
        if held is not None:
            held.ended_s = min(held.ended_s, now_s())

    def end_of(self, principal: str, before_s: float) -> None:
        """Those that it had by then."""
        for held in self._by_id.values():
            if held.principal == principal and held.made_s < before_s:
                self.end(held.id)


class _Client:
    """With connections and chance of its own."""

    def __init__(self, secured: Secured, name: str) -> None:
        self._secured = secured
        self._name = name
        self._rng = secured.rng
        self._connections = Connections()

    @property
    def _is_over(self) -> bool:
        return self._secured.simulation.work.stopping

    def _some_node(self) -> Node:
        return self._rng.choice(self._secured.simulation.nodes)

    async def _send(self, node: Node, token: str, method: str, path: str, body: Any = None) -> Answer | None:
        """None: nobody knows."""
        try:
            return await self._connections.request(
                node.http, method, path, body, {AUTHORIZATION: f"Bearer {token}"}
            )
        except NoAnswer as error:
            return None if error.sent else Answer(0, {"definite": True})


class Operator(_Client):
    """`token`: by which it administers; another one when that is refused."""

    def __init__(self, secured: Secured, name: str) -> None:
        super().__init__(secured, name)
        self.token = secured.tokens.first

    async def run(self) -> None:
        """Until the work stops."""
        deeds = [self._put_principal, self._make, self._revoke] * 2
        deeds += [self._make, self._put_role, self._delete_principal, self._delete_role, self._dethrone]
        while not self._is_over:
            await asyncio.sleep(self._rng.uniform(0, 2 * OPERATOR_PAUSE_S))
            await self._rng.choice(deeds)()
        self._connections.close()

    async def _ask(self, method: str, path: str, body: Any = None) -> Answer | None:
        """At some agent. None where nobody knows, or nothing was done."""
        limited = path if method == "GET" else f"{path}?timeout=3s"
        answer = await self._send(self._some_node(), self.token, method, limited, body)
        if answer is not None and answer.status in (UNAUTHENTICATED, FORBIDDEN):
            self.token = self._rng.choice(self._secured.tokens.all).text
        return answer

    async def _put_principal(self) -> None:
        roles = self._rng.sample((*ROLES, *BUILT_IN), self._rng.randrange(3))
        rules = self._rng.sample(RULES, self._rng.randrange(3))
        await self._ask("PUT", f"/v1/principals/{self._rng.choice(NAMES)}", {"roles": roles, "rules": rules})

    async def _put_role(self) -> None:
        rules = self._rng.sample(RULES, self._rng.randrange(1, 3))
        await self._ask("PUT", f"/v1/roles/{self._rng.choice(ROLES)}", {"rules": rules})

    async def _delete_role(self) -> None:
        await self._ask("DELETE", f"/v1/roles/{self._rng.choice(ROLES)}")

    async def _delete_principal(self) -> None:
        name, begun_s = self._rng.choice(NAMES), now_s()
        answer = await self._ask("DELETE", f"/v1/principals/{name}")
        if answer is not None and answer.status == 204:
            self._secured.tokens.end_of(name, begun_s)

    async def _make(self) -> None:
        name = self._rng.choice(NAMES)
        is_lasting = self._rng.random() < 0.8
        body = {"expires_in": "never" if is_lasting else "3s"}
        answer = await self._ask("POST", f"/v1/principals/{name}/tokens", body)
        if answer is not None and answer.status == 201:
            self._secured.tokens.add(Held(answer.body["token"], name, now_s(), is_lasting))

    async def _revoke(self) -> None:
        """Of a principal as some agent knows it: a token whose making was never answered, too."""
        answer = await self._ask("GET", f"/v1/principals/{self._rng.choice(NAMES)}")
        tokens = answer.body["tokens"] if answer is not None and answer.status == 200 else []
        if tokens:
            await self._end(self._rng.choice(tokens)["id"])

    async def revoke(self, token: str) -> bool:
        """Whether it was answered."""
        for _ in range(BEGIN_ATTEMPTS_MAX):
            if await self._end(parse_token(token).id):
                return True
            await asyncio.sleep(RETRY_S)
        return False

    async def _end(self, token_id: str) -> bool:
        answer = await self._ask("DELETE", f"/v1/tokens/{token_id}")
        if answer is None or answer.status != 204:
            return False
        self._secured.tokens.end(token_id)
        return True

    async def _dethrone(self) -> None:
        """Where one administrator is left, each way to take it away is tried."""
        answer = await self._ask("GET", "/v1/principals")
        if answer is None or answer.status != 200:
            return
        found = [entry for entry in answer.body["principals"] if _administers(entry)]
        if len(found) != 1:
            return
        (last,) = found
        way = self._rng.randrange(3)
        if way == 0:
            begun_s = now_s()
            answer = await self._ask("DELETE", f"/v1/principals/{last['name']}")
            if answer is not None and answer.status == 204:  # there was another one, of whom it had not heard
                self._secured.tokens.end_of(last["name"], begun_s)
        elif way == 1:
            await self._ask("PUT", f"/v1/principals/{last['name']}", {"roles": ["viewer"]})
        else:
            for token in last["tokens"]:
                await self._end(token["id"])

    # ---- in peace ----------------------------------------------------------------------------------

    async def make(self, name: str, rules: tuple[str, ...]) -> None:
        """A principal, until it is there. Raises AssertionError."""
        await self._until_done("PUT", f"/v1/principals/{name}", {"rules": list(rules)})

    async def make_token(self, principal: str) -> str:
        """Until it is told. Raises AssertionError."""
        body = {"expires_in": "never"}
        made = await self._until_done("POST", f"/v1/principals/{principal}/tokens", body)
        self._secured.tokens.add(Held(made["token"], principal, now_s()))
        return str(made["token"])

    async def _until_done(self, method: str, path: str, body: Any) -> Any:
        said: object = None
        for _ in range(BEGIN_ATTEMPTS_MAX):
            answer = await self._send(self._some_node(), self.token, method, path, body)
            if answer is not None and answer.status in (200, 201):
                return answer.body
            said = answer
            await asyncio.sleep(RETRY_S)
        raise AssertionError(f"{method} {path} is not done: {said}")

    async def make_and_give(self, topic: str) -> str | None:
        """A token that may read a topic, by any administrator whose token is known. None: there is none."""
        name = NAMES[0]
        for _ in range(BEGIN_ATTEMPTS_MAX):
            begun_s = now_s()
            body = {"rules": [f"topic:{topic}=read,describe,write"]}
            gone = await self._ask("DELETE", f"/v1/principals/{name}")
            if gone is not None and gone.status == 204:
                self._secured.tokens.end_of(name, begun_s)
            put = await self._ask("PUT", f"/v1/principals/{name}", body)
            if put is not None and put.status in (200, 201):
                made = await self._ask("POST", f"/v1/principals/{name}/tokens", {"expires_in": "never"})
                if made is not None and made.status == 201:
                    self._secured.tokens.add(Held(made.body["token"], name, now_s()))
                    return str(made.body["token"])
            await asyncio.sleep(RETRY_S)
        return None


class Seen(NamedTuple):
    """The state of an agent when a request left, or came back. It is one object that changes."""

    life: Life | None
    state: Security | None
    changed: Place
    applied: Place
    """All commands before it."""


class Act(NamedTuple):
    """A request of a holder. `is_local`: the asked agent alone answers."""

    method: str
    path: str
    body: Any
    need: Need
    resource: str
    is_local: bool


RECORDS = f"/v1/topics/{GUARDED}/records?timeout=2s"
APPEND = Act(
    "POST", RECORDS, {"records": [{"value": "v"}]}, Need(Action.WRITE, ResourceKind.TOPIC), GUARDED, False
)
LOOK_UP = Act("GET", f"/v1/topics/{GUARDED}", None, Need(Action.DESCRIBE, ResourceKind.TOPIC), GUARDED, True)
LIST = Act("GET", "/v1/principals", None, Need(Action.ADMIN, ResourceKind.CLUSTER), "", True)
ACTS = (APPEND, APPEND, LOOK_UP, LIST)


class Holder(_Client):
    """Tries tokens, most of all those that were ended."""

    LATE_S: ClassVar = 1.5
    """Beyond the time of a revocation: a look at those who wait, and the way of the answer."""

    def __init__(self, secured: Secured, name: str) -> None:
        super().__init__(secured, name)
        self.let_in = 0
        self.refused = 0

    async def run(self) -> None:
        """Until the work stops."""
        while not self._is_over:
            young = self._young()
            pause_s = YOUNG_PAUSE_S if young else HOLDER_PAUSE_S
            await asyncio.sleep(self._secured.simulation.work.pause_s(pause_s, 1.0 if young else 4.0))
            tokens = self._secured.tokens.all[-KEPT:]
            ended = [held for held in tokens if held.ended_s < now_s()]
            held = self._rng.choice(ended if ended and self._rng.random() < 0.5 else tokens)
            node = self._rng.choice(young or self._secured.simulation.nodes)
            await self._try(node, held, self._rng.choice(ACTS))
        self._connections.close()

    def _young(self) -> list[Node]:
        """Those that have just started, which may have missed something."""
        started_s = self._secured.invariants.started_s
        return [
            node
            for node in self._secured.simulation.nodes
            if node.is_running and node.life is not None
            if now_s() - started_s.get(node.life, 0.0) < YOUNG_S
        ]

    async def _try(self, node: Node, held: Held, act: Act) -> int:
        """The status of the answer; 0 for none."""
        before, begun_s = _seen(node), now_s()
        answer = await self._send(node, held.text, act.method, act.path, act.body)
        if answer is None or not answer.status:
            return 0
        is_in = answer.status < 300
        self.let_in += is_in
        self.refused += answer.status in (UNAUTHENTICATED, FORBIDDEN, TOO_MANY)
        said = f"{self._name} asked {node.name} {act.method} {act.path} by {held}: {answer.status}"
        if is_in:
            self._was_not_ended(held, before, begun_s, said)
        after = _seen(node)
        if before[:3] == after[:3]:
            self._follows(after, held, act, answer.status, said)
        return answer.status

    def _was_not_ended(self, held: Held, before: Seen, begun_s: float, said: str) -> None:
        """EndedIsRefused: by each agent that has applied the end of the token; and by each that has started
        since the end was answered, unless it hears nobody."""
        security = self._secured.invariants
        place = security.settled if held.id == self._secured.tokens.first_id else security.gone.get(held.id)
        started_s = security.started_s.get(before.life, 0.0) if before.life is not None else 0.0
        is_new = held.ended_s < started_s and begun_s - started_s < CUT_OFF_S
        if (place is not None and place < before.applied) or is_new:
            text = f"{said}; it was ended at {place}, and the agent was at {before.applied}, new: {is_new}"
            raise InvariantViolation("EndedIsRefused", text)

    def _follows(self, seen: Seen, held: Held, act: Act, status: int, said: str) -> None:
        """AnswersFollow: whom the state of the asked agent does not let in gets nothing, and at that agent
        who is let in is not refused."""
        if seen.state is None or held.id == self._secured.tokens.first_id:
            return
        found = verdict(Judge(lambda: seen.state), held.text, act.need, act.resource)
        if not found.is_allowed and status < 300:
            raise InvariantViolation("AnswersFollow", f"{said}, of {seen.state} it is {found}")
        if act.is_local and held.is_lasting:
            wrong = status == (FORBIDDEN if found.identity is None else UNAUTHENTICATED)
            if wrong or (found.is_allowed and status == FORBIDDEN):
                raise InvariantViolation("AnswersFollow", f"{said}, of {seen.state} it is {found}")

    # ---- when the faults are over ------------------------------------------------------------------

    async def ask_everywhere(self) -> None:
        """Each token at each agent."""
        for node in self._secured.simulation.nodes:
            for held in self._secured.tokens.all[-KEPT:]:
                await self._try(node, held, LOOK_UP)
                if held.ended_s < float("inf"):
                    await self._refuses(node, held)

    async def let_in_everywhere(self, token: str) -> None:
        """A token that was told a second ago, so that each agent remembers it."""
        held = next(one for one in self._secured.tokens.all if one.text == token)
        for node in self._secured.simulation.nodes:
            for _ in range(2):
                await self._try(node, held, APPEND)

    async def refused_everywhere(self, token: str) -> None:
        """RevokedInTime."""
        held = next(one for one in self._secured.tokens.all if one.text == token)
        for node in self._secured.simulation.nodes:
            await self._refuses(node, held)

    async def _refuses(self, node: Node, held: Held) -> None:
        for act in (LOOK_UP, APPEND):
            status = await self._try(node, held, act)
            if status not in (0, UNAUTHENTICATED, TOO_MANY):
                said = f"{node.name} answers {status} to {act.method} {act.path} by {held}"
                raise InvariantViolation("RevokedInTime", said)

    async def wait_at(self, node: Node, token: str) -> int:
        """A read that waits for the next record; its status."""
        path = f"/v1/topics/{GUARDED}/partitions/0/records?offset=latest&wait={WAIT_S:g}s"
        connections = Connections()
        try:
            answer = await connections.request(
                node.http, "GET", path, None, {AUTHORIZATION: f"Bearer {token}"}
            )
        except NoAnswer:
            return 0
        finally:
            connections.close()
        return answer.status


def _administers(principal: dict[str, Any]) -> bool:
    return "admin" in principal["roles"] or any(
        rule.startswith("cluster=") and "admin" in rule for rule in principal["rules"]
    )


def _seen(node: Node) -> Seen:
    broker = getattr(node.agent, "broker", None) if node.is_running else None
    state = None if broker is None else broker.security
    if broker is None or state is None:
        return Seen(node.life, None, (0, 0), (0, 0))
    return Seen(node.life, state, state.changed, tuple(broker._catalog.version))
