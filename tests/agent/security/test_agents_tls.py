"""Agents speak to each other as each of them speaks itself."""

from __future__ import annotations

import ssl

import pytest

from shoal.agent.security.agents_tls import OtherScheme, context_for, in_the_open, why_not_connected


def test_schemes_are_not_mixed() -> None:
    """Nothing is said in the open to an agent that could have proven itself, nor the reverse."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    assert context_for("http://10.0.0.1:7070", in_the_open) is None
    assert context_for("https://10.0.0.1:7070", lambda: context) is context
    with pytest.raises(OtherScheme, match="it speaks TLS and this agent does not"):
        context_for("https://10.0.0.1:7070", in_the_open)
    with pytest.raises(OtherScheme, match="it does not speak TLS and this agent does"):
        context_for("http://10.0.0.1:7070", lambda: context)


def test_faults_in_words() -> None:
    """Those of certificates by their number, others by TLS' own name."""
    fault = ssl.SSLCertVerificationError(1, "x")
    fault.verify_code = 10
    assert why_not_connected(fault) == "its certificate has expired"
    assert why_not_connected(OSError("No route to host")) == "No route to host"
    assert why_not_connected(TimeoutError()) == ""
