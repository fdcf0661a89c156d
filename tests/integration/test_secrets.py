"""The leak test: secrets in every place that can hold one, against services that echo all they get.

Everything a node says is then searched for every secret. A secret begins and ends with a mark of its own, and the marks
are what is searched for, so that half a secret is found as well.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
import signal
import socket
import sys
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

from svcnode import Node
from svcnode.config import load
from svcnode.core import redaction
from svcnode.logs import JsonFormatter
from tests.support.processes import Agent, run_command

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

USER = "reader"
MESSAGE_END = '($|")'  # in either format of the log
PATHS = ("/svc/node", "/svc/node/services", "/svc/node/health", "/readyz", "/readyz?strict", "/livez", "/openapi.json")

# What raises by itself, with all that it knows in its words, and with a cause that knows it too.
BROKEN_KIND = """
from dataclasses import dataclass
from urllib.parse import unquote
from svcnode.probes.base import UrlProbe

@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BrokenProbe(UrlProbe):
    key: str = ""

    async def check(self):
        try:
            raise KeyError(self.key)
        except KeyError as exc:
            raise RuntimeError(f"cannot use {unquote(self.url.path)} and {self.key!r}") from exc
"""


class Secrets:
    """Made here, put in their places by whoever writes a configuration, and looked for at the end."""

    def __init__(self, folder: Path) -> None:
        self.environ: dict[str, str] = {}
        self._folder = folder
        self._made: list[str] = []
        self._number = count(10)

    def new(self) -> str:
        number = next(self._number)
        # What URLs, JSON, Python and headers each write in another way, and what a header can still carry.
        self._made.append(f"hd{number}Xq/\"'\\%é +tl{number}Zq")
        return self._made[-1]

    def env(self) -> str:
        name = f"SECRET_{len(self.environ)}"
        self.environ[name] = self.new()
        return f"${{{name}}}"

    def file(self, text: str | None = None) -> dict[str, str]:
        path = self._folder / f"secret-{next(self._number)}"
        path.write_text(f"{self.new() if text is None else text}\n", encoding="utf-8")
        return {"file": str(path)}

    def literal(self) -> str:
        """For a URL, in which it must be written so."""
        return quote(self.new(), safe="")

    def found_in(self, text: str) -> set[str]:
        marks = {mark for secret in self._made for mark in re.findall(r"hd\d+Xq|tl\d+Zq", secret)}
        tokens = {base64.b64encode(f"{USER}:{secret}".encode()).decode()[:20] for secret in self._made}
        return {one for one in marks | tokens if one in text}


# ---- services that give away what they get


class EchoHandler(BaseHTTPRequestHandler):
    """The first part of the path says how to answer; whatever else came along is echoed."""

    server: EchoServer

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        how = re.search("/(echo|rpc-error|rpc-result|garbage|moved|hang|ready|503)", self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.received |= {headers.get("authorization", ""): None}
        scheme, _, token = headers.get("authorization", "").partition(" ")
        echo = {
            "target": self.path,
            "body": body,
            "headers": headers,
            "heard": list(self.server.received),
            "user": base64.b64decode(token).decode() if scheme == "Basic" else "",
        }
        match how and how[1]:
            case "ready" | "echo":
                self.handler(200, echo)
            case "rpc-error":
                words = " ".join(map(str, json.loads(body)["params"]))
                self.handler(200, {"id": 1, "error": {"code": 1, "message": "x" * 185 + words}})
            case "rpc-result":
                self.handler(200, {"id": 1, "result": json.loads(body)["params"]})
            case "garbage":
                self.wfile.write(f"what is {self.path}?".encode())
            case "moved":
                self.handler(302, echo, location=self.path.replace("moved", "503"))
            case "hang":
                self.server.is_quit.wait()
            case _:
                self.handler(503, echo)

    do_GET = do_POST = answer  # noqa: N815  as http.server has it

    def handler(self, code: int, document: object, location: str = "") -> None:
        body = json.dumps(document).encode()
        self.send_response(code, f"told {quote(self.path)}")
        self.send_header("Content-Length", str(len(body)))
        if location:
            self.send_header("Location", location)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class EchoServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), EchoHandler)
        self.is_quit = threading.Event()
        self.received: dict[str, None] = {}  # each Authorization that ever came, in their order

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


@contextmanager
def echoing_http() -> Iterator[EchoServer]:
    with EchoServer() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.is_quit.set()
            server.shutdown()
            thread.join()


@contextmanager
def echoing_tcp() -> Iterator[str]:
    """Says once what it hears, and closes."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    with connection:
                        connection.sendall(connection.recv(4096))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # so ends the wait for the next one
            thread.join()


# ---- the secrets_setup under test


class SecretsSetup:
    """Services by their ids, each with a secret, and the words in which the log tells what became of them."""

    def __init__(self, folder: Path, http: str, tcp: str) -> None:
        self.folder = folder
        self.secrets = Secrets(folder)
        self._install_kind()
        self.probes: dict[str, Any] = {}
        self.output: dict[str, str] = {}
        self._fill(self.secrets, http, tcp)

    def _install_kind(self) -> None:
        about = self.folder / "broken_kind-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-kind\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text("[svcnode.probes]\nbroken = broken_kind:BrokenProbe\n")
        (self.folder / "broken_kind.py").write_text(BROKEN_KIND)

    @property
    def environ(self) -> dict[str, str]:
        return {**self.secrets.environ, "PYTHONPATH": str(self.folder)}

    @property
    def config(self) -> str:
        lines = ['[defaults]\ninterval = "20s"\ntimeout = "5s"\nfall = 1\nstart_period = "0s"']
        lines += ["[security]\nallow_exec = true"]
        for service_id, probe in self.probes.items():
            timeout = '\ntimeout = "300ms"' if service_id == "timed-out" else ""
            lines.append(f'[[services]]\nid = "{service_id}"\nprobe = {toml(probe)}{timeout}')
        return "\n".join(lines)

    def add(self, service_id: str, said: str, probe: Any) -> None:
        self.probes[service_id], self.output[service_id] = probe, said

    def _fill(self, secret: Secrets, http: str, tcp: str) -> None:
        add, wrong = self.add, "wrong"
        echo = f"http://{http}/echo"
        closed = "127.0.0.1:1"

        # In a URL: the user's part, the path, the query, all of it.
        add("ready", "is Up", {"url": f"http://{USER}:{secret.env()}@{http}/ready/{secret.env()}?k={secret.env()}"})
        add(
            "password",
            r"is .?\"Basic \*\*\*.?\", expected",
            {"url": f"http://{USER}:{secret.env()}@{http}/echo", "json": {"/headers/authorization": wrong}},
        )
        add(
            "literal-password",
            r"is .?\"Basic \*\*\*.?\", expected",
            {"url": f"http://{USER}:{secret.literal()}@{http}/echo", "json": {"/headers/authorization": wrong}},
        )
        add(
            "literal-password-alone",
            r"is .?\"reader:\*\*\*.?\", expected",
            {"url": f"http://{USER}:{secret.literal()}@{http}/echo", "json": {"/user": wrong}},
        )
        add("refused", r"connection refused: http://reader:\*\*\*@", f"http://{USER}:{secret.literal()}@{closed}/")
        add("refused-bare", r"connection refused: http://:\*\*\*@", f"http://:{secret.literal()}@{closed}/")
        add(
            "query",
            r"/target is .?\"/echo\?k=\*\*\*.?\"",
            {"url": f"{echo}?k={secret.env()}", "json": {"/target": wrong}},
        )
        add("path", r"answered 503: http://.*/503/\*\*\*$", f"http://{http}/503/{secret.env()}")
        add(
            "whole-url",
            r"answered 503: http://reader:\*\*\*@.*/503/\*\*\*\?\*\*\*",
            secret.file(f"http://{USER}:{secret.literal()}@{http}/503/{secret.literal()}?k={secret.literal()}"),
        )
        add(
            "whole-url-echoed",
            r"/target is .?\"/echo/\*\*\*\?k=\*\*\*.?\"",
            {
                "url": secret.file(f"{echo}/{secret.literal()}?k={secret.literal()}"),
                "json": {"/target": wrong},
            },
        )
        add("starting", r"answered 503, so it is starting: .*/503/\*\*\*$", {
            "url": f"http://{http}/503/{secret.env()}", "starting_status": 503,
        })  # fmt: skip
        add("moved", r"answered 503: http://.*/503/\*\*\*$", {
            "url": f"http://{http}/moved/{secret.env()}", "redirects": 1,
        })  # fmt: skip
        add("no-http", r"not HTTP: http://.*/garbage/\*\*\*$", f"http://{http}/garbage/{secret.env()}")
        add("timed-out", r"no answer within 0\.3 s", f"http://{http}/hang/{secret.env()}?{secret.env()}")
        add("missing-file", r"no such file or directory: /no/such/\*\*\*", f"file:/no/such/{secret.env()}")
        add("missing-sqlite", r"no such file or directory: /no/such/\*\*\*", f"sqlite:/no/such/{secret.env()}")
        add("node", r"unhealthy: svc\+http://.*/503/\*\*\*$", f"svc+http://{http}/503/{secret.env()}")

        # In options.
        add(
            "header",
            r"/headers/x-key is .?\"\*\*\*.?\"",
            {"url": echo, "headers": {"X-Key": secret.file()}, "json": {"/headers/x-key": wrong}},
        )
        add(
            "bearer",
            r"is .?\"Bearer \*\*\*.?\"",
            {"url": echo, "bearer": secret.file(), "json": {"/headers/authorization": wrong}},
        )
        add(
            "body",
            r"/body is .?\"key=\*\*\*.?\"",
            {"url": echo, "method": "POST", "body": f"key={secret.env()}", "json": {"/body": wrong}},
        )
        add(
            "proxy",
            r"is .?\"Basic \*\*\*.?\", expected",
            {
                "url": echo,
                "proxy": f"http://{USER}:{secret.literal()}@{http}",
                "json": {"/headers/proxy-authorization": wrong},
            },
        )
        add("expected", r"expected .?\"\*\*\*.?\": http", {"url": echo, "json": {"/target": secret.env()}})
        add("contains", r"does not hold .?\"\*\*\*.?\": http", {"url": echo, "contains": secret.file()})
        add("send", "did not say what was expected", {
            "url": f"tcp://{tcp}", "send": secret.env(), "expect": f"not {secret.env()}",
        })  # fmt: skip
        add("sent-and-heard", "is Up", {"url": f"tcp://{tcp}", "send": (heard := secret.env()), "expect": heard})
        add("rpc-error", r"method-\*\*\*: error 1: x+\*\*\*", {
            "url": f"jsonrpc+http://{http}/rpc-error", "method": f"method-{secret.env()}", "params": [secret.env()],
        })  # fmt: skip
        add("rpc-result", r"the whole is \[.?\"\*\*\*.?\"\], expected", {
            "url": f"jsonrpc+http://{http}/rpc-result", "method": "m", "params": [secret.file()], "result": {"": wrong},
        })  # fmt: skip

        # In programs, and in kinds that fail by themselves.
        add("exec-words", r"exit 75: it is \*\*\*$", f"exec:/bin/sh -c 'echo it is \"$0\"; exit 75' {secret.env()}")
        add("exec-argv", r"exit 1: \*\*\*$", {
            "url": "exec:", "argv": ["/bin/sh", "-c", 'printf %s "$0"; exit 1', secret.file()],
        })  # fmt: skip
        add("exec-first-of-two-lines", r"exit 1: \*\*\*$", {
            "url": "exec:",
            "argv": ["/bin/sh", "-c", 'echo "$0"; exit 1', secret.file(f"{secret.new()}\n{secret.new()}")],
        })  # fmt: skip
        add("exec-missing", r"cannot run /no/such/\*\*\*", f"exec:/no/such/{secret.env()}")
        add("broken", r"RuntimeError: cannot use \*\*\* and ['\"\\]+\*\*\*", {
            "url": f"broken:{secret.env()}", "key": secret.file(),
        })  # fmt: skip

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_command([sys.executable, "-m", "svcnode", *arguments], self.folder, **self.environ)


def toml(value: Any) -> str:
    match value:
        case dict():
            return "{ " + ", ".join(f"{json.dumps(key)} = {toml(inner)}" for key, inner in value.items()) + " }"
        case list():
            return "[" + ", ".join(map(toml, value)) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False)


@pytest.fixture
def secrets_setup(tmp_path: Path) -> Iterator[SecretsSetup]:
    with echoing_http() as http, echoing_tcp() as tcp:
        yield SecretsSetup(tmp_path, http.address, tcp)


@pytest.fixture
def _isolated_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is loaded in this process must not blot out the words of other tests."""
    monkeypatch.setattr(redaction, "_secrets", set())
    monkeypatch.setattr(redaction, "_lengths_by_prefix", {})


# ---- a running node


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_running_node_shows_no_secret_whatever_becomes_of_its_services(
    secrets_setup: SecretsSetup, log_format: str
) -> None:
    flags = ("--listen", "127.0.0.1:0", "--drain", "0s", "--log-level", "debug", "--log-format", log_format)
    with Agent(secrets_setup.folder, *flags, config=secrets_setup.config, environ=secrets_setup.environ) as agent:
        for service_id, said in secrets_setup.output.items():
            agent.wait_for_log(f"service {service_id} .*{said}".replace("$", MESSAGE_END))
        agent.wait_for_log("the probe of service 'broken' failed by itself")
        answers = [agent.request(path).body for path in PATHS]
        answers += [
            agent.request(f"/svc/node/services/{service_id}/health").body for service_id in secrets_setup.probes
        ]
        assert agent.stop() == 0
        assert secrets_setup.secrets.found_in("\n".join(agent.lines)) == set()
        assert secrets_setup.secrets.found_in(b"\n".join(answers).decode()) == set()
        assert {"ready", "sent-and-heard"} <= secrets_setup.probes.keys()
        if log_format == "json":
            assert all({"time", "level", "logger", "message"} <= json.loads(line).keys() for line in agent.lines)


def test_a_secret_that_is_rotated_is_used_and_neither_the_old_nor_the_new_one_is_shown(tmp_path: Path) -> None:
    secrets = Secrets(tmp_path)
    old, new = secrets.new(), secrets.new()
    (tmp_path / "key").write_text(old, encoding="utf-8")
    with echoing_http() as http:
        probe = {"url": f"http://{http.address}/echo", "bearer": {"file": "key"}, "json": {"/heard": "wrong"}}
        config = f'[defaults]\ninterval = "200ms"\nfall = 1\n[[services]]\nid = "db"\nprobe = {toml(probe)}'
        with Agent(tmp_path, "--listen", "127.0.0.1:0", "--log-level", "debug", config=config) as agent:
            agent.wait_for_log(r"service db failed a look: .*/heard is \[.\"Bearer \*\*\*.\"\]")
            (tmp_path / "key").write_text(new, encoding="utf-8")
            agent.reload()
            agent.wait_for_log(r"service db failed a look: .*/heard is \[.\"Bearer \*\*\*.\", .\"Bearer \*\*\*.\"\]")
            assert list(http.received) == [f"Bearer {old}", f"Bearer {new}"]
            (tmp_path / "key").write_text(f"{secrets.new()}\nof two lines", encoding="utf-8")
            agent.signal(signal.SIGHUP)
            agent.wait_for_log(r"not reloaded, .*\.bearer: is not one line of text that a header can carry")
            assert secrets.found_in("\n".join(agent.lines)) == set()


# ---- commands


def test_checking_a_configuration_shows_no_secret(secrets_setup: SecretsSetup) -> None:
    (secrets_setup.folder / "svcnode.toml").write_text(secrets_setup.config, encoding="utf-8")
    done = secrets_setup.run("check-config")
    assert done.returncode == 0, done.stderr
    assert all(service_id in done.stdout for service_id in secrets_setup.probes)
    assert secrets_setup.secrets.found_in(done.stdout + done.stderr) == set()


def test_checking_once_shows_no_secret(secrets_setup: SecretsSetup) -> None:
    for place, (service_id, probe) in enumerate(secrets_setup.probes.items()):
        options = probe if isinstance(probe, dict) else {"url": probe}
        if not isinstance(options.get("url"), str):
            continue  # a command line has no place for a file
        words = [f"-o{key}={toml(value)}" for key, value in options.items() if key != "url"]
        words += ["--timeout", "300ms" if service_id == "timed-out" else "5s", "--allow-exec"]
        done = secrets_setup.run("probe", options["url"], *words, *["--json"] * (place % 2))
        shown = done.stdout + done.stderr
        assert done.stdout, shown
        assert secrets_setup.secrets.found_in(shown) == set(), shown
        assert ("***" in shown) or r"\*" not in secrets_setup.output[service_id], shown


# ---- what is refused

ERROR_CONTEXTS = [
    "tcp://127.0.0.1:{}",
    "tcp://me:{}@127.0.0.1:1",
    "tcp://127.0.0.1:1/{}",
    "http://me:{}@127.0.0.1:99999/",
    "http://me:{}@[::1/",
    "http://me:{}@[nonsense]/",
    "http://me:{}@/",
    "htpp://me:{}@127.0.0.1",
    "heartbeat:{}",
    "file:///{}?x",
    {"url": "http://me:{}@127.0.0.1", "bearer": "{}"},
    {"url": "http://me:{}@127.0.0.1", "methd": "{}"},
    {"url": "http://127.0.0.1", "method": "{}"},
    {"url": "http://127.0.0.1", "status": "{}"},
    {"url": "http://127.0.0.1", "matches": "(?P<{}"},
    {"url": "http://127.0.0.1", "headers": {"X-Key\n": "{}"}},
    {"url": "http://127.0.0.1", "headers": {"X-Key": "{}\n"}},
    {"url": "http://127.0.0.1", "proxy": "https://me:{}@127.0.0.1"},
    {"url": "http://127.0.0.1", "proxy": "http://me:{}@127.0.0.1:x"},
    {"url": "https://127.0.0.1", "ca": "/no/such/{}"},
    {"url": "svc+http://127.0.0.1/{}", "prefix": "/{}"},
    {"url": "svc+http://127.0.0.1", "prefix": "{}"},
    {"url": "tcp://127.0.0.1:1", "send": {"hex": "{}"}},
    {"url": "file:/x", "max_age": "{}"},
    {"url": "disk:/x", "min_free": "{}"},
    {"url": "jsonrpc+http://127.0.0.1/{}", "method": "m", "params": "{}"},
    {"url": "exec:/bin/check {}"},
]


def with_secrets(value: Any, secrets: Secrets) -> Any:
    if isinstance(value, dict):
        return {key: with_secrets(inner, secrets) for key, inner in value.items()}
    return value.replace("{}", secrets.env())


@pytest.mark.parametrize("place", range(len(ERROR_CONTEXTS)))
def test_no_error_of_a_configuration_shows_the_secret_next_to_the_fault(
    place: int, secrets_setup: SecretsSetup
) -> None:
    probe = with_secrets(ERROR_CONTEXTS[place], secrets_setup.secrets)
    (secrets_setup.folder / "svcnode.toml").write_text(
        f'[[services]]\nid = "db"\nprobe = {toml(probe)}', encoding="utf-8"
    )
    done = secrets_setup.run("check-config")
    assert done.returncode == 2, done.stdout
    assert done.stderr.startswith("svcnode: services.db.probe")
    assert done.stderr.count("\n") == 1
    assert secrets_setup.secrets.found_in(done.stderr) == set(), done.stderr


@pytest.mark.parametrize(
    "url",
    [
        "tcp://me:{}@127.0.0.1:1",
        "http://me:{}@127.0.0.1:99999/",
        "http://me:{}@[::1/",
        "http://me:{}@[nonsense]/",
        "http://me@corp:{}@127.0.0.1/",
        "htpp://me:{}@127.0.0.1",
    ],
)
@pytest.mark.parametrize("command", ["serve", "probe"])
def test_no_error_shows_the_literal_password_of_a_url_that_is_refused(command: str, url: str, tmp_path: Path) -> None:
    secrets = Secrets(tmp_path)
    url = url.format(secrets.literal())
    arguments = ("probe", url) if command == "probe" else ("serve", "--service", f"db={url}")
    done = run_command([sys.executable, "-m", "svcnode", *arguments], tmp_path)
    assert done.returncode == (3 if command == "probe" else 2)
    assert done.stderr.startswith("svcnode: ")
    assert secrets.found_in(done.stdout + done.stderr) == set(), done.stderr


# ---- inside a program


@pytest.mark.usefixtures("_isolated_secrets")
def test_nothing_that_a_program_can_print_shows_a_secret(
    secrets_setup: SecretsSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(secrets_setup.folder))
    monkeypatch.delitem(sys.modules, "broken_kind", raising=False)
    (secrets_setup.folder / "svcnode.toml").write_text(secrets_setup.config, encoding="utf-8")
    settings = load(secrets_setup.folder / "svcnode.toml", secrets_setup.environ)
    node = Node("validator-7", version="v1")
    changes: list[object] = []
    node.subscribe(changes.append)
    handles = [node.add(service.definition) for service in settings.services]

    async def look() -> None:
        async with node.probing():
            while not all(state.last_evidence_at_s or service.id in UNCOUNTED for service, state in node):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    asyncio.run(look())
    shown: list[object] = [settings, node, handles, changes, list(node)]
    for service in settings.services:
        watch = service.definition.probe_config
        assert watch is not None
        probe: Any = watch.probe
        shown += [service, service.definition, watch, probe, probe.url, getattr(probe, "_request", None)]
    assert secrets_setup.secrets.found_in(" ".join(f"{one!r} {one!s}" for one in shown)) == set()
    assert "***" in repr(list(node))


# Whose looks end in a fault of our own, which says nothing about the service.
UNCOUNTED = {"broken", "exec-missing"}


# ---- secrets that look like something else


@pytest.mark.usefixtures("_isolated_secrets")
@pytest.mark.parametrize("secret", ["message", "level", '": "', "info", "2026", '", "', "\\n\\n"])
def test_a_secret_that_looks_like_a_part_of_a_log_line_does_not_break_it(secret: str) -> None:
    redaction.register_secret(secret)
    record = logging.makeLogRecord(
        {"msg": f"wrong: {secret}", "name": "svcnode", "levelname": "INFO", "created": 1_767_225_600.0}
    )
    assert json.loads(JsonFormatter().format(record)) == {
        "time": "2026-01-01T00:00:00.000+00:00",
        "level": "info",
        "logger": "svcnode",
        "message": "wrong: ***",
    }
