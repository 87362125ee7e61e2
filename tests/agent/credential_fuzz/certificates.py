"""Hostile certificates, signed by the authority that agents believe or by others; and an independent reader.

A certificate is taken apart into its DER elements, these are changed, and the authority signs what comes out:
else nothing behind the signature would ever be met. The reader shares no code with the agent and none with
OpenSSL. It walks the bytes, and takes names for one thing only: what stands there.
"""

from __future__ import annotations

import datetime
import os
import pathlib
import random
import re
import ssl
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from certificates import CLUSTER, Authority, Issued, write_files
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from shoal.agent.tls.authority import Pair, make_authority
from shoal.agent.tls.contexts import Contexts, make_contexts, shake_hands

SEQUENCE, SET, OID, OCTETS, UTF8, PRINTABLE, IA5, BMP, TELETEX, UNIVERSAL = (
    0x30, 0x31, 0x06, 0x04, 0x0C, 0x13, 0x16, 0x1E, 0x14, 0x1C,
)  # fmt: skip
EXTENSIONS, VERSION = 0xA3, 0xA0
COMMON_NAME, ALTERNATIVE, PURPOSES = b"\x55\x04\x03", b"\x55\x1d\x11", b"\x55\x1d\x25"
OTHER_EXTENSIONS: Final = (
    b"\x55\x1d\x12",
    b"\x55\x1d\x0f",
    b"\x55\x1d\x13",
    b"\x55\x1d\x1e",
    b"\x2a\x03\x04",
)
CLIENT_AUTH, ANY_PURPOSE = bytes.fromhex("2b06010505070302"), bytes.fromhex("551d2500")
OTHER_PURPOSES: Final = (bytes.fromhex("2b06010505070301"), bytes.fromhex("2b06010505070303"), ANY_PURPOSE)
AGENT: Final = f"shoal://{CLUSTER}/agent".encode()
ANN: Final = f"shoal://{CLUSTER}/client/ann".encode()
URIS: Final = (
    AGENT, ANN, AGENT + b"\0", AGENT + b"\0.evil.example", b"\0" + AGENT, AGENT + b"/", AGENT + b" ",
    AGENT + b"\n",
    AGENT.upper(), b"SHOAL" + AGENT[5:], b"shoal://bird/agent", b"shoal://fish/agent2",
    b"shoal://fish/./agent",
    b"shoal://fish/client/../agent", b"shoal:///agent", b"shoal://fish/client/", b"shoal://fish/client/bo b",
    b"shoal://fish/client/" + b"a" * 64, b"shoal://fish/client/" + b"a" * 65, b"shoal://fish/client/ann\0bob",
    b"spiffe://fish/agent", b"http://ann", b"ann", b"", b"\xff\xfe", "shoal://f\u0456sh/agent".encode(),
    b"shoal://fish/%61gent", b"x" * 256, b"x" * 257, b"x" * 5_000,
    b"shoal://fish/agent,URI:shoal://fish/client/ann",
)  # fmt: skip
COMMON_NAMES: Final = (
    b"ann",
    b"ann\0bob",
    b"",
    b"a" * 64,
    b"shoal://fish/agent",
    b"\xff",
    b"ann bob",
    b"-ann",
    b"ann\n",
)
TEXT_TAGS: Final = (UTF8, PRINTABLE, IA5, BMP, TELETEX, UNIVERSAL, OCTETS)
MOMENTS: Final = (b"200101000000Z", b"491231235959Z", b"500101000000Z", b"261128000000Z", b"99991231235959Z",
                  b"20200101000000Z", b"2601010000Z", b"", b"nonsense", b"261301000000Z",
                  b"260101000000+0000")  # fmt: skip


# ---- DER ---------------------------------------------------------------------------------------------------


class NotDer(Exception):
    """Bytes that are no elements."""


@dataclass
class Element:
    """`parts`: of a constructed one that could be taken apart; else its bytes stand in `content`.
    `long_length`: it says its length in more bytes than it needs."""

    tag: int
    content: bytes = b""
    parts: list[Element] | None = None
    long_length: bool = False

    def to_bytes(self) -> bytes:
        content = self.content if self.parts is None else b"".join(part.to_bytes() for part in self.parts)
        return bytes((self.tag,)) + _length(len(content), long=self.long_length) + content

    def walk(self) -> Iterable[Element]:
        yield self
        for part in self.parts or ():
            yield from part.walk()


def _length(size: int, *, long: bool) -> bytes:
    if size < 128 and not long:
        return bytes((size,))
    digits = size.to_bytes((size.bit_length() + 7) // 8 or 1)
    digits = b"\0" + digits if long and size >= 128 else digits
    return bytes((0x80 | len(digits),)) + digits


def elements(data: bytes, *, deep: bool = True) -> list[Element]:
    """Raises NotDer unless they fill the bytes."""
    found, at = [], 0
    while at < len(data):
        if at + 2 > len(data) or data[at] & 0x1F == 0x1F:
            raise NotDer
        tag, size, at = data[at], data[at + 1], at + 2
        if size >= 0x80:
            count = size & 0x7F
            if not 0 < count <= 4 or at + count > len(data):
                raise NotDer
            size, at = int.from_bytes(data[at : at + count]), at + count
        content, at = data[at : at + size], at + size
        if at > len(data):
            raise NotDer
        found.append(Element(tag, content))
        if tag & 0x20 and deep:
            found[-1].parts = elements(content)
    return found


# ---- hostile ones ------------------------------------------------------------------------------------------


@dataclass
class Mint:
    """The authority's key signs what hostile hands have put together. All for one key of a holder."""

    directory: pathlib.Path
    authority: Authority = field(default_factory=Authority)
    other: Authority = field(default_factory=lambda: Authority("tests"))

    def __post_init__(self) -> None:
        self.bases: dict[str, Issued] = {
            "agent": self.authority.agent(),
            "client": self.authority.client("ann"),
            "named": self.authority.issue(common_name="ann", hosts=()),
        }
        self.contexts: Contexts = make_contexts(
            write_files(self.directory / "server", self.bases["agent"], self.authority.pem), CLUSTER
        )
        self._bodies = {name: _body(issued.cert) for name, issued in self.bases.items()}
        self._keys = {name: issued.key for name, issued in self.bases.items()}
        self._path = self.directory / "hostile.pem"

    def hostile(self, rng: random.Random) -> tuple[str, bytes, bool]:
        """The name of its base, the certificate in DER, and whether the authority has signed it."""
        name = rng.choice(tuple(self._bodies))
        (body,) = elements(self._bodies[name])
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            rng.choice((_names, _names, _names, _subject, _moments, _extension, _anywhere))(rng, body)
        data = body.to_bytes()
        if rng.random() < 0.1:
            at = rng.randrange(len(data))
            data = data[:at] + rng.choice((b"", b"\0", rng.randbytes(1), data[at : at + 8])) + data[at + 1 :]
        is_signed = rng.random() < 0.9
        signer = self.authority if is_signed else self.other
        signature = signer._key.sign(data, ec.ECDSA(hashes.SHA256()))
        if rng.random() < 0.03:
            at, is_signed = rng.randrange(len(signature)), False
            signature = (
                signature[:at] + bytes((signature[at] ^ (1 << rng.randrange(8)),)) + signature[at + 1 :]
            )
        algorithm = Element(SEQUENCE, bytes.fromhex("06082a8648ce3d040302"))
        bits = Element(0x03, b"\0" + signature)
        return name, Element(SEQUENCE, data + algorithm.to_bytes() + bits.to_bytes()).to_bytes(), is_signed

    def read(self, certificate: bytes) -> Any:
        """As Python reads it when nobody has verified it. None: it is none."""
        self._path.write_bytes(pem_of(certificate))
        try:
            return ssl._ssl._test_decode_cert(str(self._path))  # type: ignore[attr-defined]
        except (ssl.SSLError, ValueError):
            return None

    def shown(self, name: str, certificate: bytes) -> str | None:
        """Who the agent takes it for in a handshake; None where it does not come to one."""
        self._path.write_bytes(pem_of(certificate) + self._keys[name])
        os.chmod(self._path, 0o600)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            context.load_cert_chain(str(self._path))
        except (ssl.SSLError, ValueError):
            return None
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        server = self.contexts.server.wrap_bio(to_server, to_client, server_side=True)
        client = context.wrap_bio(to_client, to_server)
        try:
            shake_hands([client, server])
            client.read()
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            pass
        except ssl.SSLError:
            return None
        try:
            peer = self.contexts.peer_of(server)
        except ValueError:
            return None
        return None if peer is None else f"{'agent' if peer.is_agent else 'client'} {peer.name}"


def _body(pem: bytes) -> bytes:
    return x509.load_pem_x509_certificate(pem).tbs_certificate_bytes


def pem_of(der: bytes) -> bytes:
    """The same in PEM."""
    return ssl.DER_cert_to_PEM_cert(der).encode()


def _general_name(rng: random.Random) -> Element:
    text = rng.choice(URIS)
    if rng.random() < 0.2:
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice((b"\0", b"*", b"\x7f", b"%00", b"\xc3\xa9", b"\n", b"/")) + text[at:]
    match rng.randrange(12):
        case 0:
            return Element(0x82, rng.choice((b"localhost", b"*", text)))
        case 1:
            return Element(0x87, rng.choice((b"\x7f\0\0\1", b"", b"\1\2\3", bytes(16))))
        case 2:
            return Element(
                0xA0, parts=[Element(OID, b"\x2a\x03\x04"), Element(0xA0, parts=[Element(UTF8, text)])]
            )
        case 3:
            return Element(0xA4, parts=[_name(rng.choice(COMMON_NAMES), UTF8)])
        case 4:
            return Element(rng.choice((0x81, 0x83, 0x85, 0x88, 0xA6, 0x26, 0x89, 0x16)), text)
    return Element(0x86, text)


def _name(common_name: bytes, tag: int) -> Element:
    pair = Element(SEQUENCE, parts=[Element(OID, COMMON_NAME), Element(tag, common_name)])
    return Element(SEQUENCE, parts=[Element(SET, parts=[pair])])


def _extension_list(body: Element) -> list[Element]:
    for part in body.parts or ():
        if part.tag == EXTENSIONS and part.parts and part.parts[0].parts is not None:
            return part.parts[0].parts
    return []


def _make_extension(kind: bytes, content: bytes, *, critical: bool) -> Element:
    flag = [Element(0x01, b"\xff")] if critical else []
    return Element(SEQUENCE, parts=[Element(OID, kind), *flag, Element(OCTETS, content)])


def _names(rng: random.Random, body: Element) -> None:
    """Other alternative names: none, one, several, or the extension twice."""
    names = Element(SEQUENCE, parts=[_general_name(rng) for _ in range(rng.choice((0, 1, 1, 1, 2, 3)))])
    made = _make_extension(ALTERNATIVE, names.to_bytes(), critical=rng.random() < 0.2)
    found = _extension_list(body)
    if rng.random() < 0.9:
        found[:] = [one for one in found if not one.parts or one.parts[0].content != ALTERNATIVE]
    found.insert(rng.randrange(len(found) + 1), made)


def _subject(rng: random.Random, body: Element) -> None:
    """Another subject: common names of other types, with NULs, or two of them; in one part or in two."""
    names = [_name(rng.choice(COMMON_NAMES), rng.choice(TEXT_TAGS)) for _ in range(rng.choice((0, 1, 1, 2)))]
    parts = [part for name in names for part in name.parts or ()]
    if len(parts) > 1 and rng.random() < 0.5:
        parts = [Element(SET, parts=[pair for part in parts for pair in part.parts or ()])]
    found = [at for at, part in enumerate(body.parts or ()) if part.tag == SEQUENCE]
    if len(found) > 3 and body.parts is not None:
        body.parts[found[3]] = Element(SEQUENCE, parts=parts)


def _moments(rng: random.Random, body: Element) -> None:
    """Another validity."""
    for part in (part for part in body.walk() if part.tag in (0x17, 0x18)):
        if rng.random() < 0.6:
            part.content = rng.choice(MOMENTS)
            part.tag = rng.choice((0x17, 0x18))


def _extension(rng: random.Random, body: Element) -> None:
    """Another purpose, or extensions that are not known, twice, or empty."""
    found = _extension_list(body)
    kinds = rng.sample((CLIENT_AUTH, *OTHER_PURPOSES), rng.randrange(4))
    content = rng.choice(
        (Element(SEQUENCE, parts=[Element(OID, one) for one in kinds]).to_bytes(), b"", b"\x05\0")
    )
    kind = rng.choice((PURPOSES, PURPOSES, *OTHER_EXTENSIONS))
    if rng.random() < 0.7:
        found[:] = [one for one in found if not one.parts or one.parts[0].content != kind]
    found.append(_make_extension(kind, content, critical=rng.random() < 0.3))


def _anywhere(rng: random.Random, body: Element) -> None:
    """An element that is dropped, doubled, moved, empty, of another tag, or with a length in another form."""
    places = [one for one in body.walk() if one.parts]
    holder = rng.choice(places)
    assert holder.parts is not None
    at = rng.randrange(len(holder.parts))
    part = holder.parts[at]
    match rng.randrange(8):
        case 0:
            del holder.parts[at]
        case 1:
            holder.parts.insert(at, part)
        case 2:
            holder.parts.append(holder.parts.pop(at))
        case 3:
            holder.parts[at] = Element(part.tag)
        case 4:
            part.tag = rng.randrange(256)
        case 5:
            part.long_length = True
        case 6 if part.parts is None and part.content:
            spot = rng.randrange(len(part.content))
            part.content = part.content[:spot] + rng.randbytes(1) + part.content[spot + 1 :]
        case 7:
            holder.parts[at] = Element(part.tag, rng.randbytes(rng.randrange(20)))


# ---- who they are ------------------------------------------------------------------------------------------


@dataclass
class Facts:
    """What stands in a certificate, as far as it decides who it is."""

    uris: list[bytes] = field(default_factory=list)
    common_names: list[tuple[int, bytes]] = field(default_factory=list)
    alternatives: int = 0
    """Extensions of alternative names."""


def facts(certificate: bytes) -> Facts | None:
    """None for bytes whose names cannot be told."""
    try:
        (whole,) = elements(certificate)
        body = (whole.parts or [])[0]
        found = Facts()
        parts = [part for part in body.parts or [] if part.tag == SEQUENCE]
        for pair in (pair for part in parts[3].parts or () for pair in part.parts or ()):
            kind, value = pair.parts or []
            if kind.content == COMMON_NAME:
                found.common_names.append((value.tag, value.content))
        for one in _extension_list(body):
            if one.parts and one.parts[0].content == ALTERNATIVE:
                found.alternatives += 1
                (names,) = elements(one.parts[-1].content, deep=False)
                found.uris += [
                    name.content for name in elements(names.content, deep=False) if name.tag & 0x1F == 6
                ]
    except (NotDer, ValueError, IndexError):
        return None
    return found


def who(found: Facts | None) -> str | None:
    """The only one that a certificate with these names may be taken for."""
    if found is None or len(found.uris) > 1 or found.alternatives > 1:
        return None
    if found.uris:
        (uri,) = found.uris
        if re.fullmatch(rb"[!-~]{1,256}", uri) is None:
            return None
        text = uri.decode("ascii")
        if uri == AGENT:
            return f"agent {text}"
        if not text.lower().startswith("shoal://"):
            return f"client {text}"
        held = re.fullmatch(r"shoal://fish/client/([A-Za-z0-9][A-Za-z0-9._@-]{0,63})", text)
        return None if held is None else f"client {held[1]}"
    if len(found.common_names) != 1:
        return None
    tag, content = found.common_names[0]
    wide = {BMP: "utf-16-be", UNIVERSAL: "utf-32-be"}.get(tag, "utf-8")
    try:
        name = content.decode(wide)
    except ValueError:
        return None
    return f"client {name}" if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", name) else None


def is_in_time(certificate: bytes, now: datetime.datetime) -> bool:
    """By a reader of another library; also whether it is for clients."""
    try:
        with warnings.catch_warnings():  # of long names and odd numbers
            warnings.simplefilter("ignore")
            found = x509.load_der_x509_certificate(certificate)
            if not found.not_valid_before_utc <= now <= found.not_valid_after_utc:
                return False
            purposes = list(found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except x509.ExtensionNotFound:
        return True
    except (ValueError, x509.DuplicateExtension, x509.InvalidVersion, x509.UnsupportedGeneralNameType):
        return True  # that reader is stricter: what it does not read it does not judge
    names = {one.dotted_string for one in purposes}
    return not names.isdisjoint({"1.3.6.1.5.5.7.3.2", "2.5.29.37.0"})


def authority_pair() -> Pair:
    """One as `shoal secure` makes it."""
    return make_authority(CLUSTER, datetime.datetime.now(datetime.UTC), 10)
