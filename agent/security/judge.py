"""The judge of an agent: an Access over the security state that its catalog has.

Law of this file: no clock, no I/O. The state is read where the catalog keeps it, so that a verdict is of the
newest state that this agent has applied. An agent that is cut off from the others judges by the last one. A
revocation reaches it when it hears of the catalog again; until then a token holds to its expiry.

Time. Tokens expire by the agent's wall clock. Where that jumps ahead by an hour, tokens that end in this hour
are refused early. Where it jumps back by up to CLOCK_BACK_MAX_MS, the judge goes on with the latest time that
it has seen. So a token that has expired does not come alive again. A clock that goes back further had been
wrong before, and is believed now: else tokens would be refused until the wrong time comes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from shoal.agent.security.access import ANONYMOUS, Identity, PeerCertificate, Place, Proof
from shoal.agent.security.jwt import Verifier, is_jwt
from shoal.agent.security.needs import Need
from shoal.agent.security.principals import BOOTSTRAP, Security
from shoal.agent.security.quota import NO_QUOTAS, Quotas
from shoal.agent.security.rules import Rule, allowed
from shoal.agent.security.sessions import (
    SESSION_LIFETIME_MS,
    SESSION_SCHEME,
    BrowserSession,
    SessionError,
    SessionSource,
    SourceKind,
    key_id_of,
    open_session,
    seal,
)
from shoal.agent.security.tokens import Token, TokenError, bearer_of_header, parse_token, same_hash
from shoal.errors import ShoalError

CLOCK_BACK_MAX_MS: Final = 3_600_000
FIRST_NAME_BYTES: Final = 16
REMEMBERED_MAX: Final = 4_096
"""Identities whose rules are remembered. When full they are forgotten, not searched."""
Time = TypeVar("Time", int, float)


def latest_ms(seen_ms: Time, now_ms: Time) -> Time:
    """The time to judge by, once that was seen and a clock says now."""
    return seen_ms if 0 <= seen_ms - now_ms <= CLOCK_BACK_MAX_MS else now_ms


class Judge:
    """Of an agent that asks for credentials. ShoalError not-ready while the state is not known."""

    is_on = True

    def __init__(
        self,
        state: Callable[[], Security | None],
        first_token: bytes | None = None,
        tell_first: Callable[[str], None] = lambda _: None,
        *,
        is_new: Callable[[], bool] = lambda: False,
        jwts: Verifier | None = None,
    ) -> None:
        """`state`: as the catalog has it now; None before this agent knows a current one. `first_token`: the
        hash of the token that counts as administrator until there is one. `tell_first`: called with its id,
        each time that it is used. `is_new`: whether the agent has no cluster yet, where that token counts
        too. `jwts`: None where no issuer of JWTs is believed."""
        self._state = state
        self._first_token = first_token
        self._tell_first = tell_first
        self._is_new = is_new
        self._jwts = jwts
        self._seen: tuple[tuple[Place, bool] | None, int] | None = None
        self._version = 0
        self._latest_ms = 0
        self._rules: dict[tuple[str, tuple[str, ...]], tuple[Rule, ...]] = {}
        self._quotas: dict[tuple[str, tuple[str, ...]], Quotas] = {}

    def __repr__(self) -> str:
        return f"Judge(version={self._version} {self._state()})"

    @property
    def version(self) -> int:
        """Another number with each change of principals, roles or tokens, and of the keys of JWTs."""
        state = self._state()
        now = (
            None if state is None else (state.changed, state.is_settled),
            0 if self._jwts is None else self._jwts.version,
        )
        if now != self._seen:
            self._seen = now
            self._version += 1
            self._rules.clear()
            self._quotas.clear()
        return self._version

    def identify(
        self, authorization: str | None, certificate: PeerCertificate | None, now_ms: int
    ) -> Identity:
        """A token counts before a certificate: an agent that passes a request on shows its client's. A
        connection may outlive the certificate of its client, whose proof ends all the same; agents make
        theirs anew. Raises ShoalError unauthenticated."""
        self._latest_ms = latest_ms(self._latest_ms, now_ms)
        if authorization is not None:
            if authorization.startswith(SESSION_SCHEME):
                return self._session(authorization.removeprefix(SESSION_SCHEME), self._latest_ms)
            try:
                text = bearer_of_header(authorization)
                if is_jwt(text):
                    return self._verifier().identify(text, self._latest_ms)
                token = parse_token(text)
            except TokenError as error:
                raise ShoalError("unauthenticated", str(error)) from None
            return self._bearer(token, self._latest_ms)
        if certificate is None:
            return Identity(ANONYMOUS, Proof.NONE)
        if certificate.is_agent:
            return Identity(certificate.name, Proof.AGENT)
        expires_ms = certificate.expires_ms
        if expires_ms is not None and self._latest_ms >= expires_ms:
            text = "the certificate of this connection has expired: connect again with another one"
            raise ShoalError("unauthenticated", text)
        return Identity(certificate.name, Proof.CERTIFICATE, expires_ms)

    def _verifier(self) -> Verifier:
        if self._jwts is None:
            raise ShoalError("unauthenticated", "this agent takes no JWTs: it has no jwt_issuer")
        return self._jwts

    def begin_session(self, authorization: str, session_id: str, now_ms: int) -> tuple[str, Identity] | None:
        """Of a token or a JWT. Raises ShoalError unauthenticated, not-ready; no-session for one that is too
        large for a cookie."""
        identity, state = self.identify(authorization, None, now_ms), self._state()
        if identity.session:
            raise ShoalError("unauthenticated", "a session is made of a token or a JWT, not of a session")
        if state is None:
            raise _not_ready()
        key = state.sessions.sealing_key(self._latest_ms)
        if key is None:
            return None
        text = bearer_of_header(authorization)
        if identity.proof is Proof.JWT:
            source = SessionSource(SourceKind.JWT, self._verifier().key_name_of(text))
        elif identity.principal == BOOTSTRAP:
            source = SessionSource(SourceKind.FIRST, self._first_name())
        else:
            source = SessionSource(SourceKind.TOKEN, parse_token(text).id)
        ends_ms = self._latest_ms + SESSION_LIFETIME_MS
        expires_ms = ends_ms if identity.expires_ms is None else min(ends_ms, identity.expires_ms)
        session = BrowserSession(
            session_id, identity.principal, source, identity.roles, state.changed, expires_ms
        )
        try:
            return seal(session, key), _identity_of(session)
        except SessionError as error:
            raise ShoalError("no-session", str(error)) from None

    def _session(self, text: str, now_ms: int) -> Identity:
        """Raises ShoalError unauthenticated, which says why the session is none any more; not-ready."""
        state = self._state()
        if state is None:
            raise _not_ready()
        try:
            key = state.sessions.key(key_id_of(text))
            if key is None:
                raise SessionError("the session has ended, or is of another cluster: log in again")
            session = open_session(text, key)
        except SessionError as error:
            raise ShoalError("unauthenticated", str(error)) from None
        if now_ms >= session.expires_ms:
            raise ShoalError("unauthenticated", "the session has expired: log in again")
        if state.sessions.has_ended(session.id, session.principal, session.made_at):
            raise ShoalError("unauthenticated", "the session was ended: log in again")
        if not self._still_counts(session, state, now_ms):
            raise ShoalError(
                "unauthenticated",
                "the session has ended with the credential that it was made of: log in again",
            )
        return _identity_of(session)

    def _still_counts(self, session: BrowserSession, state: Security, now_ms: int) -> bool:
        """Whether the credential that it was made of does."""
        match session.source.kind:
            case SourceKind.TOKEN:
                token = state.token_of(session.principal, session.source.name)
                return token is not None and token.is_live(now_ms)
            case SourceKind.FIRST:
                return session.source.name == self._first_name() and self._first_counts(state)
            case SourceKind.JWT:
                return self._jwts is not None and self._jwts.has_key(session.source.name)

    def _first_name(self) -> str:
        """Of the first token, without showing it."""
        first = b"" if self._first_token is None else self._first_token
        return first[:FIRST_NAME_BYTES].hex()

    def _bearer(self, token: Token, now_ms: int) -> Identity:
        state, token_hash = self._state(), token.hash()
        # The lookup's time tells nothing of use: nobody can choose the hash of a token.
        known = None if state is None else state.token(token_hash)
        if known is not None:
            principal, entry = known
            if not entry.is_live(now_ms):
                raise ShoalError(
                    "unauthenticated", f"token {token.id} has expired: ask for another, `shoal secure token`"
                )
            return Identity(principal, Proof.TOKEN, entry.expires_ms)
        if self._first_token is not None and same_hash(token_hash, self._first_token):
            if not self._first_counts(state):
                raise ShoalError(
                    "unauthenticated",
                    f"token {token.id} is the first one, which counts no more: there are administrators now",
                )
            self._tell_first(token.id)
            return Identity(BOOTSTRAP, Proof.TOKEN)
        if state is None:
            raise _not_ready()
        raise ShoalError(
            "unauthenticated", f"token {token.id} is not known: it was revoked, or is of another cluster"
        )

    def _first_counts(self, state: Security | None) -> bool:
        if state is None and not self._is_new():
            raise _not_ready()
        return state is None or not state.is_settled

    def may(self, identity: Identity, wanted: Need, resource: str) -> bool:
        """Everybody may also do as the anonymous may. Agents may do everything, since they hold everything;
        the first token may, until there is an administrator."""
        if identity.proof in (Proof.AGENT, Proof.OPEN):
            return True
        if identity.principal == BOOTSTRAP and identity.proof in (Proof.TOKEN, Proof.SESSION):
            return self._first_counts(self._state())
        return allowed(self._rules_of(identity), wanted, resource)

    def has_rules(self, identity: Identity) -> bool:
        """Of its own, of its roles, or of everybody. Raises ShoalError not-ready."""
        if identity.proof in (Proof.AGENT, Proof.OPEN):
            return True
        if identity.principal == BOOTSTRAP and identity.proof in (Proof.TOKEN, Proof.SESSION):
            return self._first_counts(self._state())
        return bool(self._rules_of(identity))

    def quotas_of(self, identity: Identity) -> Quotas:
        """Agents have none, nor has the first token."""
        state = self._state()
        if state is None or identity.proof in (Proof.AGENT, Proof.OPEN):
            return NO_QUOTAS
        version = self.version  # forgets them where the state is another one
        assert version > 0
        key = identity.principal, identity.roles
        quotas = self._quotas.get(key)
        if quotas is None:
            quotas = state.quotas_of(*key)
            if len(self._quotas) >= REMEMBERED_MAX:
                self._quotas.clear()
            self._quotas[key] = quotas
        return quotas

    def _rules_of(self, identity: Identity) -> tuple[Rule, ...]:
        state = self._state()
        if state is None:
            raise _not_ready()
        version = self.version  # forgets them where the state is another one
        assert version > 0
        key = identity.principal, identity.roles
        rules = self._rules.get(key)
        if rules is None:
            rules = (*state.rules_of(*key), *state.rules_of(ANONYMOUS))
            if len(self._rules) >= REMEMBERED_MAX:
                self._rules.clear()
            self._rules[key] = rules
        return rules


def _identity_of(session: BrowserSession) -> Identity:
    return Identity(session.principal, Proof.SESSION, session.expires_ms, session.roles, session.id)


def _not_ready() -> ShoalError:
    return ShoalError("not-ready", "this agent does not know the principals of its cluster yet: ask again")
