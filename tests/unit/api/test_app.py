"""A door: what one listener offers beyond the interface, and who reads behind it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from svcnode.api.app import Mount

SURFACE: Any = object()
OTHER: Any = object()


class FakeReader:
    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_a_door_offers_nothing_unless_it_is_told_to() -> None:
    assert Mount().app is None


def test_whoever_reads_when_a_door_is_changed_is_let_go() -> None:
    door, readers = Mount(SURFACE), [FakeReader(), FakeReader()]
    with ExitStack() as stack:
        for reader in readers:
            stack.enter_context(door.track_stream(reader))
        door.set_app(OTHER)
        assert door.app is OTHER
        assert all(reader.is_closed for reader in readers)


def test_whoever_has_left_before_is_let_alone() -> None:
    door, reader = Mount(SURFACE), FakeReader()
    with door.track_stream(reader):
        pass
    door.set_app(None)
    assert door.app is None
    assert not reader.is_closed


def test_a_reader_who_leaves_at_once_when_told_to_does_not_disturb_the_others() -> None:
    door, stack, second = Mount(SURFACE), ExitStack(), FakeReader()

    class Hasty(FakeReader):
        def close(self) -> None:
            stack.close()

    stack.enter_context(door.track_stream(Hasty()))
    with door.track_stream(second):
        door.set_app(None)
    assert second.is_closed
