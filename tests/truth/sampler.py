"""Polls a node as its clients do, and records every response with its time."""

from __future__ import annotations

import http.client
import json
import threading
import time
from typing import TYPE_CHECKING, Self
from urllib.parse import quote, urlsplit

from tests.truth.evaluate import HEALTH, LIST, STATUS_BY_CODE, Sample
from tests.truth.timing import POLL_INTERVAL_S

if TYPE_CHECKING:
    from collections.abc import Sequence

TIMEOUT_S = 5.0


class Sampler:
    """One thread and one connection inside a `with` block."""

    def __init__(self, url: str, service_ids: Sequence[str]) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_S)
        self._service_ids = service_ids
        self.samples: list[Sample] = []
        self.round_count = 0
        self.longest_gap_s = 0.0
        self._started_s = self._ended_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll_loop, name="sampler")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._connection.close()

    @property
    def rounds_per_s(self) -> float:
        return self.round_count / max(self._ended_s - self._started_s, POLL_INTERVAL_S)

    def _poll_loop(self) -> None:
        self._started_s = last_s = due_s = time.monotonic()
        while not self._stop.wait(due_s - time.monotonic()):
            now_s = time.monotonic()
            self.longest_gap_s = max(self.longest_gap_s, now_s - last_s)
            last_s = now_s
            self._poll_once()
            due_s = max(due_s + POLL_INTERVAL_S, time.monotonic())  # missed polls are not repeated
        self._ended_s = time.monotonic()

    def _poll_once(self) -> None:
        self.round_count += 1
        requested_s = time.monotonic()
        statuses = self._statuses()
        answered_s = time.monotonic()
        for service_id in self._service_ids:
            reported = statuses.get(service_id, "not listed") if isinstance(statuses, dict) else statuses
            self._record(service_id, LIST, requested_s, answered_s, reported)
        for service_id in self._service_ids:
            requested_s = time.monotonic()
            code, _ = self._get(f"/svc/node/services/{quote(service_id, safe='')}/health")
            reported = STATUS_BY_CODE.get(code, str(code)) if code else "no answer"
            self._record(service_id, HEALTH, requested_s, time.monotonic(), reported)

    def _record(self, service_id: str, source: str, requested_s: float, answered_s: float, reported: str) -> None:
        self.samples.append(
            Sample(
                service_id=service_id,
                source=source,
                requested_s=requested_s,
                answered_s=answered_s,
                reported=reported,
            )
        )

    def _statuses(self) -> dict[str, str] | str:
        code, body = self._get("/svc/node/services")
        if code != 200:
            return str(code) if code else "no answer"
        return {service["id"]: service["status"] for service in json.loads(body)["services"]}

    def _get(self, path: str) -> tuple[int, bytes]:
        """Code 0 if there is no response; the next request uses a new connection."""
        try:
            self._connection.request("GET", path)
            response = self._connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            return 0, b""
