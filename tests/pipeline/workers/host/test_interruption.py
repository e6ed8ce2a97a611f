"""A signal in the middle of a transaction waits until the database is whole again."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy

from patchline.pipeline.workers.host.interruption import signals_held
from patchline.pipeline.workspace.tracking.tracking_store import client


@pytest.fixture(autouse=True)
def _ctrl_c_raises() -> Iterator[None]:
    """Ctrl-C raises, also where the tests were started in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@contextmanager
def _ctrl_c_in_a_commit() -> Iterator[None]:
    """Press Ctrl-C in the next commit of any database of this process."""
    pressed: list[bool] = []

    def press(_: Any) -> None:
        if not pressed:
            pressed.append(True)
            signal.raise_signal(signal.SIGINT)

    sqlalchemy.event.listen(sqlalchemy.Engine, "commit", press)
    try:
        yield
    finally:
        sqlalchemy.event.remove(sqlalchemy.Engine, "commit", press)


@pytest.mark.usefixtures("own_store")
def test_ctrl_c_in_a_transaction_comes_after_it() -> None:
    """The interrupted call has written, Ctrl-C is no error of the store, and nothing is locked."""
    store = client()
    run = store.create_run("0").info.run_id
    with pytest.raises(KeyboardInterrupt), _ctrl_c_in_a_commit():
        store.log_metric(run, "loss", 1.0, step=1)
    assert [found.value for found in store.get_metric_history(run, "loss")] == [1.0]
    store.set_terminated(run, "KILLED")
    assert store.get_run(run).info.status == "KILLED"


def test_a_second_ctrl_c_takes_effect_at_once() -> None:
    """Whoever does not want to wait for a slow store presses twice."""
    reached = []
    with pytest.raises(KeyboardInterrupt), signals_held():  # noqa: PT012 - what is reached counts
        signal.raise_signal(signal.SIGINT)
        reached.append(1)
        signal.raise_signal(signal.SIGINT)
        reached.append(2)
    assert reached == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
