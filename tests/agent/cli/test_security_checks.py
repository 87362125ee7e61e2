"""`shoal doctor --security`: what it finds of a host that `shoal secure` made, and of one that was spoilt."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from certificates import Authority, write_files

from shoal.agent.cli.main import main
from shoal.agent.cli.secure import checks
from shoal.agent.cli.secure.checks import KEY_OLD_DAYS, security_findings
from shoal.agent.cli.terminal.findings import Finding
from shoal.agent.process.config_source import ConfigSource

DAY_S = 86_400


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """The directory of host a."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SHOAL_")]:
        monkeypatch.delenv(name)
    words = ["secure", "init", "--cluster", "fish", "--name", "a", "--address", "10.0.0.1"]
    assert main([*words, "--days", "100", "--data", str(tmp_path / "data")]) == 0
    capsys.readouterr()
    return tmp_path / "secrets" / "hosts" / "a"


def found(host: Path, days_later: int = 0) -> dict[str, Finding]:
    """By the name of the check. The files are made and looked at by the clock of the machine."""
    source = ConfigSource({}, {}, str(host / "shoal.toml"))
    file = source.file()
    now_s = (host / "shoal.toml").stat().st_mtime + days_later * DAY_S
    findings = security_findings(source.settle(file), file, now_s)
    assert len({finding.check for finding in findings}) == len(findings)
    return {finding.check: finding for finding in findings}


def levels(findings: dict[str, Finding]) -> dict[str, str]:
    return {
        name: finding.level for name, finding in findings.items() if name not in ("posture", "core dumps")
    }


def test_a_host_as_it_was_made_has_no_fault(host: Path) -> None:
    """Every check that a file stands behind is there, and ok."""
    assert levels(found(host)) == dict.fromkeys(
        (
            "tls_cert",
            "tls_ca",
            "tls_key",
            "gossip_key",
            "configuration",
            "gossip key",
            "tls_cert mode",
            "tls_ca mode",
        ),
        "ok",
    )


@pytest.mark.parametrize(("days", "level"), [(60, "ok"), (71, "note"), (99, "note"), (101, "problem")])
def test_a_certificate_is_told_of_before_it_expires(host: Path, days: int, level: str) -> None:
    """From 30 days before; then as a problem. The command that helps is named."""
    finding = found(host, days)["tls_cert"]
    assert finding.level == level
    assert (finding.advice == "") == (level == "ok")
    assert "shoal secure renew" in finding.advice or level == "ok"


def mode(name: str, bits: int) -> Callable[[Path], None]:
    return lambda host: (host / name).chmod(bits)


def setting(line: str) -> Callable[[Path], None]:
    def write(host: Path) -> None:
        text = (host / "shoal.toml").read_text()
        key = line.split(" = ")[0]
        kept = [one for one in text.splitlines() if not one.startswith(f"{key} = ")]
        (host / "shoal.toml").write_text("\n".join([*kept, line, ""]))
        (host / "shoal.toml").chmod(0o644)

    return write


@pytest.mark.parametrize(
    ("change", "check", "said"),
    [
        (mode("agent.key", 0o644), "tls_key", "has mode 644: every user of this host may use it"),
        (mode("agent.key", 0o644), "TLS", "is open to every user of this host"),
        (mode("gossip.key", 0o604), "gossip_key", "has mode 604"),
        (mode("ca.crt", 0o666), "tls_ca mode", "every user of this host may change it"),
        (lambda host: (host / "gossip.key").unlink(), "gossip_key", "gossip.key: No such file"),
        (mode("shoal.toml", 0o644), "configuration", "every user of this host may use it"),
        (mode(".", 0o777), "directories", "every user of this host may exchange files in "),
        (setting(f'gossip_key = "{"A" * 43}="'), "configuration", "may use it"),
        (setting('advertise = "10.0.0.9"'), "names", "names 10.0.0.1, and others use 10.0.0.9"),
        (setting('cluster = "birds"'), "TLS", "is none of cluster birds"),
        (setting('tls_ca = "nix.crt"'), "TLS", "No such file"),
    ],
)
def test_what_was_spoilt_is_found(change: Callable[[Path], None], check: str, said: str, host: Path) -> None:
    """As a problem, with what to do; the others stay as they are."""
    change(host)
    finding = found(host)[check]
    assert finding.level == "problem"
    assert said in finding.found
    assert finding.advice


def test_a_certificate_of_another_authority_names_the_host(host: Path) -> None:
    """Also where it is none that `shoal secure` made: clients look at its names all the same."""
    authority = Authority()
    for hosts, level in ((("10.0.0.1",), None), (("10.0.0.9", "localhost"), "problem"), ((), "problem")):
        write_files(host, authority.issue("shoal://fish/agent", hosts=hosts), authority.pem)
        os.replace(host / "agent.ca", host / "ca.crt")
        finding = found(host).get("names")
        assert (None if finding is None else finding.level) == level, hosts
        if finding is not None:
            named = "10.0.0.9" if hosts else "no host"
            assert finding.found == f"names {named}, and others use 10.0.0.1"


def test_data_and_old_keys(host: Path, tmp_path: Path) -> None:
    """Others who may list the data; a key that is half a year old; a keyring that everybody may read."""
    (tmp_path / "data").mkdir(mode=0o755)
    (tmp_path / "data").chmod(0o755)
    assert levels(found(host))["data"] == "problem"
    (tmp_path / "data").chmod(0o700)
    (tmp_path / "data" / "gossip-keyring.json").write_text("[]")
    (tmp_path / "data" / "gossip-keyring.json").chmod(0o644)
    findings = found(host, KEY_OLD_DAYS + 2)
    assert findings["data"].level == "ok"
    assert findings["keyring"].level == "problem"
    assert findings["gossip key"].level == "note"
    assert "shoal keys install" in findings["gossip key"].advice


@pytest.mark.parametrize(("name", "what"), [("agent.key", "tls_key owner"), ("ca.crt", "tls_ca owner")])
def test_a_file_of_another_user(name: str, what: str, host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A problem, unless the data or the configuration are the same user's: then the agent is."""
    (host.parents[2] / "data").mkdir(mode=0o700)  # without a keyring, which is nobody's
    assert not [check for check in found(host) if check.endswith("owner")]
    strangers = {name}
    real = checks._stat

    def stat_of(path: str) -> os.stat_result | None:
        status = real(path)
        if status is None or os.path.basename(path) not in strangers:
            return status
        return os.stat_result([*status[:4], 4_000_000_001, *status[5:10]])

    monkeypatch.setattr(checks, "_stat", stat_of)
    finding = found(host)[what]
    assert finding.level == "problem"
    assert "belongs to user 4000000001" in finding.found
    for trusted in ("shoal.toml", "data"):
        strangers.add(trusted)
        assert what not in found(host)
        strangers.remove(trusted)


def test_the_command_shows_it(host: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A problem is exit code 1; a file that cannot be read, and an option without the other, are 2."""
    mode("agent.key", 0o644)(host)
    assert main(["doctor", "--security", "--config", str(host / "shoal.toml"), "--json"]) == 1
    shown = {one["check"]: one["level"] for one in json.loads(capsys.readouterr().out)["findings"]}
    assert shown["tls_key"] == "problem"
    assert main(["doctor", "--security", "--config", "nix.toml"]) == 2
    assert "nix.toml: No such file" in capsys.readouterr().err
    assert main(["doctor", "--config", "nix.toml"]) == 2
    assert "--config is for --security" in capsys.readouterr().err
