"""TLS options: files are read beside the event loop, and only if they have changed."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import TYPE_CHECKING

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError
from svcnode.core.model import Outcome
from svcnode.core.url import Url
from svcnode.net import tls
from svcnode.net.files import read_small_file
from svcnode.net.tls import TlsOptions
from svcnode.probes import make_probe
from svcnode.probes.run import run_check
from tests.support.certificates import make_certificate

if TYPE_CHECKING:
    from pathlib import Path

    from svcnode.net.files import FileVersion

URL = "https://127.0.0.1:9"


def options(**files: str) -> TlsOptions:
    return TlsOptions(Url.parse(URL), **files)


def refused_option(**files: str) -> str | int:
    with pytest.raises(OptionError) as caught:
        options(**files).validate_tls_options(uses_tls=True)
    return caught.value.option


class HungMount:
    """Blocks every thread that asks for the version of a file."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.is_back = threading.Event()

    def file_version(self, path: str) -> FileVersion:
        self.threads.append(threading.current_thread().name)
        assert self.is_back.wait(60)
        return (len(path),)


@pytest.fixture
def hung_mount() -> HungMount:
    return HungMount()


def test_a_key_that_is_a_pipe_or_on_a_mount_that_hangs_is_an_invalid_option(
    hung_mount: HungMount, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    certificate = str(make_certificate(tmp_path).certificate)
    assert refused_option(client_certificate=certificate, client_key=str(tmp_path / "pipe")) == "client_key"
    monkeypatch.setattr(tls, "file_version", hung_mount.file_version)
    monkeypatch.setattr(tls, "READ_TIMEOUT_S", 0.01)
    assert refused_option(ca=str(tmp_path / "ca.pem")) == "ca"
    hung_mount.is_back.set()


def test_a_mount_that_hangs_delays_neither_the_event_loop_nor_the_deadline(
    hung_mount: HungMount, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    probe = make_probe({"url": URL, "ca": str(make_certificate(tmp_path).certificate)})
    monkeypatch.setattr(tls, "file_version", hung_mount.file_version)

    async def scenario() -> None:
        for _ in range(3):
            verdict, error = await run_check(probe, 0.1)
            assert (verdict.outcome, verdict.code, error) == (Outcome.UNKNOWN, ReasonCode.FILE_NOT_READABLE, None)
        assert hung_mount.threads == ["svcnode TLS files"]  # one thread, however many checks
        hung_mount.is_back.set()
        verdict, _ = await run_check(probe, 60)
        assert verdict.code is ReasonCode.CONNECTION_REFUSED

    asyncio.run(scenario())


def test_files_are_read_again_only_if_they_have_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_certificate(tmp_path)
    client = options(ca=str(made.certificate), client_certificate=str(made.certificate), client_key=str(made.key))
    client.validate_tls_options(uses_tls=True)
    read: list[str] = []

    def record_read(file: str, max_bytes: int) -> bytes:
        read.append(file)
        return read_small_file(file, max_bytes)

    monkeypatch.setattr(tls, "read_small_file", record_read)

    async def scenario() -> None:
        first = await client.tls_context()
        assert await client.tls_context() is first
        assert read == []
        os.utime(made.certificate, ns=(1, 1))
        assert await client.tls_context() is not first
        assert len(read) == 3

    asyncio.run(scenario())
