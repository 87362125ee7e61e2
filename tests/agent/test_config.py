"""The configuration: precedence of its sources, and every rule that refuses one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.config import AgentConfig, ConfigError, SecuritySettings, parse_host_port


def test_flags_beat_environment_beat_file_beat_defaults() -> None:
    """Each source overrides the ones below it, setting by setting."""
    config = AgentConfig.from_sources(
        {"data": "flag", "name": None, "join": []},
        {"SHOAL_DATA": "environment", "SHOAL_NAME": "from-environment", "SHOAL_JOIN": "a:1, b"},
        {"agent": {"data": "file", "name": "from-file", "cluster": "from-file", "election-timeout": "2s"}},
    )
    assert (config.data, config.name, config.cluster) == ("flag", "from-environment", "from-file")
    assert config.seeds == (("a", 1), ("b", 7946))
    assert config.election_timeout_ms == 2_000
    assert (config.heartbeat_interval_ms, config.bind) == (100, "127.0.0.1")


def test_a_name_may_be_advertised() -> None:
    """Its address is looked up at the start: no rule about addresses holds for it here."""
    config = AgentConfig.from_sources({"data": "d", "bind": "0.0.0.0", "advertise": "shoal-0.shoal"})
    assert (config.advertised_host, config.advertised_name) == ("shoal-0.shoal", "shoal-0.shoal")
    config = AgentConfig.from_sources({"data": "d", "bind": "0.0.0.0", "advertise": "10.0.0.5"})
    assert (config.advertised_host, config.advertised_name) == ("10.0.0.5", None)
    config = AgentConfig.from_sources({"data": "d", "cores": 2, "http_socket": "/run/s"})
    assert config.for_core(1).http.http_socket == "/run/s.1"


def test_the_cluster_name_counts_as_explicit_only_when_given() -> None:
    """mDNS beyond loopback depends on it."""
    assert not AgentConfig.from_sources({"data": "d"}).cluster_is_explicit
    assert AgentConfig.from_sources({"data": "d", "cluster": "shoal"}).cluster_is_explicit


REFUSED = [
    ({"data": None}, "--data DIR"),
    ({"data": "\0"}, "--data DIR"),
    ({"bind": "0.0.0.0"}, "--advertise ADDR"),
    ({"bind": "here"}, "not an IP address"),
    ({"bind": "localhost"}, "give 127.0.0.1"),
    ({"bind": "host.example"}, "not an IP address"),
    ({"bind": "0.0.0.0", "advertise": "10.1"}, "not an IP address or a DNS name"),
    ({"bind": "0.0.0.0", "advertise": "host.example:7070"}, "not an IP address or a DNS name"),
    ({"bind": "0.0.0.0", "advertise": "host.example."}, "without port, wildcard and a dot at its end"),
    ({"http_socket": "x" * 108}, "1 to 107 bytes"),
    ({"http_socket": "\udcff" * 108}, "1 to 107 bytes"),
    ({"allowed_hosts": ["https://a.example"]}, "without scheme, port and wildcard"),
    ({"allowed_hosts": ["*.example"]}, "without scheme, port and wildcard"),
    ({"cors_origins": ["a.example"]}, "SCHEME://HOST[:PORT]"),
    ({"cors_origins": ["*"]}, "every web page"),
    ({"allowed_hosts": ["a"] * 200, "cors_origins": ["https://a"] * 60}, "over 256"),
    ({"bind": "127.0.0.1", "advertise": "10.0.0.1"}, "(loopback)"),
    ({"bind": "10.0.0.1", "advertise": "0.0.0.0"}, "no address a peer could reach"),
    ({"http_port": 65_536}, "not a port"),
    ({"gossip_port": -1}, "not a port"),
    ({"http_port": 7070, "gossip_port": 7070}, "two different ports"),
    ({"cluster": "two words"}, "not a name"),
    ({"name": "x" * 65}, "not a name"),
    ({"failure_domain": "/rack"}, "not a name"),
    ({"gossip": "pigeons"}, "use embedded"),
    ({"gossip": "serf", "gossip_port": 7946}, "the Serf agent's own"),
    ({"gossip": "serf", "gossip_key": "@key"}, "the Serf agent's own"),
    ({"tls_agent_name": "spiffe://*"}, "the name of any client"),
    ({"tls_agent_name": "shoal://*/*/*"}, "the name of any client"),
    ({"gossip": "serf", "cores": 2}, "of its own"),
    ({"gossip": "serf", "serf_rpc": "a:b:c"}, "HOST:PORT, such as 10.0.0.5:7373"),
    ({"serf_rpc": "127.0.0.1:7373"}, "--gossip serf"),
    ({"serf_auth_key": "x"}, "--gossip serf"),
    ({"disk": "tape"}, "use one of"),
    ({"log_level": "loud"}, "'loud' is none: use one of debug, info, warning, error"),
    ({"log_format": "xml"}, "use one of auto, text, json"),
    ({"event_loop": "uv"}, "use direct or asyncio"),
    ({"bind": "10.0.0.1", "mdns": True}, "--cluster NAME"),
    ({"join": ["no port:x"]}, "HOST:PORT"),
    ({"join": ["a:0"]}, "not a port"),
    ({"join": [f"a:{port}" for port in range(1, 70)]}, "at most"),
    ({"expect": 0}, "give 1 to"),
    ({"cores": 0}, "give 1 to"),
    ({"cores": 2, "http_port": 0}, "counted up"),
    ({"weight": 0}, "out of range"),
    ({"scrub_bytes_per_s": -1}, "0 never looks"),
    ({"discovery_window": "11m"}, "10 minutes"),
    ({"heartbeat_interval": 5}, "give 10ms"),
    ({"expect": "three"}, "a whole number is needed"),
    ({"election_timeout": 299}, "three heartbeat"),
    ({"shutdown_timeout": 0}, "more than 0"),
    ({"replace_after": "500ms"}, "election timeout"),
    ({"replace_after": "99999m"}, "at most 7 days"),
    ({"replace_after": "8d"}, "at most 7 days"),
    ({"replace_after": "1w"}, "500ms, 3s, 2m or 1h"),
    ({"election_timeout": "soon"}, "duration"),
    ({"http_port": "seventy"}, "--http-port"),
    ({"colour": "red"}, "unknown setting"),
]


@pytest.mark.parametrize(("flags", "hint"), REFUSED, ids=[next(iter(flags)) for flags, _ in REFUSED])
def test_a_refusal_is_one_line_that_says_what_to_do(flags: dict[str, object], hint: str) -> None:
    """Every rule of validate() has an input here that only it refuses."""
    with pytest.raises(ConfigError) as caught:
        AgentConfig.from_sources({"data": "d"} | flags)
    assert hint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bad_value_names_its_source() -> None:
    """Somebody with three sources must know where to look."""
    with pytest.raises(ConfigError, match="SHOAL_EXPECT"):
        AgentConfig.from_sources({"data": "d"}, {"SHOAL_EXPECT": "many"})
    with pytest.raises(ConfigError, match="`expect` in the file"):
        AgentConfig.from_sources({"data": "d"}, {}, {"expect": True})
    with pytest.raises(ConfigError, match="no setting"):
        AgentConfig.from_sources({"data": "d"}, {}, {"expekt": 3})


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("10.0.0.5:7946", ("10.0.0.5", 7946)),
        ("host", ("host", 7946)),
        ("[::1]:80", ("::1", 80)),
        ("[::1]", ("::1", 7946)),
    ],
)
def test_addresses(text: str, parsed: tuple[str, int]) -> None:
    """The forms people write seeds in."""
    assert parse_host_port(text, "--join") == parsed


@given(st.text(max_size=40))
def test_any_address_is_parsed_or_refused(text: str) -> None:
    """No other exception than the one callers expect."""
    try:
        host, port = parse_host_port(text, "--join")
    except ConfigError:
        return
    assert host
    assert 1 <= port <= 65_535


def test_cores_become_agents_of_one_failure_domain() -> None:
    """Peers on a host share nothing but the host."""
    config = AgentConfig.from_sources(
        {
            "data": "d",
            "cores": 2,
            "http_port": 9000,
            "gossip_port": 9100,
            "name": "n",
            "failure_domain": "rack",
        }
    )
    first, second = config.for_core(0), config.for_core(1)
    assert (first.data, second.data) == ("d/core-0", "d/core-1")
    assert (second.http_port, second.gossip_port, second.name) == (9001, 9101, "n-1")
    assert first.failure_domain == second.failure_domain == "rack"
    free = AgentConfig(data="d", cores=2, http_port=0, gossip_port=0).for_core(1)
    assert (free.http_port, free.gossip_port) == (0, 0)


def test_mdns_is_for_loopback_and_named_clusters() -> None:
    """Two strangers on one network never meet by default."""
    assert AgentConfig(data="d").uses_mdns
    assert not AgentConfig(data="d", bind="10.0.0.1").uses_mdns
    assert AgentConfig(data="d", bind="10.0.0.1", cluster_is_explicit=True).uses_mdns
    assert not AgentConfig(data="d", mdns=False).uses_mdns


CONFIGURATIONS = st.builds(
    lambda **settings: AgentConfig.from_sources(settings),
    data=st.just("a directory"),
    http_port=st.none() | st.integers(0, 65_535),
    cluster=st.none() | st.just("blue"),
    join=st.lists(st.sampled_from(["a:1", "[::1]:2"]), max_size=2),
    expect=st.none() | st.integers(1, 9),
    mdns=st.none() | st.booleans(),
    election_timeout=st.integers(300, 9_000),
)


@given(CONFIGURATIONS)
def test_a_configuration_travels_through_the_environment(config: AgentConfig) -> None:
    """As it does to the agents of --cores."""
    assert AgentConfig.from_sources({}, config.as_environment()) == config


@pytest.mark.parametrize(("text", "expected_ms"), [("1h", 3_600_000), ("7d", 604_800_000), ("90s", 90_000)])
def test_long_durations_have_units_of_their_own(text: str, expected_ms: int) -> None:
    """As retention has them."""
    assert AgentConfig.from_sources({"data": "d", "replace_after": text}).replace_after_ms == expected_ms


def test_jwts_are_refused_where_nobody_is_asked() -> None:
    """Else whoever set them would believe that they count."""
    jwts = {"jwt_issuer": "https://a.example.com/", "jwt_audience": "fish", "jwt_keys": "keys.json"}
    SecuritySettings(**jwts).validate()
    with pytest.raises(ConfigError, match="authentication is off, so no JWT"):
        SecuritySettings(authentication="off", **jwts).validate()
    SecuritySettings(authentication="off").validate()
