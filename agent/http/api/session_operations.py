"""The routes of browsers' sessions, as operations.py has the others."""

from __future__ import annotations

from shoal.agent.http.api.media import JSON_TYPE
from shoal.agent.http.api.needs import OtherNeed
from shoal.agent.http.api.operation import Answer, Operation
from shoal.agent.http.api.operations import FORWARD, TIMEOUT
from shoal.agent.http.api.security_schemas import reference

MAKE_SESSION = Operation(
    "makeSession",
    "POST /v1/session",
    "Log a browser in: a cookie for 12 hours in place of the token or JWT in `Authorization`.",
    {201: Answer("Logged in.", {JSON_TYPE: reference("Session")}, headers=("Set-Cookie",))},
    (TIMEOUT, FORWARD),
    needs=OtherNeed.CREDENTIALS,
)
READ_SESSION = Operation(
    "readSession",
    "GET /v1/session",
    "The asker, by whichever credential.",
    {200: Answer("The principal, and how it has proven itself.", {JSON_TYPE: reference("Session")})},
    needs=OtherNeed.CREDENTIALS,
)
END_SESSION = Operation(
    "endSession",
    "DELETE /v1/session",
    "Log out: the session of the cookie ends at every agent.",
    {204: Answer("Ended, durably: agents that are heard refuse it within 5 s.", headers=("Set-Cookie",))},
    (TIMEOUT, FORWARD),
    needs=OtherNeed.CREDENTIALS,
)
