"""`shoal secure`: three hosts, clients and renewals; every fault is one line, and leaves nothing behind."""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from shoal.agent.cli.main import INTERRUPTED, main
from shoal.agent.cli.secure import places, store
from shoal.agent.config import AgentConfig
from shoal.agent.process.config_source import ConfigSource
from shoal.agent.security.posture import Posture
from shoal.agent.security.tokens import parse_token
from shoal.agent.tls.authority import Pair, belong_together, make_authority, read_issued
from shoal.agent.tls.contexts import make_contexts

INIT = ("secure", "init", "--cluster", "fish", "--name", "a", "--address", "10.0.0.1")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of its own, which is empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def secrets(here: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The authority of cluster fish, with host a."""
    assert main([*INIT]) == 0
    capsys.readouterr()
    return here / "secrets"


def snapshot(directory: Path) -> dict[str, bytes]:
    """Every file below, by its path."""
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def configuration(path: Path) -> AgentConfig:
    """As `shoal agent --config` reads it."""
    source = ConfigSource({}, {}, str(path))
    return source.settle(source.file())


def test_three_hosts_are_secured_by_six_commands(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The three of `shoal secure`; and that what they make fits, wherever it is copied. The token is shown,
    and stored nowhere. Files and directories are their owner's alone."""
    assert main([*INIT]) == 0
    shown = capsys.readouterr()
    assert main(["secure", "agent", "b", "--address", "10.0.0.2"]) == 0
    assert main(["secure", "agent", "c", "--address", "fd00::3", "--address", "c.example.com"]) == 0
    token = parse_token(shown.out.strip())
    stored = snapshot(here)
    assert not any(token.reveal().encode() in content for content in stored.values())
    assert token.reveal() not in shown.err
    for path in (here / "secrets").rglob("*"):
        wanted = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path
    hosts = here / "elsewhere"
    (here / "secrets" / "hosts").rename(hosts)  # a copy fits, wherever it is
    made = [configuration(hosts / name / "shoal.toml") for name in "abc"]
    assert [config.name for config in made] == ["a", "b", "c"]
    assert [config.advertised_host for config in made] == ["10.0.0.1", "10.0.0.2", "fd00::3"]
    assert [config.bind for config in made] == ["0.0.0.0", "0.0.0.0", "::"]
    assert [config.seeds for config in made] == [
        (),
        (("10.0.0.1", 7946),),
        (("10.0.0.1", 7946), ("10.0.0.2", 7946)),
    ]
    assert made[2].http.allowed_hosts == ("c.example.com",)
    assert len({(hosts / name / "gossip.key").read_text() for name in "abc"}) == 1
    for config in made:
        contexts = make_contexts(config.tls, config.cluster)
        assert contexts.rules.agent_name == "shoal://fish/agent"
        exposure = config.exposure(has_gossip_key=config.pool.gossip_key is not None)
        assert exposure.posture is Posture.SECURED
        assert config.security.first_token == token.hash()
    kept = tomllib.loads((here / "secrets" / "cluster.toml").read_text())
    assert kept["bootstrap_token_hash"] == token.hash().hex()


def test_each_host_is_told_what_comes_next(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In words that a shell takes, also with blanks in the path."""
    assert main([*INIT, "--dir", "my secrets"]) == 0
    assert "cp -rp 'my secrets/hosts/a' /etc/shoal" in capsys.readouterr().err
    assert main(["secure", "agent", "b", "--dir", "my secrets", "--address", "10.0.0.2"]) == 0
    assert "scp -rp 'my secrets/hosts/b' 10.0.0.2:/etc/shoal" in capsys.readouterr().err
    assert main(["secure", "agent", "c", "--dir", "my secrets", "--address", "fd00::3"]) == 0
    assert "scp -rp 'my secrets/hosts/c' '[fd00::3]:/etc/shoal'" in capsys.readouterr().err
    assert main(["secure", "client", "ann", "--dir", "my secrets"]) == 0
    assert "--cacert 'my secrets/clients/ann'/ca.crt" in capsys.readouterr().err


def test_a_second_run_changes_nothing(secrets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither of init, nor of agent, nor of client; with --force the old directory is kept beside."""
    assert main(["secure", "client", "ann"]) == 0
    before = snapshot(secrets)
    for command in (INIT, ("secure", "agent", "a", "--address", "10.0.0.9"), ("secure", "client", "ann")):
        capsys.readouterr()
        assert main([*command]) == 1
        assert "exists; give another directory, or --force" in capsys.readouterr().err
    assert snapshot(secrets) == before
    assert main(["secure", "agent", "a", "--address", "10.0.0.9", "--force"]) == 0
    assert configuration(secrets / "hosts" / "a" / "shoal.toml").advertise == "10.0.0.9"
    assert read_issued((secrets / "hosts" / "a.old-1" / "agent.crt").read_bytes()).hosts == ("10.0.0.1",)
    assert main(["secure", "agent", "b", "--address", "10.0.0.2"]) == 0  # which meets none that was replaced
    assert configuration(secrets / "hosts" / "b" / "shoal.toml").join == ("10.0.0.9:7946",)
    assert main([*INIT, "--force"]) == 0
    assert (secrets.parent / "secrets.old-1" / "authority.key").read_bytes() in before.values()
    assert (secrets / "authority.key").read_bytes() not in before.values()


LONG = "x" * 500


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("init", "--cluster", "a/b"), "'a/b' is not a name of a cluster"),
        (("init", "--cluster", ""), "is not a name of a cluster"),
        (("init", "--cluster", LONG), "is not a name of a cluster"),
        (("init", "--cluster", "fish", "--name", "../a"), "'../a' is not a name of an agent"),
        (("init", "--cluster", "fish", "--name", "a\0b"), "is not a name of an agent"),
        (("init", "--cluster", "fish", "--address", "10.0.0.1:7070"), "neither an IP address nor a DNS name"),
        (("init", "--cluster", "fish", "--address", "*.example.com"), "neither an IP address nor a DNS name"),
        (("init", "--cluster", "fish", "--address", LONG), "neither an IP address nor a DNS name"),
        (("init", "--cluster", "fish", "--address", "0.0.0.0"), "is nobody's address"),
        (("init", "--cluster", "fish", "--address", "224.0.0.1"), "is nobody's address"),
        (("init", "--cluster", "fish", "--dir", ""), "is not a path"),
        (("init", "--cluster", "fish", "--dir", "a\0b"), "is not a path"),
        (("init", "--cluster", "fish", "--dir", LONG), "File name too long"),
        (("init", "--cluster", "fish", "--dir", "no/such/parent"), "make it first: mkdir -p"),
        (("init", "--cluster", "fish", "--dir", "/proc/secrets"), "cannot make /proc/secrets"),
        (("init", "--cluster", "fish", "--years", "0"), "0 years is out of range"),
        (("init", "--cluster", "fish", "--days", "99999"), "99999 days is out of range"),
        (("init", "--cluster", "fish", "--data", "a\nb"), "is not a path"),
        (("agent", "b", "--days", "0"), "0 days is out of range; give 1 to 3650"),
        (("client", "ann", "--days", "-1"), "-1 days is out of range"),
        (("renew", "--days", "3651"), "3651 days is out of range"),
        (("client", ""), "a name is empty"),
        (("principal", "delete", "", "--yes"), "a name is empty"),
        (("token", "create", ""), "a name is empty"),
        (("agent", "b"), "--address is missing"),
        (("agent", "b", "--address", "10.0.0.2"), "secrets is no directory with an authority"),
        (("agent", "a/b", "--address", "10.0.0.2"), "'a/b' is not a name of an agent"),
        (("client", LONG), "is not a name of a client"),
        (("client", "bootstrap"), "bootstrap is no principal that a certificate proves"),
        (("client", "ann"), "`shoal secure init` makes an authority"),
        (("renew",), "secrets is no directory with an authority"),
    ],
    ids=lambda value: value[-1][:20] if isinstance(value, tuple) else None,
)
def test_bad_input_is_one_line_and_leaves_nothing(
    arguments: tuple[str, ...], said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No directory, no file, no token."""
    given = [*arguments]
    if given[0] == "init" and "--address" not in given:
        given += ["--address", "10.0.0.1"]
    if given[0] == "init" and "--name" not in given:
        given += ["--name", "a"]
    assert main(["secure", *given]) in ((2,) if "out of range" in said else (1, 2))
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.err.count("\n") == 1
    assert shown.out == ""
    assert list(here.iterdir()) == []


def test_a_file_in_the_place_of_the_directory(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Is left alone; a link to a directory is followed; a link to nothing makes one."""
    (here / "secrets").write_text("mine")
    assert main([*INIT]) == 1
    assert "secrets is not a directory" in capsys.readouterr().err
    assert (here / "secrets").read_text() == "mine"
    (here / "link").symlink_to("real")
    assert main([*INIT, "--dir", "link"]) == 0
    assert (here / "link").is_symlink()
    assert (here / "real" / "authority.key").exists()


def lost(name: str) -> Callable[[Path], None]:
    return lambda secrets: (secrets / name).unlink()


def written(name: str, content: bytes) -> Callable[[Path], None]:
    def write(secrets: Path) -> None:
        (secrets / name).write_bytes(content)

    return write


OTHER = make_authority("fish", datetime(2026, 11, 28, tzinfo=UTC), 1)
BIRDS = make_authority("birds", datetime(2026, 11, 28, tzinfo=UTC), 1)


def other_cluster(secrets: Path) -> None:
    """The whole authority is another's, and the file of the cluster is not."""
    (secrets / "ca.crt").write_bytes(BIRDS.certificate)
    (secrets / "authority.key").write_bytes(BIRDS.key)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lost("authority.key"), "authority.key: No such file or directory; without it nothing can be signed"),
        (lost("ca.crt"), "ca.crt: No such file"),
        (lost("gossip.key"), "gossip.key: No such file"),
        (lost("cluster.toml"), "cluster.toml: No such file"),
        (written("authority.key", b""), "authority.key is empty"),
        (written("authority.key", OTHER.key), "the authority's key is not that of its certificate"),
        (written("ca.crt", b"x" * (1 << 20) + b"x"), "ca.crt is too large"),
        (written("ca.crt", b"nonsense"), "this is no certificate"),
        (written("cluster.toml", b"cluster = "), "is not TOML"),
        (written("cluster.toml", b"cluster = 'fish'"), "put back the file that belongs to it"),
        (written("hosts/a/shoal.toml", b"\xff"), "is not TOML"),
        (other_cluster, "is of cluster 'fish', and the authority of birds"),
    ],
)
def test_an_authority_that_does_not_fit_signs_nothing(
    change: Callable[[Path], None], said: str, secrets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line says which file, and nothing is made."""
    change(secrets)
    assert main(["secure", "agent", "b", "--address", "10.0.0.2"]) == 1
    shown = capsys.readouterr().err
    assert said in shown
    assert shown.count("\n") == 1
    assert not (secrets / "hosts" / "b").exists()


def test_a_clock_that_is_wrong_makes_nothing(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that was never set; one outside of the authority's time."""
    monkeypatch.setattr(store, "now", lambda: datetime(1970, 1, 1, tzinfo=UTC))
    assert main([*INIT]) == 1
    assert "clock says 1970-01-01: set it first" in capsys.readouterr().err
    assert list(here.iterdir()) == []
    monkeypatch.undo()
    monkeypatch.chdir(here)
    assert main([*INIT, "--years", "1"]) == 0
    in_two_years = store.now() + timedelta(days=730)
    monkeypatch.setattr(store, "now", lambda: in_two_years)
    assert main(["secure", "client", "ann"]) == 1
    assert "set the clock, or make a new authority" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fault", "force"), [(KeyboardInterrupt, True), (OSError(28, "No space left on device"), False)]
)
def test_an_interruption_leaves_all_or_nothing(
    fault: type[BaseException] | BaseException,
    force: bool,
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """At every file and every rename: no directory, or the old one, or the new one; never a part, and nothing
    beside. Afterwards the command works."""
    if force:
        assert main([*INIT]) == 0
    before = snapshot(here)
    words = [*INIT, *(["--force"] if force else [])]
    real_fsync, real_rename = os.fsync, os.rename
    for number in range(100):
        calls = iter(range(1_000))

        def strike(number: int = number, calls: object = calls) -> None:
            if next(calls) == number:  # type: ignore[call-overload]
                raise fault

        def fsync(handle: int, strike: Callable[[], None] = strike) -> None:
            strike()
            real_fsync(handle)

        def rename(one: str, other: str, strike: Callable[[], None] = strike) -> None:
            strike()
            real_rename(one, other)

        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(os, "rename", rename)
        code = main(words)
        monkeypatch.setattr(os, "fsync", real_fsync)
        monkeypatch.setattr(os, "rename", real_rename)
        if code == 0 or ((here / "secrets" / "authority.key").exists() and snapshot(here) != before):
            break  # all of it is there; only the last sync was struck
        assert code == (INTERRUPTED if fault is KeyboardInterrupt else 1)
        assert snapshot(here) == before, number
        assert not [path for path in here.iterdir() if path.name.startswith(places.ASIDE)]
    assert number > 10
    capsys.readouterr()
    assert main(["secure", "agent", "b", "--address", "10.0.0.2"]) == 0


def test_a_renewal_has_the_same_names_and_another_key(
    secrets: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By name; all with few days left; or none."""
    assert main(["secure", "client", "ann", "--days", "40"]) == 0
    host, client = secrets / "hosts" / "a" / "agent", secrets / "clients" / "ann" / "client"
    before = snapshot(secrets)
    capsys.readouterr()
    assert main(["secure", "renew"]) == 0
    assert "none has under 30 days left" in capsys.readouterr().err
    assert snapshot(secrets) == before
    in_twenty_days = store.now() + timedelta(days=20)
    monkeypatch.setattr(store, "now", lambda: in_twenty_days)
    monkeypatch.setattr("shoal.agent.cli.secure.renewal.now", lambda: in_twenty_days)
    for words, stem in ((["secure", "renew"], client), (["secure", "renew", "a"], host)):
        assert main(words) == 0
        said = capsys.readouterr().err
        assert f"copy secrets/{stem.relative_to(secrets)}.crt" in said
        assert said.endswith("1 certificate renewed\n")
        old = Pair(before[f"{stem}.crt"], before[f"{stem}.key"])
        new = Pair(Path(f"{stem}.crt").read_bytes(), Path(f"{stem}.key").read_bytes())
        assert read_issued(new.certificate)[:4] == read_issued(old.certificate)[:4]
        assert read_issued(new.certificate).not_after > read_issued(old.certificate).not_after
        assert belong_together(new)
        assert new.key != old.key
        assert stat.S_IMODE(Path(f"{stem}.key").stat().st_mode) == 0o600
    assert len(list(secrets.rglob(f"{places.ASIDE}*"))) == 0


def test_a_certificate_that_was_replaced_is_not_renewed(
    secrets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither with all others nor by name: whoever replaced it does not want it."""
    for force in ((), ("--force",)):
        assert main(["secure", "client", "ann", *force]) == 0
    before = snapshot(secrets / "clients" / "ann.old-1")
    capsys.readouterr()
    assert main(["secure", "renew", "--within", "9999"]) == 0
    assert capsys.readouterr().err.endswith("2 certificates renewed\n")
    assert main(["secure", "renew", "ann.old-1"]) == 1
    assert "no client ann.old-1" in capsys.readouterr().err
    assert snapshot(secrets / "clients" / "ann.old-1") == before


def test_a_renewal_of_what_is_not_there(secrets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown name, a certificate of somebody else: said, and nothing is changed."""
    before = snapshot(secrets)
    assert main(["secure", "renew", "a", "b"]) == 1
    assert "secrets has no host and no client b" in capsys.readouterr().err
    assert snapshot(secrets) == before
    (secrets / "hosts" / "a" / "agent.crt").write_bytes(OTHER.certificate)
    assert main(["secure", "renew", "a"]) == 1
    assert "an authority has no successor" in capsys.readouterr().err


def test_hosts_have_defaults(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --address and --name: the host's own."""
    monkeypatch.setattr("socket.gethostname", lambda: "shoal-1.example.com")
    monkeypatch.setattr("shoal.agent.cli.secure.command._own_address", lambda: "10.9.8.7")
    assert main(["secure", "init", "--cluster", "fish"]) == 0
    issued = read_issued((here / "secrets" / "hosts" / "shoal-1" / "agent.crt").read_bytes())
    assert issued[1:4] == ("fish", "shoal-1", ("10.9.8.7", "shoal-1.example.com"))
