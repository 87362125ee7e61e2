"""The settings of TLS: files, and which names and versions are taken.

Law of this file: pure. Whether the files fit each other is found where they are read (agent/tls/contexts.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shoal.agent.settings import ConfigError

TLS_CLIENTS = ("none", "optional", "required")
TLS_VERSIONS = ("1.3", "1.2")
DAY_MS = 86_400_000
HSTS_MS_MAX = 3_650 * DAY_MS
AGENT_NAME_PATTERN = re.compile(r"[a-z][a-z0-9+.-]*://[!-~]{1,240}")


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """TLS on the HTTP port and to other agents: files, and the names and versions that are taken."""

    tls_cert: str | None = None
    tls_key: str | None = None
    tls_ca: str | None = None
    tls_clients: str = "optional"
    tls_minimum: str = "1.3"
    tls_agent_name: str | None = None
    hsts_ms: int = 365 * DAY_MS

    @property
    def is_on(self) -> bool:
        """Whether this agent speaks TLS: with all three files, or not at all."""
        return self.tls_cert is not None

    def validate(self) -> None:
        """Raises ConfigError."""
        files = {"--tls-cert": self.tls_cert, "--tls-key": self.tls_key, "--tls-ca": self.tls_ca}
        missing = [flag for flag, path in files.items() if path is None]
        if 0 < len(missing) < len(files):
            raise ConfigError(
                f"TLS needs three files, and {' and '.join(missing)} is missing: give the certificate, its"
                " key and the authority that signs those of all agents"
            )
        for flag, path in files.items():
            if path is not None and (not path or "\0" in path):
                raise ConfigError(f"{flag} {path!r} is not a path: give that of a PEM file")
        if self.tls_clients not in TLS_CLIENTS:
            raise ConfigError(
                f"tls_clients {self.tls_clients!r} is unknown: use one of {', '.join(TLS_CLIENTS)}"
            )
        if self.tls_minimum not in TLS_VERSIONS:
            raise ConfigError(f"tls_minimum {self.tls_minimum!r} is unknown: use {' or '.join(TLS_VERSIONS)}")
        if not 0 <= self.hsts_ms <= HSTS_MS_MAX:
            raise ConfigError(f"hsts {self.hsts_ms} ms is out of range: give 0 to 3650d, 365d is normal")
        pattern = self.tls_agent_name
        if pattern is not None and AGENT_NAME_PATTERN.fullmatch(pattern) is None:
            raise ConfigError(
                f"tls_agent_name {pattern!r} is not a URI: give one such as shoal://fish/agent, where *"
                " stands for any characters but /"
            )
        if pattern is not None and not pattern.partition("://")[2].strip("*/"):
            raise ConfigError(
                f"tls_agent_name {pattern!r} is the name of any client, too, and an agent may do everything:"
                " give a part that only names of agents have, such as spiffe://example.com/shoal/*"
            )
