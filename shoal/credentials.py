"""The proof of a client's identity: a token or a certificate, and the authority that the client believes.

Law of this file: the standard library only, for Spark's workers have no other. A secret shows in no repr,
error or log line; `Secret.reveal` is called where a request leaves, and nowhere else.
"""

from __future__ import annotations

import contextlib
import io
import ipaddress
import logging
import os
import re
import select
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final, TypedDict
from urllib.parse import urlsplit

from shoal.errors import ClientError

TOKEN_VARIABLE: Final = "SHOAL_TOKEN"  # noqa: S105 -- a name
CA_VARIABLE: Final = "SHOAL_CA"
CERTIFICATE_VARIABLE: Final = "SHOAL_CERTIFICATE"
KEY_VARIABLE: Final = "SHOAL_CERTIFICATE_KEY"
"""A command of `shoal consume --exec` finds the key of a message in SHOAL_KEY."""
TOKEN_CHARACTERS_MAX: Final = 4_096
"""A token of agents has some 70. One of another issuer carries claims, and a request's head has 8 KiB."""
FILE_BYTES_MAX: Final = 1 << 20
"""Of a file of certificates: those of all public authorities together have 220 KiB."""
PIPE_S: Final = 30.0
"""From a pipe, to its end: a secret's store may be asked for what comes out of it."""
PEM: Final = "-----BEGIN "
"""The beginning of certificates given as text in place of a file's name."""
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")


class Secret:
    """A text that shows nowhere by itself. A pickle has it: Spark's tasks need it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text, for the request that carries it."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(...)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Secret, (self._text,))


class FileSecret(Secret):
    """The token that a file has now, so that it can be exchanged under whoever runs. The file is looked at
    before each request, which costs two microseconds, and read when it is another one. One that does not fit,
    such as a half-written one, leaves the token before: agents say when that counts no more. A pickle has
    the text of its moment, since other hosts have no such file."""

    __slots__ = ("_path", "_stamp")

    def __init__(self, path: str) -> None:
        """Raises ClientError."""
        self._path = path
        self._stamp = _stamp_of(path)
        super().__init__(_read_token(path))

    def reveal(self) -> str:
        """The newest text."""
        stamp = _stamp_of(self._path)
        if stamp not in (None, self._stamp):
            self._stamp = stamp
            with contextlib.suppress(ClientError):
                self._text = _read_token(self._path)
        return self._text

    def __reduce__(self) -> tuple[Any, ...]:
        return (Secret, (self.reveal(),))


class CredentialOptions(TypedDict, total=False):
    """The proof of who asks, and whom the client believes; each has a variable of the environment.

    `token`: the token, or `@FILE` with it. `ca`: a file of certificates of authorities, in place of the
    system's. `certificate`, `key`: files with the client's own; a key may stand in the certificate's file.
    """

    token: str | None
    ca: str | None
    certificate: str | None
    key: str | None


@dataclass(frozen=True, slots=True)
class Credentials:
    """Checked ones. `ca` is the name of a file, or its text (PEM). `needs_tls`: for agents with TLS only."""

    token: Secret | None = None
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    needs_tls: bool = False

    @property
    def has_files(self) -> bool:
        """Whether TLS needs more than the system's authorities."""
        return self.ca is not None or self.certificate is not None

    @property
    def headers(self) -> dict[str, str]:
        """Of each request."""
        return {} if self.token is None else {"Authorization": f"Bearer {self.token.reveal()}"}


NO_CREDENTIALS: Final = Credentials()


@lru_cache(maxsize=256)
def tell_in_the_open(url: str) -> None:
    """The token goes there: a warning, the first time that it goes over a network without TLS. Without any
    configuration of `logging` that is a line on standard error."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        is_this_host = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_this_host = host == "localhost" or host.endswith(".localhost")
    if parts.scheme == "http" and not is_this_host:
        _warn_of_the_open()


@cache
def _warn_of_the_open() -> None:
    logging.getLogger("shoal.client").warning(
        "the token is sent in the open: agents are asked by http://, so whoever is on the way may read and"
        " use it; secure the cluster (`shoal secure init`) and ask by https://"
    )


def credentials_of(
    environment: Mapping[str, str],
    *,
    token: str | None = None,
    ca: str | None = None,
    certificate: str | None = None,
    key: str | None = None,
) -> Credentials:
    """The given ones; for those that are None the environment's. An empty text stands for none.

    Raises ClientError, one line without a secret, for a token that cannot be one and for an unfit file."""
    token = environment.get(TOKEN_VARIABLE) if token is None else token
    ca = (environment.get(CA_VARIABLE) if ca is None else ca) or None
    if certificate is None and key is None:
        certificate, key = environment.get(CERTIFICATE_VARIABLE), environment.get(KEY_VARIABLE)
    certificate, key = certificate or None, key or None
    if key is not None and certificate is None:
        raise ClientError("a key without its certificate: give certificate=FILE, too (SHOAL_CERTIFICATE)")
    if ca is not None and not ca.startswith(PEM):
        read_private(ca, "the authority's certificate", is_secret=False)
    if certificate is not None:
        read_private(certificate, "the client's certificate", is_secret=key is None)
    if key is not None:
        read_private(key, "the client's key")
    return Credentials(token_of(token) if token else None, ca, certificate, key)


def token_of(text: str) -> Secret:
    """The token that a text is, or that the file behind its `@` has. Raises ClientError."""
    return FileSecret(text[1:]) if text.startswith("@") else Secret(_checked(text, "the token"))


def _read_token(path: str) -> str:
    return _checked(read_private(path, "the token", is_read_once=True), f"the token in {path}")


def _stamp_of(path: str) -> tuple[int, ...] | None:
    """Another one for another content; None for a file that is not there, and for a pipe, which says what it
    says once."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _checked(text: str, source: str) -> str:
    text = text.strip()
    if not text:
        raise ClientError(f"{source} is empty")
    if len(text) > TOKEN_CHARACTERS_MAX:
        raise ClientError(f"{source} has {len(text)} characters; none has more than {TOKEN_CHARACTERS_MAX}")
    if text.lower().startswith("bearer "):
        raise ClientError(f"{source} begins with `Bearer`: leave that out")
    if _TOKEN.fullmatch(text) is None:
        raise ClientError(f"{source} has a blank, a line break or a character that no token has")
    return text


def _whole(file: io.FileIO, what: str) -> bytes:
    """To its end, or somewhat more than a file may have. Raises OSError, ClientError."""
    content, end_s = bytearray(), time.monotonic() + PIPE_S
    is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    while len(content) <= FILE_BYTES_MAX:
        if not is_regular and not select.select([file], [], [], max(0.0, end_s - time.monotonic()))[0]:
            raise ClientError(
                f"{what} is a pipe that nobody wrote to the end within {PIPE_S:g} s: name a file, or start"
                " its writer first"
            )
        piece = file.read(FILE_BYTES_MAX)
        if not piece:
            break
        content += piece
    return bytes(content)


def read_private(path: str, what: str, *, is_secret: bool = True, is_read_once: bool = False) -> str:
    """A file's text. A secret that every user of this host may read is refused: each of them could act under
    it, and nobody would see who did. `is_read_once`: it may be a pipe, as a shell makes one of `<(command)`,
    whose writer has PIPE_S. Raises ClientError."""
    if not path:
        raise ClientError(f"{what}: a file's name is missing")
    at_once = getattr(os, "O_NONBLOCK", 0)  # a pipe would wait for a writer; Windows has neither
    try:
        with open(path, "rb", buffering=0, opener=lambda name, flags: os.open(name, flags | at_once)) as file:
            mode = os.fstat(file.fileno()).st_mode
            if is_secret and stat.S_ISREG(mode) and mode & stat.S_IROTH and os.name == "posix":
                raise ClientError(f"every user may read {what} in {path}: `chmod o= {path}` first")
            if not stat.S_ISREG(mode) and not is_read_once:
                raise ClientError(f"{what}: {path} is no regular file, and it is read again: name one")
            data = _whole(file, f"{what}: {path}")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "that is no name of a file"
        raise ClientError(f"{what} cannot be read: {path!r}: {reason}") from None
    if len(data) > FILE_BYTES_MAX:
        raise ClientError(f"{what} cannot be read: {path} has more than {FILE_BYTES_MAX} bytes")
    try:
        return data.decode("ascii") if is_secret else data.decode()
    except UnicodeDecodeError:
        raise ClientError(f"{what} cannot be read: {path} is no text") from None
