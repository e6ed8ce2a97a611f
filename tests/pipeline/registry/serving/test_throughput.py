"""When a client is told to try again: from what the server can do, not from what it is asked."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from patchline.pipeline.registry.serving.model_host import ModelHost, Served, Throughput
from patchline.pipeline.web.config import ServingConfig
from patchline.pipeline.web.request_body import Refusal
from patchline.pipeline.web.server_metrics import ServerMetrics


def test_requests_at_the_same_time_share_their_seconds() -> None:
    """Two requests that wait for the same 20 seconds are 20 seconds of work, not 40."""
    now = 0.0
    throughput = Throughput(lambda: now)
    with throughput.working():
        now += 5
        with throughput.working():
            now += 10
        throughput.answered(100)
        now += 5
    throughput.answered(100)
    with throughput.working():
        now += 11
    throughput.answered(0)
    assert throughput.seconds_for(100) == pytest.approx(16)


def test_no_client_waits_longer_than_the_time_limit() -> None:
    """By then everything that waits is answered or given up, however slow the server is."""

    async def refused() -> str:
        config = ServingConfig(max_queue=256, time_limit=4)
        host = ModelHost("flowers", None, config, ServerMetrics())
        engine = SimpleNamespace(pending=256, package=None)
        host._served = Served("1", engine)  # type: ignore[arg-type]  # no threads are needed
        with pytest.raises(Refusal) as refusal:
            host.check_room(300)
        return refusal.value.headers["retry-after"]

    assert asyncio.run(refused()) == "4"
