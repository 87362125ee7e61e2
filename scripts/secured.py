"""Agents of benchmarks with TLS, by what `shoal secure init` makes for this host.

Law of this file: certificates and the option that names them; what is measured is no matter here.
"""

from __future__ import annotations

import os
import pathlib
import secrets
import ssl
import subprocess

import cluster
import environment

from shoal.credentials import Credentials
from shoal.tls import client_context

FILES = (("cert", "agent.crt"), ("key", "agent.key"), ("ca", "ca.crt"))


class Secured:
    """A cluster's name, and the files of its one host in `directory`."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.cluster = f"bench-{secrets.token_hex(4)}"
        directory.parent.mkdir(parents=True, exist_ok=True)
        shoal = environment.command("shoal")
        made = [shoal, "secure", "init", "--cluster", self.cluster, "--dir", str(directory)]
        subprocess.run([*made, "--address", "127.0.0.1"], check=True, capture_output=True)
        (self.directory,) = (directory / "hosts").iterdir()
        self.authority = str(self.directory / "ca.crt")
        os.environ["SSL_CERT_FILE"] = self.authority  # for urllib, by which benchmarks make topics

    def context(self) -> ssl.SSLContext:
        """For clients, as Shoal's own has it."""
        return client_context(Credentials(ca=self.authority))

    @property
    def variables(self) -> dict[str, str]:
        """The setting of an agent with TLS, as variables of its environment."""
        return {f"SHOAL_TLS_{kind.upper()}": str(self.directory / file) for kind, file in FILES}


class SecureCluster(cluster.LocalCluster):
    """Agents with TLS, by the certificate of this host."""

    def __init__(self, directory: pathlib.Path, secured: Secured) -> None:
        super().__init__(directory)
        self._secured = secured

    def options(self, name: str) -> list[str]:
        """With certificate, key and authority."""
        files = [(f"--tls-{kind}", str(self._secured.directory / file)) for kind, file in FILES]
        return [*super().options(name), *(word for pair in files for word in pair)]
