"""Guests of a cluster under faults: each gets a token, uses it at every agent, and loses it.

Law of this file: over HTTPS, as an administrator and clients do. A token whose end was answered is refused by
each agent that has started since, and by all agents once the faults have been over for 5 s. An agent that
hears nobody may go on by what it knows (docs/security.md), so nothing more is said while it is cut off.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

from client_credentials import AUTHORIZATION, CREDENTIALS, ClientCredentials
from log_clients import Answer, Connections, NoAnswer, Workload, now_s
from nemesis_hosts import Host, Hosts

TOPIC = "guests"
CLIENTS, ROOT, GUEST = "clients", "root", "guest"
CLIENTS_RULES = ("topic:*=*", "group:*=*", "cluster=describe")
GUEST_RULES = (f"topic:{TOPIC}=describe,read,write",)
HOLDS_S = 5.0
"""After its answer a revocation holds by then everywhere; as long a started agent asks the others first."""
LIMIT_S = 120.0
RETRY_S = 0.3
PAUSE_S = 0.5
USES = 6
REFUSALS = (401, 429)
"""The latter where an address has failed too often within a minute."""
KEPT = 12
"""Of the tokens that were ended, at most so many are tried at once."""
RECORD = {"records": [{"value": "v"}]}


@dataclass
class Guest:
    """`ended_s`: when the end of the token was answered; infinite before."""

    token: str = field(repr=False)
    id: str
    ended_s: float = float("inf")


class Guests:
    """`anomalies`: answers that should have been refusals, or the reverse."""

    def __init__(self, hosts: Hosts, work: Workload, rng: random.Random) -> None:
        self._hosts = hosts
        self._work = work
        self._rng = rng
        self._connections = Connections()
        self._root = ""
        self._known: list[Guest] = []
        self.refused = 0
        self.let_in = 0
        self.anomalies: list[str] = []

    @property
    def ended(self) -> list[Guest]:
        return [guest for guest in self._known if guest.ended_s < float("inf")]

    async def begin(self) -> None:
        """The clients of this context get a principal of their own; the first token counts no more then."""
        secrets = self._hosts.secrets
        assert secrets is not None
        CREDENTIALS.set(ClientCredentials.over_tls(None, str(secrets.ca)))
        await self._principal(secrets.first_token, CLIENTS, CLIENTS_RULES)
        token = (await self._token(secrets.first_token, CLIENTS)).token
        await self._principal(secrets.first_token, ROOT, ("cluster=admin",))
        self._root = (await self._token(secrets.first_token, ROOT)).token
        CREDENTIALS.set(ClientCredentials.over_tls(token, str(secrets.ca)))
        await self._until_done(self._root, "PUT", f"/v1/principals/{GUEST}", {"rules": list(GUEST_RULES)})
        await self._until_done(
            token, "PUT", f"/v1/topics/{TOPIC}", {"partitions": 1, "replication_factor": 3}
        )
        first = Guest(secrets.first_token, "first", now_s())
        self._known.append(first)

    async def _principal(self, token: str, name: str, rules: tuple[str, ...]) -> None:
        await self._until_done(token, "PUT", f"/v1/principals/{name}", {"rules": list(rules)})

    async def _token(self, token: str, principal: str) -> Guest:
        made = await self._until_done(token, "POST", f"/v1/principals/{principal}/tokens", {})
        return Guest(made["token"], made["id"])

    async def run(self) -> None:
        """Until the work stops."""
        while not self._work.stopping:
            await self._free_places()
            made = await self._ask(self._root, "POST", f"/v1/principals/{GUEST}/tokens", {})
            if made is not None and made.status == 201:
                guest = Guest(made.body["token"], made.body["id"])
                self._known.append(guest)
                await self._live(guest)
            await asyncio.sleep(PAUSE_S)
        self._connections.close()

    async def _free_places(self) -> None:
        """A token that was made, and never told, goes as well."""
        answer = await self._ask(self._root, "GET", f"/v1/principals/{GUEST}")
        for token in answer.body["tokens"] if answer is not None and answer.status == 200 else ():
            await self._end(token["id"])

    async def _live(self, guest: Guest) -> None:
        """Used at each agent, ended, and used again."""
        for _ in range(USES):
            await self._use(self._rng.choice(self._hosts.all), guest)
        await self._end(guest.id)
        for _ in range(USES):
            some = self.ended[-KEPT:] or [guest]
            await self._use(self._rng.choice(self._hosts.all), self._rng.choice(some))

    async def _end(self, token_id: str) -> None:
        answer = await self._ask(self._root, "DELETE", f"/v1/tokens/{token_id}")
        if answer is not None and answer.status == 204:
            for guest in self._known:
                if guest.id == token_id:
                    guest.ended_s = now_s()

    async def _use(self, host: Host, guest: Guest) -> int:
        """The status; 0 for no answer."""
        begun_s, started_s = now_s(), host.started_s
        is_append = self._rng.random() < 0.5
        way = (
            ("POST", f"/v1/topics/{TOPIC}/records?timeout=2s")
            if is_append
            else ("GET", f"/v1/topics/{TOPIC}")
        )
        answer = await self._at(host, guest.token, *way, RECORD if is_append else None)
        if answer is None:
            return 0
        is_in = answer.status < 300
        self.let_in += is_in
        self.refused += answer.status in REFUSALS
        is_new = guest.ended_s < started_s and begun_s - started_s < HOLDS_S and host.started_s == started_s
        is_calm = begun_s - max(guest.ended_s, self._hosts.disturbed_s) > HOLDS_S and self._hosts.is_calm
        if is_in and (is_new or is_calm):
            since_s = begun_s - guest.ended_s
            said = (
                f"{host.namespace} answers {answer.status} to token {guest.id}, ended {since_s:.1f} s before"
            )
            self.anomalies.append(f"{said}; it started {begun_s - started_s:.1f} s before")
        return answer.status

    async def finish(self) -> None:
        """All agents are well: each refuses what was ended, and lets the last one in."""
        await asyncio.sleep(HOLDS_S + 1.0)
        last = await self._until_last()
        for host in self._hosts.all:
            for guest in self.ended:
                status = await self._use(host, guest)
                if status not in (0, *REFUSALS):
                    self.anomalies.append(f"{host.namespace} answers {status} to {guest} in the end")
            await self._let_in_at_last(host, last)
        self._connections.close()

    async def _until_last(self) -> Guest:
        """The administrator's token is good to the end."""
        await self._free_places()
        last = await self._token(self._root, GUEST)
        self._known.append(last)
        return last

    async def _let_in_at_last(self, host: Host, guest: Guest) -> None:
        end_s = now_s() + LIMIT_S  # a request to a busy machine may take some seconds itself
        while (status := await self._use(host, guest)) != 200:
            if now_s() > end_s:
                self.anomalies.append(f"{host.namespace} answers {status} to {guest}, which is good")
                return
            await asyncio.sleep(RETRY_S)

    # ---- asking ------------------------------------------------------------------------------------

    async def _until_done(self, token: str, method: str, path: str, body: Any) -> Any:
        end_s = now_s() + LIMIT_S
        while True:
            answer = await self._ask(token, method, path, body)
            if answer is not None and answer.status in (200, 201):
                return answer.body
            if now_s() > end_s:
                raise RuntimeError(f"{method} {path} is not done: {answer}")
            await asyncio.sleep(RETRY_S)

    async def _ask(self, token: str, method: str, path: str, body: Any = None) -> Answer | None:
        """At some agent. None where nobody knows."""
        return await self._at(self._rng.choice(self._hosts.all), token, method, path, body)

    async def _at(self, host: Host, token: str, method: str, path: str, body: Any) -> Answer | None:
        try:
            return await self._connections.request(
                host.http, method, path, body, {AUTHORIZATION: f"Bearer {token}"}
            )
        except NoAnswer:
            return None
