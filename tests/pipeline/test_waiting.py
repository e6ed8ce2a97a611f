"""Waits end when their condition is true, and what is periodic ends with its block."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from patchline.pipeline.waiting import Periodic, wait_until
from tests.patience import patient, until


def test_a_wait_ends_with_its_condition_or_its_time() -> None:
    """The condition is checked at least once, and between two checks time passes."""
    answers = iter([0, "", "yes"])
    assert wait_until(lambda: next(answers), 0.0, patient(60))
    assert wait_until(lambda: True, 60.0, 0.0)
    began = time.monotonic()
    assert not wait_until(lambda: False, 0.01, 0.05)
    assert time.monotonic() - began >= 0.05


def test_an_error_of_the_condition_ends_the_wait() -> None:
    """Whoever waits hears of it."""
    with pytest.raises(ZeroDivisionError):
        wait_until(lambda: 1 // 0, 0.0, patient(60))


def test_a_periodic_function_is_called_until_the_block_ends() -> None:
    """An error does not end it; the thread has ended with the block."""
    calls: list[threading.Thread] = []

    def fail() -> None:
        calls.append(threading.current_thread())
        raise OSError

    with Periodic(fail, 0.01) as ended:
        until(lambda: len(calls) >= 3, "it was called too rarely")
        assert not ended.is_set()
    assert threading.current_thread() not in calls
    assert not calls[0].is_alive()


def test_the_first_call_has_a_time_of_its_own() -> None:
    """It may come at once, and the block's event ends it before the second."""
    called = threading.Event()
    with Periodic(called.set, 3600, first=0) as ended:
        assert called.wait(patient(60))
        ended.set()


def test_a_process_hears_that_its_input_has_closed() -> None:
    """Whatever it does meanwhile."""
    program = (
        "import os, time\n"
        "from patchline.pipeline.waiting import at_end_of_input\n"
        "at_end_of_input(lambda: os._exit(3))\n"
        "time.sleep(3600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as process:
        assert process.stdin
        process.stdin.write(b"words are read over")
        process.stdin.close()
        assert process.wait(patient(60)) == 3
