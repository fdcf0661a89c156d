"""The load balancers of deploy/recipes: the real programs with these files, in front of machines with real nodes."""

from __future__ import annotations

import threading
from abc import abstractmethod
from contextlib import contextmanager
from itertools import cycle
from typing import TYPE_CHECKING, ClassVar

import pytest

from tests.support.ports import free_port
from tests.support.recipes import NODE_PORT, PROGRAM_PORT, Machine, read_recipe
from tests.support.servers.base import RealServer, wait_until
from tests.support.servers.http_request import http_request
from tests.support.servers.provision import program

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

pytestmark = pytest.mark.wide


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Machine, Machine]]:
    folder = tmp_path_factory.mktemp("machines")
    with Machine(folder / "1", "127.0.1.1") as first, Machine(folder / "2", "127.0.1.2") as second:
        yield first, second


class Proxy(RealServer):
    """The program of a recipe. `strict`: 206 is bad."""

    recipe: ClassVar[str]

    def __init__(self, folder: Path, machines: Sequence[Machine], *, strict: bool = False) -> None:
        super().__init__(folder)
        self._machines = machines
        self._strict = strict

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}/"

    @abstractmethod
    def replaced(self) -> Mapping[str, str]:
        """What the test replaces, beside the addresses and ports of the machines."""

    def prepare(self) -> None:
        addresses = {f"10.0.0.{number}": each.address for number, each in enumerate(self._machines, 1)}
        ports = {"8080": str(PROGRAM_PORT), "8420": str(NODE_PORT)}
        text = read_recipe(self.recipe, {**self.replaced(), **addresses, **ports}, strict=self._strict)
        (self.folder / self.recipe).write_text(text)

    def is_ready(self) -> bool:
        http_request(self.port, "/")
        return True

    def rotation(self) -> set[str]:
        """The addresses of the machines that requests reach; with "" if one of them fails."""
        responses = [http_request(self.port, "/") for _ in range(6)]
        return {text if code == 200 else "" for code, text in responses}

    def wait_for_rotation(self, *machines: Machine) -> None:
        wanted = {each.address for each in machines}
        wait_until(lambda: self.rotation() == wanted, f"rotation of {wanted}")

    @contextmanager
    def all_requests_succeed(self) -> Iterator[None]:
        codes: set[int] = set()
        has_ended = threading.Event()

        def send_requests() -> None:
            for method in cycle(("GET", "POST")):
                try:
                    codes.add(http_request(self.port, "/", method=method, body="")[0])
                except OSError:
                    codes.add(0)
                if has_ended.is_set():
                    return

        client = threading.Thread(target=send_requests)
        client.start()
        try:
            yield
        finally:
            has_ended.set()
            client.join()
        assert codes == {200}


class Haproxy(Proxy):
    recipe = "haproxy.cfg"

    def command(self) -> Sequence[str]:
        return [program("haproxy", "haproxy"), "-db", "-f", self.recipe]

    def replaced(self) -> Mapping[str, str]:
        return {"bind :80": f"bind {self.host}:{self.port}", "inter 1s": "inter 100ms"}


class Caddy(Proxy):
    recipe = "Caddyfile"

    def command(self) -> Sequence[str]:
        return [program("caddy", "caddy"), "run", "--config", self.recipe, "--adapter", "caddyfile"]

    def environ(self) -> Mapping[str, str]:
        return {"CADDY_ADMIN": f"unix/{self.folder / 'admin.sock'}"}

    def replaced(self) -> Mapping[str, str]:
        return {":80 {": f":{self.port} {{", "health_interval 1s": "health_interval 100ms"}


class Nginx(Proxy):
    recipe = "nginx.conf"

    def command(self) -> Sequence[str]:
        return [program("nginx", "nginx-light"), "-p", f"{self.folder}/", "-c", "main.conf", "-e", "stderr"]

    def replaced(self) -> Mapping[str, str]:
        return {"listen 80;": f"listen {self.host}:{self.port};", "8101": str(free_port()), "8102": str(free_port())}

    def prepare(self) -> None:
        super().prepare()
        folders = " ".join(f"{name}_temp_path {name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        http = f"http {{ access_log off; {folders} include {self.recipe}; }}"
        (self.folder / "main.conf").write_text(f"user root; daemon off; pid nginx.pid; events {{}}\n{http}\n")


PROXIES = (Haproxy, Caddy, Nginx)


@pytest.mark.parametrize("kind", PROXIES)
def test_a_machine_gets_requests_while_its_node_is_healthy_or_partially_healthy(
    kind: type[Proxy], machines: tuple[Machine, Machine], tmp_path: Path
) -> None:
    first, second = machines
    first.set_health(206)
    second.set_health(503)
    with kind(tmp_path / "proxy", machines) as proxy:
        proxy.wait_for_rotation(first)
        second.set_health(200)
        proxy.wait_for_rotation(first, second)
        second.kill_node()
        proxy.wait_for_rotation(first)
    second.set_health(200)
    with kind(tmp_path / "strict", machines, strict=True) as proxy:  # with the other line
        proxy.wait_for_rotation(second)


@pytest.mark.parametrize("kind", PROXIES)
def test_a_machine_whose_node_drains_can_be_stopped_without_a_failed_request(
    kind: type[Proxy], machines: tuple[Machine, Machine], tmp_path: Path
) -> None:
    first, second = machines
    first.set_health(200)
    second.set_health(200)
    with kind(tmp_path / "proxy", machines) as proxy:
        proxy.wait_for_rotation(first, second)
        with proxy.all_requests_succeed():
            first.drain_node()
            proxy.wait_for_rotation(second)
            with first.stopped_program():
                first.kill_node()
                proxy.wait_for_rotation(second)
            first.set_health(200)
            proxy.wait_for_rotation(first, second)
