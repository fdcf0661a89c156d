"""A mount: the application of one listener, and the streams that it has open."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from svcnode.api.app import Mount

APP: Any = object()
OTHER_APP: Any = object()


class FakeStream:
    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_a_new_mount_has_no_application() -> None:
    assert Mount().app is None


def test_replacing_the_application_closes_every_open_stream() -> None:
    mount, streams = Mount(APP), [FakeStream(), FakeStream()]
    with ExitStack() as stack:
        for stream in streams:
            stack.enter_context(mount.track_stream(stream))
        mount.set_app(OTHER_APP)
        assert mount.app is OTHER_APP
        assert all(stream.is_closed for stream in streams)


def test_a_stream_that_has_ended_is_not_closed() -> None:
    mount, stream = Mount(APP), FakeStream()
    with mount.track_stream(stream):
        pass
    mount.set_app(None)
    assert mount.app is None
    assert not stream.is_closed


def test_a_stream_that_ends_inside_close_does_not_keep_others_from_closing() -> None:
    mount, stack, second = Mount(APP), ExitStack(), FakeStream()

    class EndsAtOnce(FakeStream):
        def close(self) -> None:
            stack.close()

    stack.enter_context(mount.track_stream(EndsAtOnce()))
    with mount.track_stream(second):
        mount.set_app(None)
    assert second.is_closed
