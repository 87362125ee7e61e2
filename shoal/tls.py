"""TLS as a client speaks it: the context of its connections, and its failures in words that say what to do.

Law of this file: the standard library only. A certificate is always verified, its names too; nothing turns
that off.
"""

from __future__ import annotations

import ssl
from typing import Final

from shoal.credentials import PEM, Credentials
from shoal.errors import ClientError

_UNKNOWN_AUTHORITY: Final = (18, 19, 20, 21)  # X509_V_ERR_*: self-signed, or of an issuer that is not here
_OTHER_NAME: Final = (62, 63, 64)
_NOT_YET_VALID: Final = 9
_EXPIRED: Final = 10
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG")
SPEAKS_TLS: Final = "it seems to speak TLS: write https:// in place of http://"
TLS_ALERT: Final = b"\x15\x03"
"""The beginning of an answer to plain HTTP at a port with TLS."""
HTTP: Final = "http/1.1"
CERTIFIED: Final = "shoal-certificate"
"""Offered beside HTTP (ALPN, RFC 7301) by who has a certificate. An agent with tls_clients = none asks nobody
else for one."""


def client_context(credentials: Credentials) -> ssl.SSLContext:
    """TLS 1.2 or newer, and the peer's certificate has to name the host that was asked. Raises ClientError
    for a file that is no certificate, or a key of another one."""
    ca = credentials.ca
    try:
        is_text = ca is not None and ca.startswith(PEM)
        context = ssl.create_default_context(cafile=None if is_text else ca, cadata=ca if is_text else None)
    except (OSError, ValueError) as error:
        raise ClientError(f"ca: {'the text' if is_text else ca} has no certificate in PEM") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if credentials.certificate is not None:
        own = (
            f"{credentials.certificate} and {credentials.key}" if credentials.key else credentials.certificate
        )
        try:
            context.load_cert_chain(credentials.certificate, credentials.key, password=b"")
        except ssl.SSLError as error:
            differ = error.reason == "KEY_VALUES_MISMATCH"
            why = "the key is not the certificate's" if differ else "no certificate and its key, in PEM"
            raise ClientError(f"certificate: {own}: {why}") from error
        except (OSError, ValueError) as error:
            raise ClientError(f"certificate: {own}: {getattr(error, 'strerror', None) or error}") from error
        context.set_alpn_protocols([CERTIFIED, HTTP])
    return context


def tls_reason(error: BaseException) -> str | None:
    """The cause of a failed handshake, for people; None for no matter of TLS, or one that may pass."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return _unverified(error)
    if not isinstance(error, ssl.SSLError) or not error.reason:
        return None
    if error.reason in _NO_TLS:
        return "it does not speak TLS there: write http:// in place of https://, or ask its port with TLS"
    if "CERTIFICATE_REQUIRED" in error.reason:
        return (
            "it asks for a client's certificate: give certificate=FILE and key=FILE (SHOAL_CERTIFICATE,"
            " SHOAL_CERTIFICATE_KEY)"
        )
    if "ALERT" in error.reason and ("CERTIFICATE" in error.reason or "UNKNOWN_CA" in error.reason):
        words = error.reason.partition("ALERT_")[2].replace("_", " ").lower()
        return f"it refuses this client's certificate ({words}): give one of its authority"
    if "PROTOCOL_VERSION" in error.reason or error.reason == "UNSUPPORTED_PROTOCOL":
        return "it has no version of TLS that this client may use (1.2 or 1.3)"
    if "HANDSHAKE_FAILURE" in error.reason:
        return "it refuses the handshake: a client's certificate may be missing, or no cipher is shared"
    return None


def _unverified(error: ssl.SSLCertVerificationError) -> str:
    code, message = error.verify_code, str(error.verify_message).rstrip(".")
    if code in _UNKNOWN_AUTHORITY:
        return (
            "its certificate is of an authority that is not known here: give the authority's, ca=FILE"
            " (SHOAL_CA)"
        )
    if code in _OTHER_NAME:
        return f"its certificate is for other hosts ({message}): ask by a name that it has"
    if code == _EXPIRED:
        return "its certificate has expired: renew it there, if this host's clock is right"
    if code == _NOT_YET_VALID:
        return "its certificate is not valid yet: is this host's clock right?"
    return f"its certificate is not to be trusted: {message}"
