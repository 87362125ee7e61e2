"""The doorkeeper of an agent: asks its Access once a request, and says 401 or 403 in words.

Law of this file: whose request it is, and whether it may. Each operation has its own needs (api/needs.py).
Nothing here looks at topics or groups, so a refusal is the same whether the thing is there or
not. Verdicts are remembered for the fast ways, with the version of Access and the end of the credentials.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final, NamedTuple, Protocol

from multidict import CIMultiDictProxy

from shoal.agent.http.admission.cookies import COOKIE, SECURE_COOKIE, refuse_other_pages, sessions_in
from shoal.agent.http.admission.credential_form import check_form
from shoal.agent.http.admission.era import Era
from shoal.agent.http.admission.known_refusals import Asked, KnownRefusals
from shoal.agent.http.api.needs import CLUSTER_ADMIN, CLUSTER_DESCRIBE, TOPIC_DESCRIBE, Needs, OtherNeed
from shoal.agent.http.api.operation import Operation
from shoal.agent.http.api.session_operations import MAKE_SESSION
from shoal.agent.http.core.forward import AUTHORIZATION, FORWARDED_BY, PRINCIPAL
from shoal.agent.http.core.request_quota import FAILED_LOGINS, Counted, Meter, Metered, Meters, metered_by
from shoal.agent.security.access import ANONYMOUS, Access, Identity, PeerCertificate, Proof
from shoal.agent.security.audit import AUDIT_TOPIC, AuditTrail, ShownLogin
from shoal.agent.security.failed_logins import FailedLogins
from shoal.agent.security.judge import latest_ms
from shoal.agent.security.needs import Action, Need, ResourceKind
from shoal.agent.security.quota import Taken
from shoal.agent.security.sessions import SESSION_SCHEME
from shoal.errors import ShoalError, shown

PRINCIPAL_CHARACTERS_MAX: Final = 256
VERDICTS_MAX: Final = 1_024
"""Remembered for the fast ways, as many as heads. When full they are forgotten, not searched."""
LENGTH_DIGITS_MAX: Final = 16
"""Of a Content-Length that quotas read."""
SYSTEM_PREFIX: Final = "_"
"""Topics of the system and their groups are for administrators of the cluster."""
NOT_READY: Final = "not-ready"
"""The code of an Access that does not know the cluster's principals yet: neither yes nor no."""
ADVICE: Final = "send `Authorization: Bearer TOKEN`"

Headers = CIMultiDictProxy[str]
NO_HEADERS: Final[Mapping[str, str]] = {}


class ShownCredentials(NamedTuple):
    """Of a request. `principal`: named by the agent that forwards it; None where no agent does."""

    authorization: str | None = None
    certificate: PeerCertificate | None = None
    principal: str | None = None


class FastAsking(Protocol):
    """A request of a fast way, as its head says."""

    @property
    def authorization(self) -> str | None: ...
    @property
    def operation(self) -> str: ...
    @property
    def needs(self) -> Needs: ...
    @property
    def resource(self) -> str: ...
    @property
    def body_bytes(self) -> int: ...


class Asker:
    """The sender of one request, and the permission that it has shown."""

    __slots__ = (
        "_access", "_credentials", "_meters", "_needs", "_resource", "_version", "identity", "meter",
        "refused",
    )  # fmt: skip

    def __init__(
        self,
        access: Access,
        credentials: ShownCredentials,
        identity: Identity,
        needs: Needs,
        resource: str,
        meters: Meters | None = None,
    ) -> None:
        """`meters`: count what it holds; None where nobody counts."""
        self._access = access
        self._credentials = credentials
        self._needs = needs
        self._resource = resource
        self._meters = meters
        self._version = access.version
        self.identity = identity
        self.meter: Meter | None = None
        """Of a principal that has quotas."""
        self.refused: ShoalError | None = None
        """The end of a request that was let in and may no longer go on."""

    @property
    def authorization(self) -> str | None:
        """The credential that it has shown, beside a certificate: a secret."""
        return self._credentials.authorization

    @property
    def is_asked(self) -> bool:
        """Whether anything can be refused to it."""
        return self._access.is_on

    @property
    def passed_on(self) -> Mapping[str, str]:
        """Headers that tell another agent whose request it is, so that it judges for itself. A client that
        only its certificate names is named here: the other agent believes it from our certificate alone."""
        if not self._access.is_on:
            return NO_HEADERS
        if self._credentials.authorization is not None:
            return {AUTHORIZATION: self._credentials.authorization}
        is_certified = self.identity.proof is Proof.CERTIFICATE
        return {PRINCIPAL: self.identity.principal} if is_certified else NO_HEADERS

    def may(self, needs: tuple[Need, ...], resource: str = "") -> bool:
        """Whether one of these is allowed now."""
        needs, resource = of_system(needs, resource)
        return any(self._access.may(self.identity, need, resource) for need in needs)

    def may_describe(self, topic: str) -> bool:
        """Whether a list may show this topic."""
        return not self._access.is_on or self.may(TOPIC_DESCRIBE, topic)

    def has_rules(self) -> bool:
        """Whether it may do anything. Raises ShoalError not-ready."""
        return self._access.has_rules(self.identity)

    def may_describe_cluster(self) -> bool:
        """Whether an answer may tell about the whole cluster. An agent that knows no principals yet does not
        know, and tells nothing."""
        if not self._access.is_on:
            return True
        try:
            return self.may(CLUSTER_DESCRIBE)
        except ShoalError as error:
            if error.code != NOT_READY:
                raise
            return False

    def require(self, needs: tuple[Need, ...], resource: str = "") -> None:
        """Raises ShoalError unauthenticated, forbidden."""
        if self._access.is_on and not self.may(needs, resource):
            raise refusal(self.identity, needs, resource)

    def hold(self, kind: str) -> AbstractContextManager[None]:
        """One of what its quotas bound at once, until the context ends. Raises ShoalError quota-exceeded."""
        if self._meters is None:
            return nullcontext()
        limit = self._access.quotas_of(self.identity).of(kind)
        return self._meters.hold(self.identity.principal, kind, limit)

    def judge_again(self) -> bool:
        """Whether its request may go on: asked anew once a verdict may have become another one, or the
        credentials have expired."""
        access, expires_ms = self._access, self.identity.expires_ms
        if access.version == self._version and (expires_ms is None or wall_ms() < expires_ms):
            return True
        self._version = access.version
        try:
            self.identity = identified(access, self._credentials, self._needs, self._resource)
            check(access, self.identity, self._needs, self._resource)
        except ShoalError as error:
            if error.code != NOT_READY:
                self.refused = error
        return self.refused is None

    def go_on(self) -> None:
        """After a wait, before anything is done. Raises ShoalError where the request may not go on."""
        if not self.judge_again():
            assert self.refused is not None
            raise self.refused


class Doorkeeper:
    """One per server."""

    def __init__(
        self, access: Access, *, agents_are_proven: bool = False, trail: AuditTrail | None = None
    ) -> None:
        """`agents_are_proven`: agents are those connections alone whose certificate says so. `trail`: told
        of logins, refusals and changes, where anybody is asked."""
        self.access = access
        self.trail = trail if access.is_on else None
        self._agents_are_proven = agents_are_proven
        self._allowed: dict[Asked, float] = {}
        """The wall clock's ms until which each holds."""
        self.refusals = KnownRefusals()
        """Of requests that is_allowed has not let in, where the ordinary way has nothing to add."""
        self.metered: dict[Asked, Metered] = {}
        """Of those allowed, those of principals with quotas: none in most clusters."""
        self.meters = Meters()
        self._failed_logins = FailedLogins()
        self._version = access.version
        self._now_ms = 0.0
        self.era = Era(is_endless=not access.is_on)
        self.nobody = Asker(
            access, ShownCredentials(), Identity(ANONYMOUS, Proof.OPEN), OtherNeed.NOTHING, ""
        )

    def admit(
        self,
        operation: Operation,
        arguments: tuple[str, ...],
        headers: Headers,
        certificate: PeerCertificate | None,
        connection: Counted | None = None,
    ) -> Asker:
        """The asker of a request that may do this. Raises ShoalError unauthenticated, forbidden,
        quota-exceeded."""
        access, needs = self.access, operation.needs
        if (
            self._agents_are_proven
            and (needs is OtherNeed.AGENT or FORWARDED_BY in headers)
            and (certificate is None or not certificate.is_agent)
        ):
            text = "links and forwarded requests are for agents alone, by their certificates"
            raise _named("forbidden", text, needs, operation.resource(arguments))
        if not access.is_on:
            return self.nobody
        if needs is OtherNeed.INTRODUCTION and self._agents_are_proven:
            needs = CLUSTER_DESCRIBE
        resource = operation.resource(arguments)
        try:
            credentials = shown_credentials(headers, certificate, needs, resource)
            if operation.name == MAKE_SESSION.name:
                refuse_other_pages(headers, over_tls=self._agents_are_proven)  # and its cookie is of before
            else:
                credentials = self._with_session(credentials, headers, needs, resource)
            identity = identified(access, credentials, needs, resource)
        except ShoalError:
            if needs is not OtherNeed.NOTHING:
                raise
            credentials, identity = ShownCredentials(), Identity(ANONYMOUS, Proof.NONE)
        check(access, identity, needs, resource)
        if certificate is not None and certificate.is_agent and FORWARDED_BY in headers:
            return Asker(access, credentials, identity, needs, resource)  # counted where its client asked
        asker = Asker(access, credentials, identity, needs, resource, self.meters)
        if needs is OtherNeed.CREDENTIALS or not isinstance(needs, OtherNeed):
            metered = metered_by(identity.principal, access.quotas_of(identity))
            if metered is not None:
                if connection is not None:
                    self.meters.count_connection(connection, metered)
                length = headers.get("Content-Length", "")
                # A length that is none is refused where the body is read.
                body_bytes = int(length) if length.isdecimal() and len(length) < LENGTH_DIGITS_MAX else 0
                asker.meter = self.meters.begin(metered, Taken(body_bytes, _reads(needs)))
        return asker

    def login_failed(
        self, error: ShoalError, certificate: PeerCertificate | None, address: str, *, shows_login: bool
    ) -> ShoalError:
        """The answer to a refused request: the error itself, unless too many credentials of this address
        were wrong. Then it is the same for all that are. A request that another agent passes on is none of
        that agent's. `shows_login`: it has shown a credential, right or wrong."""
        is_forwarded = certificate is not None and certificate.is_agent
        if error.code != "unauthenticated" or not shows_login or is_forwarded:
            return error
        wait_ns = self._failed_logins.failed(address, self.meters.clock_ns())
        if not wait_ns:
            return error
        self.meters.refused[FAILED_LOGINS] += 1
        text = "too many credentials of this address were wrong, and so are these: right ones always pass"
        return ShoalError("too-many-failed-logins", text, retry_after_ms=-(-wait_ns // 1_000_000))

    def is_allowed(self, request: FastAsking, certificate: PeerCertificate | None) -> bool:
        """Whether a request may go a fast way. Where not, the ordinary way says why."""
        access = self.access
        if not access.is_on:
            return True
        if self.era.now is None:
            self._look()
        asked = (request.authorization, certificate, request.operation, request.resource)
        until_ms = self._allowed.get(asked, 0.0)
        if self._now_ms < until_ms:
            self.era.lasts_until(until_ms)
            return True
        return asked not in self.refusals.told and self._judge(asked, request)

    def _judge(self, asked: Asked, request: FastAsking) -> bool:
        """Whether it may go a fast way; remembered either way. The ordinary way judges agents, and where the
        Access is not ready: these are not remembered."""
        access, (authorization, certificate, _, resource) = self.access, asked
        if certificate is not None and certificate.is_agent:
            return False
        identity, refused = Identity(ANONYMOUS, Proof.NONE), None
        try:
            credentials = ShownCredentials(authorization, certificate)
            identity = identified(access, credentials, request.needs, resource)
            check(access, identity, request.needs, resource)
        except ShoalError as error:
            if error.code == NOT_READY:
                return False
            refused = error
        if refused is not None:
            self.refusals.remember(asked, identity, refused)
            return False
        if len(self._allowed) >= VERDICTS_MAX:
            self._forget()
        metered = metered_by(identity.principal, access.quotas_of(identity))
        if metered is not None:
            self.metered[asked] = metered
        until_ms = math.inf if identity.expires_ms is None else identity.expires_ms
        self._allowed[asked] = until_ms
        self.era.lasts_until(until_ms)
        return True

    @property
    def cookie(self) -> str:
        """The name of the cookie with a session."""
        return SECURE_COOKIE if self._agents_are_proven else COOKIE

    def presented(self, headers: Headers) -> str | None:
        """The credential in the headers of a request, as `Authorization` has it; right or wrong."""
        given = headers.get(AUTHORIZATION)
        sessions = () if given is not None else sessions_in(headers, self.cookie)
        return f"{SESSION_SCHEME}{sessions[0]}" if sessions else given

    def _with_session(
        self, credentials: ShownCredentials, headers: Headers, needs: Needs, resource: str
    ) -> ShownCredentials:
        """With the session in a cookie as if it stood in `Authorization`, where other agents find it. Raises
        ShoalError unauthenticated for two credentials, foreign-origin for another page's request."""
        sessions = sessions_in(headers, self.cookie)
        if not sessions:
            return credentials
        refuse_other_pages(headers, over_tls=self._agents_are_proven)
        if len(sessions) > 1 or credentials.authorization is not None:
            text = f"there is a cookie {self.cookie}, and another credential: send one"
            raise _named("unauthenticated", text, needs, resource)
        return credentials._replace(authorization=f"{SESSION_SCHEME}{sessions[0]}")

    def identity(
        self, headers: Headers, certificate: PeerCertificate | None, *, ignores_session: bool = False
    ) -> Identity:
        """The sender of a request, for the audit. Raises ShoalError where it has not proven itself."""
        credentials = shown_credentials(headers, certificate, OtherNeed.CREDENTIALS, "")
        if not ignores_session:
            credentials = self._with_session(credentials, headers, OtherNeed.CREDENTIALS, "")
        return identified(self.access, credentials, OtherNeed.CREDENTIALS, "")

    def is_told(self, request: FastAsking, certificate: PeerCertificate | None, shown: ShownLogin) -> bool:
        """Whether the audit knows of the login of a request that is_allowed has judged. Where not, the
        ordinary way tells it. `shown`: the last one of its connection, which becomes this one."""
        if self.trail is None:
            return True
        name = None if certificate is None else certificate.name
        is_told = shown.is_told(self.trail, request.authorization, name, self._now_ms)
        self.era.lasts_until(shown.until_ms)
        return is_told

    def _look(self) -> None:
        """Void the verdicts of another version or second, and read the clock: once a turn of the loop, since
        both cost more than the look into what is remembered. A change counts from the next turn on."""
        version = self.access.version
        if version != self._version:
            self._version = version
            self._forget()
        now_ms = wall_ms()
        self._now_ms = latest_ms(self._now_ms, now_ms)
        self.refusals.look(now_ms)
        self.era.go_on(self._now_ms)

    def _forget(self) -> None:
        self.era.begin()  # quotas are forgotten, too: who is let in has to be asked for them
        self._allowed.clear()
        self.refusals.told.clear()
        self.metered.clear()

    def begin_fast(
        self, request: FastAsking, certificate: PeerCertificate | None, connection: Counted
    ) -> tuple[bool, Meter | None]:
        """Whether a request that is_allowed has let in may begin its fast way now; and its meter."""
        key = (request.authorization, certificate, request.operation, request.resource)
        metered = self.metered.get(key)
        if metered is None:
            return True, None
        if not self.meters.may_count_connection(connection, metered):
            return False, None
        meter = self.meters.begin_fast(metered, Taken(request.body_bytes, _reads(request.needs)))
        return meter is not None, meter

    def asker(self, request: FastAsking, certificate: PeerCertificate | None) -> Asker:
        """Of a request of a fast way, which names no other principal. Raises ShoalError unauthenticated,
        forbidden."""
        access = self.access
        if not access.is_on:
            return self.nobody
        if certificate is not None and certificate.is_agent:
            raise refusal(Identity(ANONYMOUS, Proof.NONE), request.needs, request.resource)
        credentials = ShownCredentials(request.authorization, certificate)
        identity = identified(access, credentials, request.needs, request.resource)
        check(access, identity, request.needs, request.resource)
        return Asker(access, credentials, identity, request.needs, request.resource, self.meters)


def _reads(needs: Needs) -> bool:
    """Whether the bytes of its answer count."""
    return isinstance(needs, OtherNeed) or needs[0].action is not Action.WRITE


def shown_credentials(
    headers: Headers, certificate: PeerCertificate | None, needs: Needs, resource: str
) -> ShownCredentials:
    """The credentials of a request. Raises ShoalError unauthenticated for two of them, forbidden for a word
    that only agents have, bad-request for a principal that cannot be one."""
    given = headers.getall(AUTHORIZATION, ())
    if len(given) > 1:
        text = f"there are {len(given)} Authorization headers: send one"
        raise _named("unauthenticated", text, needs, resource)
    authorization = given[0] if given else None
    if certificate is None or not certificate.is_agent:
        if PRINCIPAL in headers:
            text = f"{PRINCIPAL} is taken from an agent's certificate alone"
            raise _named("forbidden", text, needs, resource)
        return ShownCredentials(authorization, certificate)
    named = headers.getall(PRINCIPAL, ())
    if FORWARDED_BY not in headers and not named:
        return ShownCredentials(authorization, certificate)
    # A forwarder that names nobody asks for nobody: its own certificate is not its client's.
    principal = named[0] if named else ANONYMOUS
    if len(named) > 1 or not 0 < len(principal) <= PRINCIPAL_CHARACTERS_MAX or not principal.isprintable():
        raise ShoalError("bad-request", f"{PRINCIPAL} {shown(principal)} is no principal's name")
    return ShownCredentials(authorization, None, principal)


def identified(access: Access, credentials: ShownCredentials, needs: Needs, resource: str) -> Identity:
    """Raises ShoalError unauthenticated, which names the action and the resource; not-ready."""
    authorization, certificate, principal = credentials
    try:
        if authorization is None and principal is not None:
            return Identity(principal, Proof.NONE if principal == ANONYMOUS else Proof.CERTIFICATE)
        if authorization is not None:
            check_form(authorization)
        return access.identify(authorization, certificate, int(wall_ms()))
    except ShoalError as error:
        if error.code == NOT_READY:
            raise
        raise _named("unauthenticated", error.detail, needs, resource) from None


def wall_ms() -> float:
    """Of the clock that credentials expire by."""
    return time.time() * 1000


def check(access: Access, identity: Identity, needs: Needs, resource: str) -> None:
    """Raises ShoalError unauthenticated, forbidden where the identity may not."""
    if needs is OtherNeed.NOTHING:
        return
    if needs is OtherNeed.CREDENTIALS:
        allowed = identity.proof is not Proof.NONE
    elif isinstance(needs, OtherNeed):
        # An agent: it has proven itself, or nobody can. Then links are taken from members' addresses.
        allowed = True
    elif resource == AUDIT_TOPIC and needs[0].action not in (Action.DESCRIBE, Action.READ):
        allowed = False  # nobody writes into the audit, or ends any of it
    else:
        wanted, name = of_system(needs, resource)
        allowed = any(access.may(identity, need, name) for need in wanted)
    if not allowed:
        raise refusal(identity, needs, resource)


def of_system(needs: tuple[Need, ...], resource: str) -> tuple[tuple[Need, ...], str]:
    """Topics of the system, and their groups, need an administrator."""
    if resource.startswith(SYSTEM_PREFIX) and needs[0].kind is not ResourceKind.CLUSTER:
        return CLUSTER_ADMIN, ""
    return needs, resource


def refusal(identity: Identity, needs: Needs, resource: str) -> ShoalError:
    """401 for an asker without credentials, 403 for one whose credentials do not suffice."""
    if identity.proof is Proof.NONE:
        return _named("unauthenticated", f"credentials are needed: {ADVICE}", needs, resource)
    return _named("forbidden", f"{shown(identity.principal)} may not do this", needs, resource)


def _named(code: str, detail: str, needs: Needs, resource: str) -> ShoalError:
    """The problem with the action and the resource that were asked for."""
    if needs is OtherNeed.INTRODUCTION:
        needs = CLUSTER_DESCRIBE
    if isinstance(needs, OtherNeed):
        action, thing = ("link" if needs is OtherNeed.AGENT else "list"), "cluster"
    else:
        needs, resource = of_system(needs, resource)
        action, kind = needs[0].action.value, needs[0].kind
        thing = f"{kind}:{resource}" if resource else kind.value
    assert code in ("unauthenticated", "forbidden")
    text = f"{detail}; {action} of {shown(thing)} was asked"
    return ShoalError(code, text, action=action, resource=thing)  # type: ignore[arg-type]
