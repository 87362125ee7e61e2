"""What must hold of principals, roles and tokens in every agent, by the place of the catalog's log that it
has applied.

Law of this file: it reads, it never changes. Verdicts are those of the product's own judge, asked afresh of a
state: nothing is modelled twice. A state that comes from a file or from a peer is held against the one that
the log made at the same place.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from cluster_sim.loop import LIFE, Life
from shoal.agent import node as node_module
from shoal.agent.security import principals as principals_module
from shoal.agent.security.access import Access, Identity, Proof
from shoal.agent.security.audit import AuditTrail
from shoal.agent.security.documents import state_document
from shoal.agent.security.judge import Judge
from shoal.agent.security.needs import Action, Need, ResourceKind
from shoal.agent.security.principals import (
    BOOTSTRAP,
    PRINCIPALS_MAX,
    ROLES_MAX,
    TOKENS_MAX,
    Place,
    Security,
    SecurityCommand,
    SecurityOutcome,
)
from shoal.errors import ShoalError

if TYPE_CHECKING:
    from cluster_sim.simulation import ClusterSimulation

GUARDED = "guarded"
"""The topic that principals of the simulation may be let into."""
FEW_PRINCIPALS, FEW_ROLES = 7, 3
"""Instead of thousands, so that operators meet the bounds."""
EVER_MS = 0
"""A time at which no token has expired yet."""
assert FEW_PRINCIPALS < PRINCIPALS_MAX
assert FEW_ROLES < ROLES_MAX

NEEDS = (
    (Need(Action.WRITE, ResourceKind.TOPIC), GUARDED),
    (Need(Action.DESCRIBE, ResourceKind.TOPIC), GUARDED),
    (Need(Action.READ, ResourceKind.TOPIC), "events"),
    (Need(Action.CONSUME, ResourceKind.GROUP), f"{GUARDED}/g"),
    (Need(Action.DESCRIBE, ResourceKind.CLUSTER), ""),
    (Need(Action.ADMIN, ResourceKind.CLUSTER), ""),
)
"""On which verdicts are compared."""


class Verdict(NamedTuple):
    """Of one token on one thing. `identity`: None where it is no credential."""

    identity: Identity | None
    is_allowed: bool


def verdict(judge: Judge, token: str, wanted: Need, resource: str, now_ms: int = EVER_MS) -> Verdict:
    """By a judge that remembers nothing yet. ShoalError not-ready where no state is known."""
    try:
        identity = judge.identify(f"Bearer {token}", None, now_ms)
    except ShoalError as error:
        if error.code != "unauthenticated":
            raise
        return Verdict(None, is_allowed=False)
    return Verdict(identity, judge.may(identity, wanted, resource))


class Before:
    """A state before a command, as far as what may not be lost with it."""

    def __init__(self, state: Security, at_ms: int) -> None:
        self.tokens = set(state._by_id)
        self.versions = versions_of(state)
        administrators = state.administrators()
        self.has_administrator = bool(administrators)
        self.has_token = any(entry.has_live_token(at_ms) for entry in administrators)
        self.is_settled = state.is_settled


def versions_of(state: Security) -> set[tuple[str, Place]]:
    """Of principals and roles: each change gives another one, so that none ever returns."""
    principals = {(f"principal:{entry.name}", entry.version) for entry in state.principals.values()}
    return principals | {(f"role:{entry.name}", entry.version) for entry in state.roles.values()}


class SecurityInvariants:
    """`judges`: of the processes that ask for credentials."""

    def __init__(self, simulation: ClusterSimulation) -> None:
        self._simulation = simulation
        self.judges: dict[Life, Access] = {}
        self.started_s: dict[Life, float] = {}
        self.told: dict[Life, set[Place]] = {}
        """Places of the changes that the audit of a process was told of."""
        self.outcomes: Counter[SecurityOutcome] = Counter()
        """Of commands, each once."""
        self.restored = 0
        """States that came from a file or a peer."""
        self.settled: Place | None = None
        """From there on the first token counts no more."""
        self.gone: dict[str, Place] = {}
        """Ids of tokens that a command has ended, with its place."""
        self._versions_gone: dict[tuple[str, Place], Place] = {}
        self._truth: dict[Place, tuple[SecurityOutcome, str]] = {}
        """By the place of a command: its outcome, and the state behind it with its verdicts."""
        self._by_state: dict[Place, str] = {}
        """The latter by the place of the last change."""
        self.is_over = False

    def recovered_by_force(self) -> None:
        """Nothing is looked at from here on: places of the lost log count again, for other commands."""
        self.is_over = True

    def _fail(self, name: str, detail: str) -> None:
        life = LIFE.get()
        self._simulation.invariants.fail(name, f"{life.name if life else 'nobody'}: {detail}")

    def replacements(self) -> list[tuple[Any, str, Any]]:
        """What the simulation patches while it runs."""
        apply, of, access = Security.apply, Security.of, node_module._access
        committed = AuditTrail.committed

        def applied(state: Security, command: SecurityCommand, place: Place) -> SecurityOutcome:
            before = Before(state, command.by.at_ms)
            outcome = apply(state, command, place)
            if not self.is_over:
                self._applied(state, command, place, outcome, before)
            return outcome

        def stored(*arguments: Any, **named: Any) -> Security:
            state = of(*arguments, **named)
            if not self.is_over:
                self._stored(state)
            return state

        def entered(node: Any) -> Access:
            judge, life = access(node), LIFE.get()
            assert life is not None
            self.judges[life] = judge
            self.started_s[life] = self._simulation.loop.time()
            return judge

        def told(trail: AuditTrail, place: Place, command: SecurityCommand, told_ms: int) -> None:
            life = LIFE.get()
            assert life is not None
            self.told.setdefault(life, set()).add(place)
            committed(trail, place, command, told_ms)

        return [
            (Security, "apply", applied),
            (Security, "of", stored),
            (AuditTrail, "committed", told),
            (node_module, "_access", entered),
            (principals_module, "PRINCIPALS_MAX", FEW_PRINCIPALS),
            (principals_module, "ROLES_MAX", FEW_ROLES),
        ]

    # ---- at each place of the log ------------------------------------------------------------------

    def _applied(
        self,
        state: Security,
        command: SecurityCommand,
        place: Place,
        outcome: SecurityOutcome,
        before: Before,
    ) -> None:
        """SameVerdict: the same command has the same outcome everywhere, and leaves the same state, which
        lets the same principals in."""
        self._is_sound(state, command, before)
        digest = self._digest(state)
        known = self._truth.get(place)
        if known is None:
            self._truth[place] = (outcome, digest)
            self._by_state[state.changed] = digest
            self.outcomes[outcome] += 1
            self._note_ends(state, place, before)
        elif known != (outcome, digest):
            self._fail(
                "SameVerdict", f"{command} at {place} is {outcome} here and {known[0]} elsewhere: {state}"
            )
        self._nothing_is_back(state)

    def _stored(self, state: Security) -> None:
        """SameVerdict: what a file or a peer gives is what the log has made."""
        self.restored += 1
        known = self._by_state.get(state.changed)
        if known is not None and known != self._digest(state):
            self._fail("SameVerdict", f"{state} is restored with another content than it had")
        self._nothing_is_back(state)
        state.check_invariants()

    def _note_ends(self, state: Security, place: Place, before: Before) -> None:
        self.gone |= dict.fromkeys(before.tokens - set(state._by_id), place)
        self._versions_gone |= dict.fromkeys(before.versions - versions_of(state), place)
        if state.is_settled and not before.is_settled:
            self.settled = place

    def _nothing_is_back(self, state: Security) -> None:
        """EndedStaysEnded: no token is there behind the place of the command that ended it, and no principal
        or role as it was before a change."""
        back = [token for token in state._by_id if self.gone.get(token, state.changed) < state.changed]
        back += [
            name
            for name, version in versions_of(state)
            if self._versions_gone.get((name, version), state.changed) < state.changed
        ]
        if back:
            self._fail("EndedStaysEnded", f"{state} has {sorted(back)} again")

    def _is_sound(self, state: Security, command: SecurityCommand, before: Before) -> None:
        """AdministratorStays: no command takes the last administrator away, nor the last one with a token.
        SecurityIsSound: bounds, and what the state says of itself."""
        administrators = state.administrators()
        has_token = any(entry.has_live_token(command.by.at_ms) for entry in administrators)
        if before.has_administrator > bool(administrators) or before.has_token > has_token:
            self._fail("AdministratorStays", f"{command} leaves no administrator, or none with a token")
        if before.is_settled and not state.is_settled:
            self._fail("EndedStaysEnded", f"the first token counts again after {command}")
        many = [entry.name for entry in state.principals.values() if len(entry.tokens) > TOKENS_MAX]
        if many or len(state.principals) > FEW_PRINCIPALS or len(state.roles) > FEW_ROLES:
            self._fail("SecurityIsSound", f"{state}, and too many tokens of {many}")
        state.check_invariants()

    @staticmethod
    def _digest(state: Security) -> str:
        """Of the state as it is stored, and of what its principals may do."""
        judge = Judge(lambda: state)
        verdicts = [
            [judge.may(Identity(name, Proof.TOKEN), wanted, thing) for wanted, thing in NEEDS]
            for name in sorted(state.principals)
        ]
        text = json.dumps([state_document(state), verdicts])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    # ---- at each agent -----------------------------------------------------------------------------

    def look(self, tokens: list[str]) -> None:
        """JudgeAgrees: the judge of each running agent, which remembers, says of each token what one says
        that remembers nothing. Of an agent that does not know the present state, nothing may be said."""
        for node in self._simulation.nodes:
            judge = self.judges.get(node.life) if node.is_running and node.life is not None else None
            broker = getattr(node.agent, "broker", None)
            if not isinstance(judge, Judge) or broker is None:
                continue
            for token in tokens:
                self._judges_alike(node.name, judge, broker.security, token)

    def _judges_alike(self, name: str, judge: Judge, state: Security | None, token: str) -> None:
        try:
            identity = judge.identify(f"Bearer {token}", None, judge._latest_ms)
        except ShoalError:
            identity = None
        if state is None:
            if identity is not None and identity.principal != BOOTSTRAP:
                self._fail("JudgeAgrees", f"{name} knows no principals, and {identity.principal} by a token")
            return
        fresh = Judge(lambda: state, judge._first_token)
        for wanted, thing in NEEDS:
            expected = verdict(fresh, token, wanted, thing, judge._latest_ms)
            is_allowed = identity is not None and judge.may(identity, wanted, thing)
            if (identity, is_allowed) != expected:
                said = f"{identity} may {wanted} {thing!r}: {is_allowed}"
                self._fail("JudgeAgrees", f"{name} says {said}; of {state} it is {expected}")
