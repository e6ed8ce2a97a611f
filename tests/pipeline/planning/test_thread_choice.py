"""How many torch threads a run uses: measured once, where other programs use the cores."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest
import torch

from patchline.pipeline.planning.measuring import (
    OtherPrograms,
    busy_seconds,
    measure_rates,
)


def test_the_mean_counts_and_not_the_fastest_step() -> None:
    """On a busy machine a step is fast now and then, while the other programs wait."""

    def lucky(_: int) -> Iterator[float]:
        for number in range(1000):
            yield 0.1 if torch.get_num_threads() == 1 or number % 7 == 0 else 1.0

    before = torch.get_num_threads()
    rates = measure_rates(lucky, [2, 1], 8, 0.01)
    assert rates[1] == pytest.approx(80)
    assert rates[2] < 40
    assert torch.get_num_threads() == before


def test_own_children_are_no_other_programs() -> None:
    """A data-loader worker belongs to the training."""
    loop = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    with subprocess.Popen(
        [sys.executable, "-c", f"{loop}\ninput()"], stdin=subprocess.PIPE
    ) as child:
        child_seconds = 0.0
        while child_seconds < 0.3:
            times = psutil.Process(child.pid).cpu_times()
            child_seconds = times.user + times.system
            time.sleep(0.05)
        others = OtherPrograms()
        _, of_others = others.sample()
        own = time.process_time()
        assert busy_seconds() - of_others >= child_seconds + own - 0.1
        time.sleep(0.5)  # the system counts in hundredths of a second
        assert 0 <= others.cores() <= (os.cpu_count() or 1) + 0.5
        child.communicate(b"\n")
