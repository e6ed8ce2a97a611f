"""Tests of `patchline.plugins.tools.monitor.check_journal`."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from patchline.pipeline.errors import ConfigError, StorageError
from patchline.pipeline.evaluation.metrics.intervals import proportion
from patchline.plugins.tools.monitor.check_journal import (
    CheckJournal,
    Period,
    StreamCheck,
    period_of,
)
from patchline.plugins.tools.monitor.drift_tests import DriftTest, DriftTests
from patchline.plugins.tools.monitor.shifts import ConfidenceShift


def check_of(number: int, period: Period | None = None, p_value: float = 0.5) -> StreamCheck:
    """Return a check of twenty images."""
    period, share = period or Period(), proportion(18, 20)
    test = DriftTest(p_value=p_value, level=period.level, statistic=0.1, method="any")
    return StreamCheck(
        number=number,
        at="2026-01-01T00:00:00+00:00",
        false_alarms=period.false_alarms,
        checks=period.checks,
        spent=period.spent(number),
        images=20,
        tests=DriftTests(tests={"outputs": test}, p_value=p_value, level=period.level, unknown={}),
        labels=(),
        confidence=ConfidenceShift(before=share, now=share),
        accuracy=None,
        notes=(),
        page=Path("page.html"),
        keys=tuple(f"{number}-{image}" for image in range(20)),
    )


_WRITER = """
import sys
from pathlib import Path
from tests.plugins.tools.monitor.test_check_journal import check_of
from patchline.plugins.tools.monitor.check_journal import CheckJournal

journal = CheckJournal(Path(sys.argv[1]), "digits/1", "inbox")
print("ready", flush=True)
for _ in range(int(sys.argv[2])):
    with journal.alone():
        journal.write(check_of(len(journal.checks()) + 1))
        print("told", flush=True)
"""


@pytest.fixture
def journal(tmp_path: Path) -> CheckJournal:
    return CheckJournal(tmp_path, "digits/1", "inbox")


def test_two_processes_share_the_numbers_even_if_one_is_killed(
    journal: CheckJournal, tmp_path: Path
) -> None:
    """Each check has a level of its own; every result that was told is kept, at most one more."""
    with subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(tmp_path), "10000"],
        cwd=Path(__file__).parents[3],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for _ in range(10):
            with journal.alone():
                journal.write(check_of(len(journal.checks()) + 1))
            process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        told = 20 + process.stdout.read().count("told")
    checks = journal.checks()
    assert told <= len(checks) <= told + 1
    assert [each.number for each in checks] == list(range(1, len(checks) + 1))
    in_period = (len(checks) - 1) % 365 + 1  # a fast machine begins another period
    assert checks[-1].spent == pytest.approx(in_period * 0.05 / 365)
    with journal.alone():
        journal.write(check_of(len(checks) + 1))


def test_streams_and_versions_have_journals_of_their_own(tmp_path: Path) -> None:
    """Two folders of the same name, and two versions, spend a rate each."""
    names = [("digits/1", "/a/inbox"), ("digits/1", "/b/inbox"), ("digits/2", "/a/inbox")]
    journals = [CheckJournal(tmp_path, version, stream) for version, stream in names]
    assert len({each.folder for each in journals}) == 3
    journals[0].write(check_of(1))
    assert [len(each.checks()) for each in journals] == [1, 0, 0]


def test_a_drift_waits_to_be_told_from_before_its_check_counts(journal: CheckJournal) -> None:
    """A kill between the two writes leaves no drift that nobody hears of, and none that is not."""
    for number, p_value in ((1, 1e-9), (2, 0.5), (3, 1e-9)):
        journal.write(check_of(number, p_value=p_value))
    assert [each.number for each in journal.untold()] == [1, 3]
    journal.note_told(check_of(1))
    assert [each.number for each in journal.untold()] == [3]
    journal.file_of(3).unlink()  # as if it was killed before the check counted
    assert journal.untold() == []
    journal.write(check_of(3))
    assert list(journal.folder.glob("*.untold")) == []


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (None, "Check 2 is missing"),
        (b'{"number": 2', "000002.json cannot be read .*JSON"),
        (b'{"other": 1}', "number: Field required"),
        (b"\xff", "000002.json cannot be read"),
    ],
)
def test_a_damaged_journal_is_no_empty_one(
    journal: CheckJournal, damage: bytes | None, words: str
) -> None:
    """What is spent is not known then; the error names the remedy."""
    for number in (1, 2, 3):
        journal.write(check_of(number))
    if damage is None:
        journal.file_of(2).unlink()
    else:
        journal.file_of(2).write_bytes(damage)
    with pytest.raises(StorageError, match=rf"{words}.*is not known.*begin again"):
        journal.checks()


def test_the_rate_of_a_stream_does_not_change() -> None:
    """Another value is refused with the flag; without one, the first value holds."""
    period = Period(0.1, 30)
    earlier = [check_of(1, period)]
    assert period_of([], None, None) == Period()
    for checks, rate, count in (([], 0.1, 30), (earlier, None, None), (earlier, 0.1, 30)):
        assert period_of(checks, rate, count) == period
    with pytest.raises(ConfigError, match=r"--false-alarms is 0\.05.*0\.1 since"):
        period_of(earlier, 0.05, None)
    with pytest.raises(ConfigError, match=r"--checks is 365.*30 since"):
        period_of(earlier, None, 365)


@given(st.floats(0.001, 0.5), st.integers(1, 2000), st.integers(1, 5000))
def test_a_period_never_spends_more_than_its_rate(rate: float, checks: int, check: int) -> None:
    """Whatever the rate, and also after the period is over and the next has begun."""
    period = Period.checked(rate, checks)
    assert period.level <= period.spent(check) <= rate * (1 + 1e-9)
    in_period = range(check - period.place(check) + 1, check + 1)
    assert period.level * len(in_period) <= period.spent(check)
    assert period.level * checks == pytest.approx(rate / 2)  # the rest is for the reference


def test_nothing_is_spent_before_the_first_check() -> None:
    """All of the rate is left."""
    assert Period().spent(0) == 0


@pytest.mark.parametrize(
    ("rate", "checks", "flag"),
    [(0, 10, "--false-alarms"), (1, 10, "--false-alarms"), (0.05, 0, "--checks")],
)
def test_an_impossible_period_is_refused(rate: float, checks: int, flag: str) -> None:
    """With the flag and the value."""
    with pytest.raises(ConfigError, match=flag):
        Period.checked(rate, checks)
