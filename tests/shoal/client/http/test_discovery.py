"""What a client makes of the members that a gossip seed knows."""

from __future__ import annotations

import pytest

from shoal.client.http.discovery import urls_of_seeds
from shoal.errors import ClientError
from shoal.membership.net import guest
from shoal.membership.net.guest import PoolMember


def member(cluster: str, port: int) -> PoolMember:
    return PoolMember(f"a-{port}", {"cl": cluster, "url": f"http://127.0.0.1:{port}"}, "127.0.0.1")


async def test_a_seed_in_the_pool_of_two_clusters_is_asked_no_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools grow together when an agent takes a dead one's address: a client must not speak to both."""
    pool = [member("reef", 7071), member("reef", 7070), PoolMember("a Serf agent", {}, "127.0.0.1")]

    async def ask(host: str, port: int, **_: object) -> list[PoolMember]:
        assert (host, port) == ("10.0.0.1", 7946)
        return pool

    monkeypatch.setattr(guest, "ask_pool", ask)
    assert await urls_of_seeds(["10.0.0.1"]) == ["http://127.0.0.1:7070", "http://127.0.0.1:7071"]
    pool.append(member("atoll", 7072))
    with pytest.raises(ClientError, match="clusters atoll, reef: name a URL, or mdns='atoll'"):
        await urls_of_seeds(["10.0.0.1"])
    assert await urls_of_seeds(["10.0.0.1"], cluster="atoll") == ["http://127.0.0.1:7072"]
    with pytest.raises(ClientError, match="knows no agent of cluster 'shelf'"):
        await urls_of_seeds(["10.0.0.1"], cluster="shelf")


async def test_a_member_does_not_choose_where_a_client_connects_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a URL at the member's own gossip address is an agent's."""
    elsewhere = [
        PoolMember("x", {"cl": "reef", "url": url}, "10.0.0.3")
        for url in ("http://10.0.0.4:80", "http://10.0.0.3:80/admin?", "http://a@10.0.0.3:80", "file:///etc")
    ]

    async def ask(host: str, port: int, **_: object) -> list[PoolMember]:
        return [*elsewhere, member("reef", 7070)]

    monkeypatch.setattr(guest, "ask_pool", ask)
    assert await urls_of_seeds(["10.0.0.1"]) == ["http://127.0.0.1:7070"]
