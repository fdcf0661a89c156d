"""A mount: the application of one listener, and the streams that it has open."""

from __future__ import annotations

from typing import Any

from svcnode.api.app import Mount

APP: Any = object()
OTHER_APP: Any = object()


class FakeStream:
    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_replacing_the_application_closes_every_open_stream_although_some_end_inside_close() -> None:
    mount, streams = Mount(APP), [FakeStream(), FakeStream()]

    class EndsAtOnce(FakeStream):
        def close(self) -> None:
            mount.open_streams.discard(self)

    mount.open_streams.update((EndsAtOnce(), *streams, EndsAtOnce()))
    mount.set_app(OTHER_APP)
    assert mount.app is OTHER_APP
    assert all(stream.is_closed for stream in streams)
