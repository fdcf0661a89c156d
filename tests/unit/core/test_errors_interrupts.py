"""A Ctrl-C, told from what somebody's code raised."""

from __future__ import annotations

import threading

import pytest

from svcnode.core.errors import is_user_interrupt


def test_an_interrupt_of_the_main_thread_is_a_ctrl_c() -> None:
    assert is_user_interrupt(KeyboardInterrupt())


@pytest.mark.parametrize("other", [ValueError(), SystemExit(), GeneratorExit()])
def test_no_other_exception_is_one(other: BaseException) -> None:
    assert not is_user_interrupt(other)


def test_an_interrupt_of_any_other_thread_is_none() -> None:
    said: list[bool] = []
    other = threading.Thread(target=lambda: said.append(is_user_interrupt(KeyboardInterrupt())))
    other.start()
    other.join(10.0)
    assert said == [False]
