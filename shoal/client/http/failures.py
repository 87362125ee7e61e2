"""An attempt's exception as a failure of routes.py, and a failure as the error that users get.

Law of this file: words and verdicts; it asks nobody. Failures never leave the client, errors do.
"""

from __future__ import annotations

import ssl

import aiohttp

from shoal.client.http import routes
from shoal.client.http.connection import NotConnected, NotTrusted
from shoal.client.http.routes import Failure
from shoal.client.http.wire import NOT_HTTP
from shoal.errors import ERRORS, ShoalError
from shoal.tls import SPEAKS_TLS, TLS_ALERT, tls_reason


class Unreachable(ConnectionError):
    """No agent answered. `definite`: nothing that was asked can have happened."""

    def __init__(self, detail: str, *, definite: bool) -> None:
        super().__init__(detail)
        self.detail = detail
        self.definite = definite


class Untrusted(Unreachable):
    """No agent was asked: TLS failed in a way that lasts until a file, a name or a URL is another one."""


def failure_of(error: aiohttp.ClientError | OSError, url: str, *, may_pass: bool) -> Failure:
    """The failure of an attempt at this agent. `may_pass`: agents have answered this client before, so a
    certificate that does not fit is one agent's fault, and may be mended."""
    if isinstance(error, aiohttp.InvalidURL | aiohttp.NonHttpUrlClientError):
        return Failure(routes.UNREACHABLE, f"{url} is no URL", retriable=False, definite=True)
    below: BaseException = error  # that aiohttp's own stands for
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        below = error.certificate_error
    elif isinstance(error, aiohttp.ClientConnectorError):
        below = error.os_error
    elif isinstance(error.__cause__, ssl.SSLError):  # TLS 1.3 refuses a client's certificate when it is done
        below = error.__cause__
    cause = str(error) if isinstance(error, NotTrusted) else tls_reason(below)
    if cause is not None:  # before any request was read
        return Failure(routes.UNTRUSTED, f"{url} cannot be asked: {cause}", may_pass, definite=True)
    if isinstance(error, NotConnected | aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError):
        detail = f"{url} cannot be reached: {_reason(error)}"
        return Failure(routes.UNREACHABLE, detail, retriable=True, definite=True)
    detail = f"{url} broke off: {_reason(error)}"
    if not may_pass and url.startswith("https://"):  # asyncio's servers close without TLS's word for it
        detail += " (if it asks for clients' certificates: give certificate=FILE and key=FILE)"
    return Failure(routes.CONNECTION_LOST, detail, retriable=True, definite=False)


def error_of(failure: Failure, elapsed_ms: int, definite: bool) -> ShoalError | Unreachable:
    """The error of a request that is given up, after so long."""
    tried = f" (gave up after {elapsed_ms / 1_000:.0f} s)" if elapsed_ms >= 1_000 else ""
    if failure.code not in ERRORS:
        kind = Untrusted if failure.code == routes.UNTRUSTED else Unreachable
        return kind(failure.detail + tried, definite=definite)
    problem = {
        **failure.problem,
        "code": failure.code,
        "detail": failure.detail + tried,
        "definite": definite,
    }
    return ShoalError.from_problem(problem)


def _reason(error: BaseException) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        return str(error.os_error.strerror or error.os_error)
    if isinstance(error, aiohttp.ClientResponseError):
        # aiohttp's parser quotes the line it does not understand.
        return SPEAKS_TLS if repr(TLS_ALERT)[2:-1] in error.message else NOT_HTTP
    return str(error) or type(error).__name__
