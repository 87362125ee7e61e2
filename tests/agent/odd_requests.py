"""Requests as bytes: what plain clients send, what odd ones do, and what is no clean request at all."""

from __future__ import annotations

from http_fixtures import arrow_batch, arrow_stream

POST = b"POST /v1/topics/t/records HTTP/1.1\r\nHost: localhost\r\n"
GET = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n"

SMUGGLED = {
    "both lengths": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "length no number": POST + b"Content-Length: 1x\r\n\r\na",
    "negative length": POST + b"Content-Length: -1\r\n\r\na",
    "plus length": POST + b"Content-Length: +1\r\n\r\na",
    "unknown coding": POST + b"Transfer-Encoding: gzip\r\n\r\nabc",
    "folded header": POST + b"X-A: b\r\n c\r\nContent-Length: 1\r\n\r\na",
    "space before colon": POST + b"Content-Length : 1\r\n\r\na",
    "control in a header": POST + b"X-A: b\x00c\r\nContent-Length: 1\r\n\r\na",
    "no version": b"POST /v1/topics/t/records\r\n\r\n",
    "not HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 4 + b"\r\n\r\n",
    "long request line": b"GET /" + b"x" * 9_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "long header": b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX-A: " + b"x" * 9_000 + b"\r\n\r\n",
    "many headers": b"GET /livez HTTP/1.1\r\nHost: localhost\r\n" + b"X-A: b\r\n" * 100 + b"\r\n",
    "foreign absolute target": b"GET http://evil.example/livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "foreign absolute target alone": b"GET http://evil.example/livez HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "star": b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "connect": b"CONNECT evil.example:80 HTTP/1.1\r\nHost: evil.example:80\r\n\r\n",
}

JSON = b'{"records":[{"value":"v"},{"value":"w"}]}'
ARROW = arrow_stream(arrow_batch([b"x", b"y"]))
LINES = b'{"value":"a"}\n{"value":"b"}\n'


def post(body: bytes, *lines: bytes, target: bytes = b"/v1/topics/t/partitions/0/records") -> bytes:
    """An append with its length."""
    head = [b"POST %b HTTP/1.1" % target, b"Host: localhost", b"Content-Length: %d" % len(body), *lines]
    return b"\r\n".join((*head, b"", b"")) + body


ORDINARY = {
    "plain": post(b"a"),
    "json": post(JSON, b"Content-Type: application/json"),
    "arrow": post(ARROW, b"Content-Type: application/vnd.apache.arrow.stream"),
    "broken arrow": post(ARROW[:-90], b"Content-Type: application/vnd.apache.arrow.stream"),
    "lines": post(LINES, b"Content-Type: application/x-ndjson"),
    "by key": post(b"b", target=b"/v1/topics/t/records?key=k"),
    "unknown header": post(b"c", b"X-Other: 1"),
    "empty": post(b""),
    "acks none": post(b"d", target=b"/v1/topics/t/records?acks=none"),
    "producer": post(
        b"e", b"Shoal-Producer-Id: me", b"Shoal-Producer-Epoch: 0", b"Shoal-Producer-Sequence: 0"
    ),
    "a gap": post(b"f", b"Shoal-Producer-Id: you", b"Shoal-Producer-Epoch: 0", b"Shoal-Producer-Sequence: 3"),
    "no topic": post(b"g", target=b"/v1/topics/T!/records"),
    "new topic": post(b"h", target=b"/v1/topics/new/records"),
    "no partition": post(b"i", target=b"/v1/topics/t/partitions/9/records"),
    "bad query": post(b"j", target=b"/v1/topics/t/records?acks=some"),
    "bad json": post(b"{", b"Content-Type: application/json"),
    "foreign host": b"POST /v1/topics/t/records HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 1\r\n\r\nk",
    "foreign origin": post(b"l", b"Origin: http://evil.example"),
    "own origin": post(b"m", b"Origin: http://localhost"),
    "chunked": POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n",
    "trailers": POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nz\r\n0\r\nX-Sum: 1\r\n\r\n",
    "broken chunks": POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
    "expected": POST + b"Content-Length: 1\r\nExpect: 100-continue\r\n\r\nn",
    "expected otherwise": POST + b"Content-Length: 1\r\nExpect: 200-ok\r\n\r\no",
    "get": GET + b"\r\n",
    "get with a body": GET + b"Content-Length: 2\r\n\r\nxx",
    "head": b"HEAD /livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "nothing there": b"GET /none HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "wrong method": b"PUT /v1/topics/t/records HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx",
    "unknown method": b"FROB /livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "latin header": GET + b"X-Name: \xfcml\xe4ut\r\n\r\n",
    "absolute": b"GET http://localhost/livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "no host": b"GET /livez HTTP/1.1\r\n\r\n",
    "two hosts": GET + b"Host: localhost\r\n\r\n",
    "fragment": b"GET /livez#x HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "compressed": post(b"p", b"Content-Encoding: gzip"),
    "an upgrade nobody knows": GET + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    "other connection option": GET + b"Connection: keep-alive, X-Other\r\n\r\n",
    "empty line first": b"\r\n" + GET + b"\r\n",
    "bare line feeds": b"GET /livez HTTP/1.1\nHost: localhost\n\n",
    "blanks in the line": b"GET  /livez  HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "older": b"GET /livez HTTP/1.0\r\n\r\n",
    "older, kept": b"GET /livez HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    "newer": b"GET /livez HTTP/2.0\r\nHost: localhost\r\n\r\n",
    "last": GET + b"Connection: close\r\n\r\n",
    "last append": post(b"q", b"Connection: close"),
}
