"""ops/shoal.service: by systemd's own judgement where there is systemd, and as text everywhere."""

from __future__ import annotations

import pathlib
import re
import shlex
import subprocess
import sys

import pytest
import typer

from shoal.agent.cli.main import app
from shoal.agent.cli.secure.store import CONFIGURATION, INSTALLED
from shoal.agent.config import AgentConfig
from tests.ops.found_tools import SYSTEMD

ROOT = pathlib.Path(__file__).resolve().parents[2]
UNIT = ROOT / "ops" / "shoal.service"
EXPOSURE_MAX = 2.5
KNOWN = {
    "Unit": "Description Wants After StartLimitIntervalSec StartLimitBurst",
    "Service": """Type ExecStart ExecReload SyslogIdentifier WatchdogSec TimeoutStartSec TimeoutStopSec
        Restart RestartSec RestartPreventExitStatus LimitNOFILE LimitMEMLOCK LimitCORE User Group
        StateDirectory
        StateDirectoryMode RuntimeDirectory UMask ProtectSystem ProtectHome PrivateTmp PrivateDevices
        PrivateUsers ProtectClock ProtectControlGroups ProtectHostname ProtectKernelLogs ProtectKernelModules
        ProtectKernelTunables ProtectProc CapabilityBoundingSet AmbientCapabilities NoNewPrivileges
        LockPersonality
        MemoryDenyWriteExecute RemoveIPC RestrictNamespaces RestrictRealtime RestrictSUIDSGID
        RestrictAddressFamilies SystemCallArchitectures SystemCallFilter SystemCallErrorNumber""",
    "Install": "WantedBy",
}
"""Directives of systemd.unit(5), systemd.service(5) and systemd.exec(5), version 252."""


def directives() -> list[tuple[str, str, str]]:
    """Section, name and value of each."""
    section, found = "", []
    for line in UNIT.read_text().splitlines():
        if match := re.fullmatch(r"\[(\w+)\]", line):
            section = match[1]
        elif line and not line.startswith("#"):
            name, equals, value = line.partition("=")
            assert equals, line
            found.append((section, name, value))
    return found


def value(name: str) -> str:
    (found,) = [value for _, one, value in directives() if one == name]
    return found


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    assert SYSTEMD is not None
    return subprocess.run([SYSTEMD, *arguments], capture_output=True, text=True, timeout=120, check=False)


def test_every_directive_is_known() -> None:
    """systemd ignores what it does not know: a misspelt one protects nothing."""
    assert [
        f"{section}: {name}" for section, name, _ in directives() if name not in KNOWN[section].split()
    ] == []


def test_the_command_is_one_that_the_agent_takes() -> None:
    """Each flag is one of `shoal agent`, and the values make a configuration."""
    program, *words = shlex.split(value("ExecStart"))
    assert program == "/opt/shoal/bin/shoal"
    assert words[0] == "agent"
    command = typer.main.get_command(app).commands["agent"]  # type: ignore[attr-defined]
    flags = {flag for one in command.params for flag in one.opts}
    given = dict(zip(words[1::2], words[2::2], strict=True))
    assert set(given) <= flags
    settings = {flag[2:].replace("-", "_"): text for flag, text in given.items() if flag != "--config"}
    assert AgentConfig.from_sources(settings).data == "/var/lib/shoal"
    assert value("StateDirectory") == "shoal"
    assert given["--config"] == f"{INSTALLED}/{CONFIGURATION}", "as `shoal secure` names it"
    assert f"chown -R {value('User')}:{value('Group')} {INSTALLED}" in UNIT.read_text()


def test_times_fit_the_agent() -> None:
    """systemd waits longer for an agent's end than the agent takes; a usage error is not tried again."""
    shutdown_s = AgentConfig(data="d").shutdown_timeout_ms / 1_000
    assert int(value("TimeoutStopSec")) > 2 * shutdown_s
    assert value("Type") == "notify"
    assert int(value("WatchdogSec")) >= 10
    assert value("RestartPreventExitStatus") == "2"


def test_io_uring_is_kept() -> None:
    """No filter takes its calls away; locked memory suffices for kernels that count it."""
    filters = [text for _, name, text in directives() if name == "SystemCallFilter"]
    assert filters == ["@system-service", "~@privileged"]
    assert value("LimitMEMLOCK") == "64M"
    if SYSTEMD is None:
        return
    allowed = analyze("syscall-filter", "@system-service").stdout
    assert "@aio" in allowed
    assert "@resources" in allowed
    assert "io_uring_setup" in analyze("syscall-filter", "@aio").stdout
    assert "io_uring" not in analyze("syscall-filter", "@privileged").stdout


if SYSTEMD is not None:

    def test_systemd_finds_no_fault(tmp_path: pathlib.Path) -> None:
        """With a program that is there."""
        program = pathlib.Path(sys.executable).parent / "shoal"
        unit = tmp_path / "shoal.service"
        unit.write_text(UNIT.read_text().replace("/opt/shoal/bin/shoal", str(program)))
        ran = analyze("verify", "--man=no", str(unit))
        assert (ran.returncode, [line for line in ran.stderr.splitlines() if "shoal.service" in line]) == (
            0,
            [],
        )

    def test_systemd_calls_it_hardened() -> None:
        """Its score of exposure: 0 is none, 10 is an unprotected service."""
        ran = analyze("security", "--offline=true", "--no-pager", str(UNIT))
        found = re.search(r"Overall exposure level for shoal.service: ([\d.]+)", ran.stdout)
        assert found is not None, ran.stdout + ran.stderr
        assert float(found[1]) <= EXPOSURE_MAX

    @pytest.mark.parametrize("fault", ["Tpye=notify", "WatchdogSec=soon"])
    def test_systemd_would_have_found_a_fault(tmp_path: pathlib.Path, fault: str) -> None:
        """So its silence means something."""
        unit = tmp_path / "shoal.service"
        unit.write_text(UNIT.read_text().replace("Type=notify", fault))
        assert "shoal.service" in analyze("verify", "--man=no", str(unit)).stderr
