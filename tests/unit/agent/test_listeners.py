"""Where the node listens: what is opened, what is kept, and what is given up."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

import pytest

from svcnode.agent.listeners import Listeners
from svcnode.config import Override, Settings, load
from svcnode.core.errors import ListenError
from tests.support.certificates import make_certificate
from tests.support.processes import is_listening

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator
    from pathlib import Path

    from svcnode.api.app import Mount

DESK = cast("Desk", None)  # which is handed on, and not looked at
TCP = "127.0.0.1:0"


class FakeServer:
    """Notes where it was told to listen."""

    def __init__(self) -> None:
        self.listening: dict[socket.socket, tuple[ssl.SSLContext | None, Mount]] = {}

    async def listen(self, sock: socket.socket, tls: ssl.SSLContext | None, door: Mount) -> None:
        self.listening[sock] = (tls, door)

    def stop_listening(self, sock: socket.socket) -> None:
        del self.listening[sock]
        sock.close()

    @property
    def ports(self) -> list[int]:
        return [sock.getsockname()[1] for sock in self.listening]


class World:
    def __init__(self) -> None:
        self.server = FakeServer()
        self.listeners = Listeners(cast("Any", self.server))

    def listen(self, settings: Settings) -> None:
        asyncio.run(self.listeners.listen(self.listeners.open(settings), DESK))


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    with closing(made.listeners):
        yield made


def listening_on(*places: str, **server: object) -> Settings:
    said = {("server", "listen"): list(places)} | {("server", key): value for key, value in server.items()}
    return load(None, {"HOME": "/nowhere"}, [Override(path, value, "the test") for path, value in said.items()])


def tls(folder: Path, name: str = "node") -> dict[str, str]:
    made = make_certificate(folder, name)
    return {"certificate": str(made.certificate), "key": str(made.key)}


def test_what_is_opened_is_not_listened_on_yet(world: World) -> None:
    opened = world.listeners.open(listening_on(TCP))
    (sock,) = opened.sockets.values()
    with sock:
        assert not world.server.listening
        assert not is_listening(sock.getsockname()[1])


def test_where_one_place_cannot_be_had_none_is_taken(world: World, tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with socket.create_server(("127.0.0.1", 0)) as other:
        with pytest.raises(ListenError, match="something listens there already"):
            world.listeners.open(listening_on(f"unix:{path}", f"127.0.0.1:{other.getsockname()[1]}"))
        assert not path.exists()


def test_a_listener_that_is_still_wanted_is_left_alone(world: World) -> None:
    world.listen(listening_on(TCP))
    (before,) = world.server.listening
    assert not world.listeners.open(listening_on(TCP)).sockets
    world.listen(listening_on(TCP, prefix="/eigen"))
    assert list(world.server.listening) == [before]


def test_one_that_speaks_tls_is_opened_anew_in_its_place_with_the_same_door(world: World, tmp_path: Path) -> None:
    settings = listening_on(TCP, tls=tls(tmp_path))
    world.listen(settings)
    (port,), ((context, door),) = world.server.ports, world.server.listening.values()
    world.listen(settings)
    ((context_after, door_after),) = world.server.listening.values()
    assert world.server.ports == [port]
    assert None is not context_after is not context
    assert door_after is door


def test_a_place_is_kept_when_something_else_is_to_be_spoken_there(world: World, tmp_path: Path) -> None:
    world.listen(listening_on(TCP))
    (port,) = world.server.ports
    world.listen(listening_on(TCP, tls=tls(tmp_path)))
    assert world.server.ports == [port]
    ((context, _),) = world.server.listening.values()
    assert context is not None


def test_a_place_that_is_no_longer_wanted_is_given_up_and_its_door_shut(world: World, tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    world.listen(listening_on(f"unix:{path}"))
    ((_, door),) = world.server.listening.values()
    was_open = door.app is not None
    world.listen(listening_on(TCP))
    assert len(world.server.listening) == 1
    assert (was_open, door.app) == (True, None)
    assert not path.exists()


def test_a_listener_of_the_operators_own_is_the_only_one_with_their_surface(world: World) -> None:
    world.listen(listening_on(TCP, operator_listen="127.0.0.2:0"))
    assert [door.app is None for _, door in world.server.listening.values()] == [True, False]


def test_each_place_is_announced_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "svcnode")
    for _ in range(2):
        world.listen(listening_on(TCP, prefix="/eigen"))
    (port,) = world.server.ports
    assert caplog.messages == [
        f"listening on http://127.0.0.1:{port}/eigen/node",
        f"the operator page is at http://127.0.0.1:{port}/",
    ]


def test_in_the_end_nothing_is_listened_on_and_no_socket_is_left(world: World, tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    world.listen(listening_on(TCP, f"unix:{path}"))
    assert path.exists()
    world.listeners.close()
    assert not world.server.listening
    assert not path.exists()
