"""Malformed, ambiguous and unusual requests, with the answer of the server to each.

The cases follow RFC 9110 and 9112, the published tables of HTTP/1.1 test tools, and the known ways to smuggle requests.
`python -m tests.stress.fuzz` sends each one whole, byte by byte, after another request, and pipelined.
"""

from __future__ import annotations

from dataclasses import dataclass

GET = b"GET /svc/node HTTP/1.1\r\n"
POST = b"POST /svc/node HTTP/1.1\r\n"
HOST = b"Host: n\r\n"
END = b"\r\n"
SECOND = GET + HOST + END  # a smuggled request would be answered with 200
CHUNKED = POST + HOST + b"Transfer-Encoding: chunked\r\n\r\n"


@dataclass(frozen=True)
class Case:
    name: str
    sent: bytes
    codes: tuple[int, ...]  # of all responses, until the server closes after the end of the input


def _get(*lines: bytes) -> bytes:
    return GET + HOST + b"".join(line + b"\r\n" for line in lines) + END


def _post(*lines: bytes, body: bytes = b"") -> bytes:
    return POST + HOST + b"".join(line + b"\r\n" for line in lines) + END + body


def _target(target: bytes) -> bytes:
    return b"GET " + target + b" HTTP/1.1\r\n" + HOST + END


def _chunks(body: bytes) -> bytes:
    return CHUNKED + body


Row = tuple[bytes, *tuple[int, ...]]  # sent, and the codes
_FRAMING: dict[str, Row] = {
    # length and chunks together
    "a length before chunks": (_post(b"Content-Length: 6", b"Transfer-Encoding: chunked", body=b"0\r\n\r\nG"), 400),
    "chunks before a length": (_post(b"Transfer-Encoding: chunked", b"Content-Length: 6", body=b"0\r\n\r\nG"), 400),
    "chunks and a length of zero": (_post(b"Transfer-Encoding: chunked", b"Content-Length: 0", body=b"0\r\n\r\n"), 400),
    # the length
    "two equal lengths": (_post(b"Content-Length: 5", b"Content-Length: 5", body=b"hello"), 400),
    "two lengths": (_post(b"Content-Length: 5", b"Content-Length: 0", body=b"hello"), 400),
    "a list of equal lengths": (_post(b"Content-Length: 5, 5", body=b"hello"), 400),
    "a length with a plus sign": (_post(b"Content-Length: +5", body=b"hello"), 400),
    "a negative length": (_post(b"Content-Length: -1"), 400),
    "a length in hexadecimal": (_post(b"Content-Length: 0x5", body=b"hello"), 400),
    "a length with an exponent": (_post(b"Content-Length: 5e0", body=b"hello"), 400),
    "a length with a point": (_post(b"Content-Length: 5.0", body=b"hello"), 400),
    "a length with a space inside": (_post(b"Content-Length: 1 0"), 400),
    "a length in quotes": (_post(b'Content-Length: "5"', body=b"hello"), 400),
    "a length in other digits": (_post("Content-Length: \u0665".encode(), body=b"hello"), 400),
    "an empty length": (_post(b"Content-Length:"), 400),
    "a length beyond 64 bits": (_post(b"Content-Length: 18446744073709551621", body=b"hello"), 400),
    "a space before the colon of the length": (_post(b"Content-Length : 5", body=b"hello"), 400),
    "a tab before the colon of the length": (_post(b"Content-Length\t: 5", body=b"hello"), 400),
    "a length with trailing spaces": (_post(b"Content-Length: 5   ", body=b"hello") + SECOND, 405, 200),
    "a length of zero with a trailing space": (_post(b"Content-Length: 0 ") + SECOND, 405, 200),
    "a length with leading zeros": (_post(b"Content-Length: 0005", body=b"hello") + SECOND, 405, 200),
    "a length of a body that is a request": (_post(b"Content-Length: %d" % len(SECOND), body=SECOND), 405),
    "a body on GET": (_get(b"Content-Length: 5") + b"hello" + SECOND, 200, 200),
    "a length that is too short": (_post(b"Content-Length: 1", body=b"hello") + SECOND, 405, 405),  # the method elloGET
    "a length that is too large": (_post(b"Content-Length: 70000"), 413),
    # the encoding
    "an encoding that is not chunked": (_post(b"Transfer-Encoding: gzip", body=b"hello"), 400),
    "chunked is not the last encoding": (_post(b"Transfer-Encoding: chunked, gzip", body=b"0\r\n\r\n"), 400),
    "identity": (_post(b"Transfer-Encoding: identity", body=b"hello"), 400),
    "an encoding with a letter more": (_post(b"Transfer-Encoding: xchunked", body=b"0\r\n\r\n"), 400),
    "an encoding in quotes": (_post(b'Transfer-Encoding: "chunked"', body=b"0\r\n\r\n"), 400),
    "a vertical tab before chunked": (_post(b"Transfer-Encoding: \x0bchunked", body=b"0\r\n\r\n"), 400),
    "NUL after chunked": (_post(b"Transfer-Encoding: chunked\x00", body=b"0\r\n\r\n"), 400),
    "a bare CR after chunked": (_post(b"Transfer-Encoding: chunked\r", body=b"0\r\n\r\n"), 400),
    "a space before the colon of the encoding": (_post(b"Transfer-Encoding : chunked", body=b"0\r\n\r\n"), 400),
    "a folded encoding": (_post(b"Transfer-Encoding:\r\n chunked", body=b"0\r\n\r\n"), 400),
    "an underscore in the name of the encoding": (_post(b"Transfer_Encoding: chunked") + SECOND, 405, 200),
    "a chunked request closes the connection": (_chunks(b"5\r\nhello\r\n0\r\n\r\n") + SECOND, 405),
    "chunked in capitals": (_post(b"transfer-ENCODING: CHUNKED", body=b"0\r\n\r\n") + SECOND, 405),
    # chunks
    "a chunk size that is not a number": (_chunks(b"G\r\nhello\r\n0\r\n\r\n"), 400),
    "a chunk size with 0x": (_chunks(b"0x5\r\nhello\r\n0\r\n\r\n"), 400),
    "a chunk size with a sign": (_chunks(b"+5\r\nhello\r\n0\r\n\r\n"), 400),
    "a negative chunk size": (_chunks(b"-1\r\nhello\r\n0\r\n\r\n"), 400),
    "a chunk size with an underscore": (_chunks(b"1_0\r\n" + b"a" * 16 + b"\r\n0\r\n\r\n"), 400),
    "a chunk size beyond 64 bits": (_chunks(b"10000000000000005\r\nhello\r\n0\r\n\r\n"), 400),
    "an empty chunk size": (_chunks(b"\r\nhello\r\n0\r\n\r\n"), 400),
    "a space before a chunk size": (_chunks(b" 5\r\nhello\r\n0\r\n\r\n"), 400),
    "a chunk that is too long for its size": (_chunks(b"4\r\nhello\r\n0\r\n\r\n"), 400),
    "a chunk that is too short for its size": (_chunks(b"6\r\nhello\r\n0\r\n\r\n"), 400),
    "a chunk without CRLF at its end": (_chunks(b"5\r\nhello0\r\n\r\n"), 400),
    "LF after a chunk size": (_chunks(b"5\nhello\r\n0\r\n\r\n"), 400),
    "LF in a chunk extension": (_chunks(b"5;a\nhello\r\n0\r\n\r\n"), 400),
    "CR in a chunk extension": (_chunks(b"5;a\rb\r\nhello\r\n0\r\n\r\n"), 400),
    "NUL in a chunk extension": (_chunks(b"5;a\x00\r\nhello\r\n0\r\n\r\n"), 400),
    "a chunk extension": (_chunks(b'5;a=b;c="d"\r\nhello\r\n0\r\n\r\n'), 405),
    "a trailer": (_chunks(b"0\r\nX: y\r\n\r\n"), 405),
    "a length in a trailer": (_chunks(b"0\r\nContent-Length: 5\r\n\r\n") + SECOND, 400),
    "a Host in a trailer": (_chunks(b"0\r\nHost: other\r\n\r\n"), 405),
    "a malformed trailer": (_chunks(b"0\r\nX Y: z\r\n\r\n"), 400),
    "chunks without an end": (_chunks(b"5\r\nhello\r\n"),),
    "chunks in HTTP/1.0": (
        b"POST /svc/node HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SECOND,
        405,
    ),
}
_REQUEST_LINES: dict[str, Row] = {
    "no version": (b"GET /svc/node\r\n\r\n", 400),
    "a space instead of the version": (b"GET /svc/node \r\n\r\n", 400),
    "HTTP/0.9": (b"GET /svc/node HTTP/0.9\r\n" + HOST + END, 505),
    "HTTP/1.2": (b"GET /svc/node HTTP/1.2\r\n" + HOST + END, 505),
    "HTTP/2.0": (b"GET /svc/node HTTP/2.0\r\n" + HOST + END, 505),
    "HTTP/9.9": (b"GET /svc/node HTTP/9.9\r\n" + HOST + END, 505),
    "HTTP/1.10": (b"GET /svc/node HTTP/1.10\r\n" + HOST + END, 400),
    "HTTP/01.1": (b"GET /svc/node HTTP/01.1\r\n" + HOST + END, 400),
    "HTTP/1": (b"GET /svc/node HTTP/1\r\n" + HOST + END, 400),
    "http/1.1": (b"GET /svc/node http/1.1\r\n" + HOST + END, 400),
    "a space in the version": (b"GET /svc/node HTTP/ 1.1\r\n" + HOST + END, 400),
    "another protocol": (b"GET /svc/node FTP/1.1\r\n" + HOST + END, 400),
    "the preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "a TLS handshake": (bytes.fromhex("16030100c2010000be0303") + bytes(range(64)), 400),
    "a word": (b"hello\r\n\r\n", 400),
    "binary data": (b"\xff\xfe\xfd\r\n\r\n", 400),
    "NUL bytes": (b"\x00\x00\x00\r\n\r\n", 400),
    "two spaces before the target": (b"GET  /svc/node HTTP/1.1\r\n" + HOST + END, 400),
    "two spaces before the version": (b"GET /svc/node  HTTP/1.1\r\n" + HOST + END, 400),
    "tabs instead of spaces": (b"GET\t/svc/node\tHTTP/1.1\r\n" + HOST + END, 400),
    "a space before the method": (b" GET /svc/node HTTP/1.1\r\n" + HOST + END, 400),
    "a space after the version": (b"GET /svc/node HTTP/1.1 \r\n" + HOST + END, 400),
    "a bare CR after the version": (b"GET /svc/node HTTP/1.1\rHost: n\r\n\r\n", 400),
    "empty lines before the request": (b"\r\n\r\n\r\n" + SECOND, 200),
    "a space in a line before the request": (b" \r\n" + SECOND, 400),
    "a method in small letters": (b"get /svc/node HTTP/1.1\r\n" + HOST + END, 405),
    "an unknown method": (b"BREW /svc/node HTTP/1.1\r\n" + HOST + END + SECOND, 405),
    "an unknown method on an unknown path": (b"BREW /nothing HTTP/1.1\r\n" + HOST + END, 404),
    "a method with a delimiter": (b"GE(T /svc/node HTTP/1.1\r\n" + HOST + END, 400),
    "no method": (b" /svc/node HTTP/1.1\r\n" + HOST + END, 400),
    "PUT": (b"PUT /svc/node HTTP/1.1\r\n" + HOST + END + SECOND, 405, 200),
    "TRACE": (b"TRACE /svc/node HTTP/1.1\r\n" + HOST + END, 405),
    "OPTIONS *": (b"OPTIONS * HTTP/1.1\r\n" + HOST + END, 404),
    "GET *": (_target(b"*"), 404),
    "CONNECT": (b"CONNECT n:443 HTTP/1.1\r\n" + HOST + END + SECOND, 404),
    "a relative target": (_target(b"svc/node"), 400),
    "a space in the target": (_target(b"/svc/no de"), 400),
    "NUL in the target": (_target(b"/svc/node\x00"), 400),
    "a control character in the target": (_target(b"/svc/\x07node"), 400),
    "DEL in the target": (_target(b"/svc/\x7fnode"), 400),
    "bytes beyond ASCII in the target": (_target(b"/svc/n\xc3\xb6de"), 400),
    "a fragment": (_target(b"/svc/node#part"), 404),
    "NUL in percent encoding": (_target(b"/svc/node%00"), 404),
    "a line break in percent encoding": (_target(b"/svc/node%0d%0aX:%20y"), 404),
    "a slash in percent encoding": (_target(b"/svc%2fnode"), 404),
    "dots": (_target(b"/svc/x/../node"), 404),
    "dots in percent encoding": (_target(b"/svc/x/%2e%2e/node"), 404),
    "a backslash": (_target(b"\\svc\\node"), 400),
    "two slashes": (_target(b"//svc/node"), 404),
    "a percent sign without digits": (_target(b"/svc/node/services/%zz/health"), 404),
    "overlong UTF-8": (_target(b"/svc/node/services/%c0%af/health"), 404),
    "an absolute target": (_target(b"http://other.example/svc/node"), 200),
    "an absolute target without a path": (_target(b"http://other.example"), 401),
    "an absolute target with another scheme": (_target(b"ftp://other.example/svc/node"), 200),
    "a target that is too long": (_target(b"/" + b"a" * 8200), 414),
    "a query that is too long": (_target(b"/svc/node?" + b"a" * 8200), 414),
    "a method that is too long": (b"A" * 9000, 414),
    "a path of the operator without a token": (_target(b"/details"), 401),
    "a path of the operator with another Host": (b"GET /details HTTP/1.1\r\nHost: localhost\r\n\r\n", 401),
    "an absolute target of the operator": (_target(b"http://localhost/details"), 401),
    "POST to the operator without a token": (b"POST /details HTTP/1.1\r\n" + HOST + END, 401),
}
_HEADS: dict[str, Row] = {
    "no Host": (GET + END, 400),
    "no Host in HTTP/1.0": (b"GET /svc/node HTTP/1.0\r\n\r\n", 200),
    "two Hosts": (GET + HOST + HOST + END, 400),
    "two different Hosts": (GET + HOST + b"Host: m\r\n\r\n", 400),
    "an empty Host": (GET + b"Host:\r\n\r\n", 200),
    "a Host with a path": (GET + b"Host: n/svc\r\n\r\n", 400),
    "a Host with a user": (GET + b"Host: me@n\r\n\r\n", 400),
    "a Host with a space": (GET + b"Host: n m\r\n\r\n", 400),
    "a list of Hosts": (GET + b"Host: n, m\r\n\r\n", 400),
    "a Host with a wrong port": (GET + b"Host: n:8x\r\n\r\n", 400),
    "a Host in IPv6": (GET + b"Host: [::1]:8420\r\n\r\n", 200),
    "a header without a colon": (_get(b"invalid"), 400),
    "a header without a name": (_get(b": y"), 400),
    "a space in the name of a header": (_get(b"X Y: z"), 400),
    "a space before the colon": (_get(b"X : y"), 400),
    "brackets in the name of a header": (_get(b"X[]: y"), 400),
    "bytes beyond ASCII in the name of a header": (_get(b"X\xe9: y"), 400),
    "NUL in the name of a header": (_get(b"X\x00: y"), 400),
    "NUL in a header": (_get(b"X: \x00"), 400),
    "a control character in a header": (_get(b"X: \x07"), 400),
    "DEL in a header": (_get(b"X: \x7f"), 400),
    "a bare CR in a header": (_get(b"X: a\rb"), 400),
    "a folded header": (_get(b"X: a", b" b"), 400),
    "a space before the first header": (GET + b" X: y\r\n" + HOST + END, 400),
    "a CR that ends a line": (GET + HOST + b"X: y\r\r\n\r\n", 400),
    "CR and text instead of the last line": (GET + HOST + b"\rX: y\r\n\r\n", 400),
    "a bare LF after the request line": (b"GET /svc/node HTTP/1.1\n" + HOST + END, 400),
    "a bare LF after a header": (GET + b"Host: n\n\r\n", 400),
    "a bare LF at the end of the head": (GET + b"Host: n\r\n\n", 400),
    "an empty header": (_get(b"X:"), 200),
    "a header with tabs": (_get(b"X:\t y \t"), 200),
    "bytes beyond ASCII in a header": (_get(b"X: \xe9\xff"), 200),
    "names in any case": (GET + b"hOsT:\tn\r\n\r\n", 200),
    "101 headers": (_get(*[b"X: y"] * 100), 431),
    "a header that is too large": (_get(b"X: " + b"y" * 33_000), 431),
    "spaces that are too many": (_get(b"X:" + b" " * 33_000 + b"y"), 431),
    "an expectation without a body": (_get(b"Expect: 100-continue"), 200),
    "an unknown expectation": (_get(b"Expect: 200-maybe"), 200),
    "an upgrade": (_get(b"Connection: upgrade", b"Upgrade: h2c") + SECOND, 200),
    "a WebSocket": (_get(b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13"), 200),
    "close": (_get(b"Connection: close") + SECOND, 200),
    "close among others": (_get(b"Connection: keep-alive, close") + SECOND, 200),
    "HTTP/1.0 closes": (b"GET /svc/node HTTP/1.0\r\nHost: n\r\n\r\n" + SECOND, 200),
    "HTTP/1.0 with keep-alive": (
        b"GET /svc/node HTTP/1.0\r\nHost: n\r\nConnection: keep-alive\r\n\r\n" + SECOND,
        200,
        200,
    ),
    "no request": (b"",),
    "a part of a method": (b"GE",),
    "a part of a target": (b"GET /svc/no",),
    "a request line": (GET,),
    "a part of a header": (GET + b"Host: n",),
    "a head without its last byte": (GET + HOST + b"\r",),
    "a part of a body": (_post(b"Content-Length: 5", body=b"hel"),),
    "requests after an error": (_get(b"X Y: z") + SECOND, 400),
    "three requests": (SECOND * 3, 200, 200, 200),
    "a HEAD and an error": (b"HEAD /svc/node HTTP/1.1\r\n" + HOST + END + b"\x00\r\n\r\n", 200, 400),
}

CORPUS = tuple(
    Case(name, sent, tuple(codes))
    for table in (_FRAMING, _REQUEST_LINES, _HEADS)
    for name, (sent, *codes) in table.items()
)
