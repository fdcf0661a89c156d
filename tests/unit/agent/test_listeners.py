from __future__ import annotations

import asyncio
import socket
from contextlib import closing
from typing import TYPE_CHECKING, Any, cast

import pytest

from svcnode.agent.listeners import Listeners
from svcnode.agent.systemd import PassedSockets
from svcnode.config import Override, Settings, load
from svcnode.core.errors import ListenError
from svcnode.node.definition import MAX_PUSH_BYTES
from svcnode.operator.public import PublicApp
from svcnode.server.server import HttpServer
from tests.support.certificates import make_certificate
from tests.support.nodes import make_node
from tests.support.ports import free_port
from tests.support.processes import is_listening

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator
    from pathlib import Path

    from svcnode.api.app import App, Mount
    from svcnode.operator.context import OperatorContext

CONTEXT = cast("OperatorContext", None)  # passed on, not used
TCP = "127.0.0.1:0"


class FakeServer:
    """Records its listeners."""

    def __init__(self) -> None:
        self.listening: dict[socket.socket, tuple[ssl.SSLContext | None, Mount]] = {}

    async def listen(self, sock: socket.socket, tls: ssl.SSLContext | None, mount: Mount) -> None:
        self.listening[sock] = (tls, mount)

    def stop_listening(self, sock: socket.socket) -> None:
        del self.listening[sock]
        sock.close()

    @property
    def ports(self) -> list[int]:
        return [sock.getsockname()[1] for sock in self.listening]


class Setup:
    def __init__(self) -> None:
        self.server, self.public_server = FakeServer(), FakeServer()
        self.listeners = Listeners(cast("Any", self.server), cast("Any", self.public_server), PassedSockets({}))

    def listen(self, settings: Settings, push: App | None = None) -> None:
        asyncio.run(self.listeners.listen(self.listeners.open(settings), CONTEXT, push))


@pytest.fixture
def setup() -> Iterator[Setup]:
    made = Setup()
    with closing(made.listeners):
        yield made


def listening_on(*addresses: str, public: dict[str, object] | None = None, **server: object) -> Settings:
    values: dict[tuple[str, ...], object] = {("server", "listen"): list(addresses)}
    values |= {("server", key): value for key, value in server.items()}
    values |= {("public", key): value for key, value in (public or {}).items()}
    return load(None, {"HOME": "/nowhere"}, [Override(path, value, "test") for path, value in values.items()])


def tls(folder: Path, name: str = "node") -> dict[str, str]:
    made = make_certificate(folder, name)
    return {"certificate": str(made.certificate), "key": str(made.key)}


def test_open_binds_but_does_not_listen(setup: Setup) -> None:
    bound = setup.listeners.open(listening_on(TCP))
    (sock,) = bound.sockets.values()
    with sock:
        assert not setup.server.listening
        assert not is_listening(sock.getsockname()[1])


def test_if_one_address_cannot_be_bound_none_is(setup: Setup, tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with socket.create_server(("127.0.0.1", 0)) as other:
        with pytest.raises(ListenError):
            setup.listeners.open(listening_on(f"unix:{path}", f"127.0.0.1:{other.getsockname()[1]}"))
        assert not path.exists()


def two_names(port: int) -> tuple[str, str]:
    """Of the same address; the system resolves the second."""
    return f"127.0.0.1:{port}", f"127.1:{port}"


def test_two_names_of_one_address_are_refused_with_both(setup: Setup) -> None:
    one, other = two_names(free_port())
    with pytest.raises(ListenError, match=f"{one} .*{other}"):
        setup.listeners.open(listening_on(one, other))
    setup.listen(listening_on(one))
    with pytest.raises(ListenError, match=f"{one} .*{other}"):
        setup.listeners.open(listening_on(one, other))


def test_a_reload_to_an_address_that_overlaps_the_old_one_needs_a_restart(setup: Setup) -> None:
    one, other = two_names(free_port())
    setup.listen(listening_on(one))
    with pytest.raises(ListenError, match="restart"):
        setup.listeners.open(listening_on(other))
    assert len(setup.server.listening) == 1


def test_an_address_that_another_process_listens_on_since_it_was_bound_is_an_error() -> None:
    async def listen() -> None:
        node = make_node()
        server = HttpServer(node, ("/svc",))
        listeners = Listeners(server, server, PassedSockets({}))
        settings = listening_on(f"127.0.0.1:{free_port()}")
        bound = listeners.open(settings)
        (sock,) = bound.sockets.values()
        with sock, socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(sock.getsockname())
            other.listen()
            with pytest.raises(ListenError):
                await listeners.listen(bound, CONTEXT, None)

    asyncio.run(listen())


def test_a_listener_that_is_still_configured_is_not_touched_and_logged_once(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "svcnode")
    setup.listen(listening_on(TCP, prefix="/eigen"))
    (before,) = setup.server.listening
    assert not setup.listeners.open(listening_on(TCP)).sockets
    setup.listen(listening_on(TCP, prefix="/eigen"))
    assert list(setup.server.listening) == [before]
    (port,) = setup.server.ports
    assert [(vars(record)["event"], vars(record)["url"]) for record in caplog.records] == [
        ("listening", f"http://127.0.0.1:{port}/eigen/node"),
        ("operator_page", f"http://127.0.0.1:{port}/"),
    ]


def test_a_port_is_reused_when_its_scheme_or_its_certificate_changes(setup: Setup, tmp_path: Path) -> None:
    setup.listen(listening_on(TCP))
    (port,) = setup.server.ports
    settings = listening_on(TCP, tls=tls(tmp_path))
    setup.listen(settings)
    ((context, mount),) = setup.server.listening.values()
    setup.listen(settings)
    ((context_after, mount_after),) = setup.server.listening.values()
    assert setup.server.ports == [port]
    assert None is not context_after is not context is not None
    assert mount_after is mount


def test_an_address_that_is_no_longer_configured_is_closed_and_unmounted(setup: Setup, tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    setup.listen(listening_on(f"unix:{path}"))
    ((_, mount),) = setup.server.listening.values()
    was_mounted = mount.app is not None
    setup.listen(listening_on(TCP))
    assert len(setup.server.listening) == 1
    assert (was_mounted, mount.app) == (True, None)
    assert not path.exists()


def test_the_operator_surface_and_pushes_can_have_their_own_addresses(setup: Setup) -> None:
    push = cast("App", object())
    settings = listening_on(TCP, operator_listen="127.0.0.2:0")
    setup.listen(settings, push)
    mounts = [mount for _, mount in setup.server.listening.values()]
    assert [mount.app is None for mount in mounts] == [True, False]
    assert [(mount.push, mount.kept_body_bytes) for mount in mounts] == [(push, MAX_PUSH_BYTES), (None, 0)]
    setup.listen(settings)
    assert [(mount.push, mount.kept_body_bytes) for mount in mounts] == [(None, 0), (None, 0)]


def test_close_stops_all_listeners_and_removes_unix_sockets(setup: Setup, tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    setup.listen(listening_on(TCP, f"unix:{path}"))
    assert path.exists()
    setup.listeners.close()
    assert not setup.server.listening
    assert not path.exists()


# ---- the public page


def published(**where: object) -> dict[str, object]:
    return {"services": ["db"], **where}


def test_the_addresses_of_the_public_page_have_a_server_of_their_own_and_nothing_else(setup: Setup) -> None:
    setup.listen(listening_on(TCP, public=published(listen="127.0.0.2:0")))
    ((_, mount),) = setup.server.listening.values()
    ((_, public_mount),) = setup.public_server.listening.values()
    assert mount.public is None
    assert mount.app is not None
    assert public_mount.app is public_mount.push is None
    assert isinstance(public_mount.public, PublicApp)
    assert public_mount.public.matches(b"/svc/node") is True


def test_with_a_path_the_public_page_is_beside_the_interface(setup: Setup) -> None:
    setup.listen(listening_on(TCP, operator_listen="127.0.0.2:0", public=published(path="/public")))
    (_, mount), (_, operator_mount) = setup.server.listening.values()
    assert mount.public is not None
    assert [mount.public.matches(path) for path in (b"/public", b"/%70ublic/x", b"/publicity", b"/")] == [
        *(True, True, False, False)
    ]
    assert operator_mount.public is None
    assert not setup.public_server.listening


def test_a_reload_that_changes_nothing_public_keeps_its_answers_and_others_replace_or_remove_them(
    setup: Setup,
) -> None:
    setup.listen(listening_on(TCP, public=published(path="/public")))
    ((_, mount),) = setup.server.listening.values()
    before = mount.public
    setup.listen(listening_on(TCP, public=published(path="/public"), prefix="/eigen"))
    assert mount.public is before
    setup.listen(listening_on(TCP, public=published(path="/public", title="Other")))
    assert isinstance(mount.public, PublicApp)
    assert mount.public.publication.title == "Other"
    setup.listen(listening_on(TCP))
    assert mount.public is None


def test_an_address_that_becomes_public_moves_to_the_server_of_the_public_page(setup: Setup) -> None:
    own, other = "127.0.0.1:0", "127.0.0.2:0"
    setup.listen(listening_on(own, other))
    ports = setup.server.ports
    setup.listen(listening_on(own, public=published(listen=other)))
    assert (setup.server.ports, setup.public_server.ports) == (ports[:1], ports[1:])
    setup.listen(listening_on(own, other))
    assert sorted(setup.server.ports) == sorted(ports)
    assert not setup.public_server.listening
