"""Whole agents that take the JWTs of an issuer: let in by claims, refused each bad one, and settings."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from agents import Running, agents_in, config, eventually
from jwt_issuer import AUDIENCE, ISSUER, bad_jwts, claims, key_set, signed

from shoal import AsyncClient
from shoal.agent.config import ConfigError
from shoal.agent.process.config_source import ConfigSource

FILES = {"jwt_issuer": ISSUER, "jwt_audience": AUDIENCE, "jwt_keys": "/etc/shoal/keys.json"}


async def ask(agent: Running, token: str, method: str, path: str, body: object = None) -> tuple[int, Any]:
    return await agent.call(method, path, body, {"Authorization": f"Bearer {token}"})


async def test_a_jwt_counts_at_every_agent_until_its_key_is_withdrawn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The issuer's administrator makes a topic and a principal, whose rules count beside its roles. Every bad
    JWT is refused over the wire. A withdrawn key ends what it has signed, in a stream too."""
    keys = tmp_path / "keys.json"
    keys.write_bytes(key_set())
    flags = {"authentication": "on", **FILES, "jwt_keys": str(keys), "jwt_roles_claim": "roles"}
    now_s = int(time.time())
    admin = signed(claims(now_s, sub="root", roles=["admin"]))
    ann = signed(claims(now_s, roles=["producer:orders"]), "RSA", "RS256")
    async with agents_in(tmp_path) as running:
        first, second = await running.cluster(2, **flags)
        settings = {"partitions": 1, "replication_factor": 1}
        assert (await ask(first, admin, "PUT", "/v1/topics/orders", settings))[0] == 201
        rules = {"rules": ["topic:orders=read"]}
        for agent in (first, second):
            status, told = await ask(
                agent, ann, "POST", "/v1/topics/orders/records", {"records": [{"value": "v"}]}
            )
            assert status == 200, told
        assert (await ask(first, ann, "GET", "/v1/topics/orders/records"))[0] == 403
        assert (await ask(first, ann, "DELETE", "/v1/topics/orders"))[0] == 403
        assert (await ask(first, admin, "PUT", "/v1/principals/ann", rules))[0] == 201

        async def may_read() -> bool:
            return (await ask(second, ann, "GET", "/v1/topics/orders/records"))[0] == 200

        await eventually(may_read)
        async with AsyncClient([second.agent.url], token=ann) as client:
            sender = await client.producer("orders").open()
            await sender.send(b"by the client")
            await sender.close()
        for title, bad in bad_jwts(now_s).items():
            status, told = await ask(first, bad, "GET", "/v1/topics")
            assert (status, told["code"]) == (401, "unauthenticated"), title
            assert bad not in str(told), title
        told = (await ask(second, ann, "GET", "/v1/routes?topic=orders"))[1]
        path = f"/v1/routes?topic=orders&wait=60s&after_version={told['version']}"
        waiting = asyncio.create_task(ask(second, ann, "GET", path))
        keys.write_bytes(key_set("P-256"))
        for agent in (first, second):
            agent.agent.look_at_certificates()

        async def is_refused() -> bool:
            return (await ask(second, ann, "GET", "/v1/topics"))[0] == 401

        await eventually(is_refused)
        assert (await waiting)[1].get("code", "unauthenticated") == "unauthenticated"
        assert (await ask(second, admin, "GET", "/v1/topics"))[0] == 200
    for secret in (admin, ann):
        assert secret.split(".")[2] not in caplog.text


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"jwt_issuer": ISSUER}, "jwt_audience and jwt_keys is missing"),
        ({**FILES, "jwt_audience": None}, "jwt_audience is missing"),
        ({"jwt_roles_claim": "roles"}, "jwt_issuer and jwt_audience and jwt_keys is missing"),
        ({"jwt_principal_claim": "email"}, "is missing"),
        ({**FILES, "jwt_issuer": ""}, "jwt_issuer is not 1 to 512"),
        ({**FILES, "jwt_principal_claim": "a\nb"}, "jwt_principal_claim is not 1 to 512"),
        ({**FILES, "jwt_keys": "http://login.example.com/keys"}, "in the open"),
        ({**FILES, "jwt_keys": "HTTP://127.0.0.1.example.com/keys"}, "in the open"),
        ({**FILES, "jwt_keys": "https:///keys"}, "not a URL with a host"),
        ({**FILES, "jwt_keys": "https://host:port/keys"}, "not a URL with a host"),
        ({**FILES, "jwt_keys": "https://ann:secret@host/keys"}, "a user, a password"),
    ],
)
def test_settings_that_cannot_work_are_refused(flags: dict[str, object], words: str, tmp_path: Path) -> None:
    """With the remedy, and without a password that stood in a URL."""
    given = {name: value for name, value in flags.items() if value is not None}
    with pytest.raises(ConfigError, match=words) as caught:
        config(tmp_path, **given)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "keys",
    [
        "keys.json",
        "https://host/keys?a=b",
        "http://127.0.0.1:8080/keys",
        "http://[::1]/k",
        "http://localhost/k",
    ],
)
def test_settings_that_work(keys: str, tmp_path: Path) -> None:
    """A file, a URL with TLS, or one of this host. In a configuration file paths count from its place, and
    URLs stay."""
    assert config(tmp_path, **FILES | {"jwt_keys": keys}).security.takes_jwts
    file = tmp_path / "shoal.toml"
    file.write_text(f'data = "d"\njwt_issuer = "i"\njwt_audience = "a"\njwt_keys = "{keys}"\n')
    read = ConfigSource({}, {}, str(file)).read().security.jwt_keys
    assert read == (str(tmp_path / keys) if keys == "keys.json" else keys)
