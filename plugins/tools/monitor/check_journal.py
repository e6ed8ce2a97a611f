"""The checks of one stream, kept so that their levels add up to the stated rate.

Each check is a file of its own, written under a temporary name and renamed before anybody is told
its result. So a check that was killed has told nothing and spent nothing, and one that told
something has spent its level. A lock lets one process at a time check a stream.

Beside a check that found a drift is a file `….untold` until the server has taken the event of it.
It is written before the check, so a kill in between leaves an event that is still to be sent, never
one that is lost.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

from pydantic import ValidationError

from patchline.pipeline.errors import ConfigError, StorageError
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.terminal_words import counted
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.files.file_locks import hold_lock
from patchline.plugins.tools.monitor.drift_tests import ClassShares, DriftTests
from patchline.plugins.tools.monitor.shifts import (
    ConfidenceShift,
    LabelledAccuracy,
    LabelShift,
    Prediction,
)

FOLDER = "monitoring"
"""In the workspace."""
_DIGITS = 6
_UNTOLD = ".untold"


class StreamCheck(FrozenModel):
    """One check of a stream, and its result."""

    number: int
    """The number of the check, counted from 1."""
    at: str
    """The time at which it ended: ISO 8601, UTC."""
    false_alarms: float
    """Probability of any false alarm in a period of checks."""
    checks: int
    """The number of checks in a period."""
    spent: float
    """Part of `false_alarms` that is spent in this period, this check included."""
    images: int
    independent_images: int | None = None
    """The number of images that the tests take: of near duplicates and of the images of a group,
    one counts. None if an earlier Patchline made the check."""
    reference_images: int | None = None
    independent_reference_images: int | None = None
    independence_unknown: tuple[str, ...] = ()
    """What is not known about it; with any, false alarms may be more frequent than stated."""
    tests: DriftTests
    class_shares: ClassShares | None = None
    """Whether new shares of the classes explain a drift; None without drift, or with several labels
    an image."""
    labels: tuple[LabelShift, ...]
    """How often each class or label is predicted, the largest change first."""
    confidence: ConfidenceShift
    accuracy: LabelledAccuracy | None
    """The accuracy on all images of the stream that had a label then; None if that was not
    known."""
    accuracy_unknown: str = ""
    """Why it was not known."""
    notes: tuple[str, ...]
    page: Path
    keys: tuple[str, ...]
    """The key of each image: SHA-256 of a file or of an array, or the id of a recorded answer."""
    predictions: tuple[Prediction, ...] = ()
    """The prediction for each image, for labels that come later; empty if an earlier Patchline made
    the check."""

    @property
    def drift(self) -> bool:
        """Whether the images differ from the reference."""
        return self.tests.drift

    def independence(self) -> str:
        """Return how many images count, in words; empty if it is not recorded."""
        if self.independent_images is None:
            return ""
        return (
            f"{self.independent_images:,} of {counted(self.images, 'new image')} and "
            f"{self.independent_reference_images:,} of "
            f"{counted(self.reference_images or 0, 'reference image')}; near duplicates and groups "
            "are counted once"
        )


class CheckJournal:
    """The checks of one stream with one version.

    Args:
        workspace: the folder `.patchline`.
        version: the version as `flowers/3`.
        stream: identifies the stream: an absolute path, or an address.
    """

    def __init__(self, workspace: Path, version: str, stream: str) -> None:
        digest = hashlib.sha256(stream.encode("utf-8", "surrogateescape")).hexdigest()[:12]
        readable = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(stream).name)[:40].strip("-.")
        name = f"{readable}-{digest}" if readable else digest
        self.folder = workspace / FOLDER / version.replace("/", "-") / name
        self.stream = stream

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes from checking the stream within the context."""
        with hold_lock(self.folder / "lock"):
            yield

    def checks(self) -> list[StreamCheck]:
        """Return the checks so far, in order.

        Raises:
            StorageError: if a check is damaged or missing, so that the rate is not known.
        """
        files = sorted(self.folder.glob(f"{'[0-9]' * _DIGITS}.json"))
        checks = []
        for number, file in enumerate(files, start=1):
            try:
                check = StreamCheck.from_file(file)
            except (OSError, ValidationError) as error:
                raise StorageError(
                    f"The check {file} cannot be read ({_reason(error)}), so how much of the "
                    "false-alarm rate is spent is not known. Restore it from a backup, update "
                    "Patchline if a later version wrote it, or remove the folder "
                    f"{self.folder} to begin again."
                ) from error
            if check.number != number:
                raise StorageError(
                    f"Check {number} is missing in {self.folder}, so how much of the false-alarm "
                    "rate is spent is not known. Restore it from a backup, or remove the folder to "
                    "begin again."
                )
            page = self.file_of(number, ".html")  # the workspace may have been moved
            checks.append(check.model_copy(update={"page": page}))
        return checks

    def file_of(self, number: int, suffix: str = ".json") -> Path:
        """Return the file of a check, or another one beside it."""
        return self.folder / f"{number:0{_DIGITS}}{suffix}"

    def write(self, check: StreamCheck) -> None:
        """Keep the next check, whose level is spent then; a drift's event is still to be sent."""
        untold = self.file_of(check.number, _UNTOLD)
        if check.drift:
            write_text(untold, "")
        else:
            untold.unlink(missing_ok=True)  # of a process that was killed before its check counted
        check.to_file(self.file_of(check.number))

    def untold(self) -> list[StreamCheck]:
        """Return the checks whose drift has not been told, in order.

        Raises:
            StorageError: if a check is damaged or missing.
        """
        waiting = {file.stem for file in self.folder.glob(f"*{_UNTOLD}")}
        checks = self.checks() if waiting else []
        return [each for each in checks if each.drift and self.file_of(each.number).stem in waiting]

    def note_told(self, check: StreamCheck) -> None:
        """Note that the drift of a check has been told."""
        self.file_of(check.number, _UNTOLD).unlink(missing_ok=True)


def _reason(error: OSError | ValidationError) -> str:
    if isinstance(error, OSError):
        return str(error.strerror)
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")


def period_of(earlier: list[StreamCheck], false_alarms: float | None, checks: int | None) -> Period:
    """Return the period of a stream: that of its checks, or the given one if it has none.

    Args:
        earlier: the checks so far.
        false_alarms: the probability of any false alarm in a period, given by the user; None for
            the earlier, or the default.
        checks: the number of checks in a period, given by the user; None for the earlier, or the
            default.

    Raises:
        ConfigError: if they differ from those of earlier checks.
    """
    if not earlier:
        default = Period()
        return Period.checked(
            default.false_alarms if false_alarms is None else false_alarms,
            default.checks if checks is None else checks,
        )
    kept = Period(earlier[-1].false_alarms, earlier[-1].checks)
    for flag, given, before in (
        ("--false-alarms", false_alarms, kept.false_alarms),
        ("--checks", checks, kept.checks),
    ):
        if given is not None and given != before:
            raise ConfigError(
                f"{flag} is {given:g}, but this stream has been monitored with {before:g} since "
                "its first check; with another value the rate would not hold. Leave it out, or "
                f"remove the folder {earlier[-1].page.parent} to begin again."
            )
    return kept


_FOR_THE_REFERENCE = 0.5
"""Part of the rate that is kept for an unusual reference."""
FALSE_ALARMS, CHECKS = 0.05, 365
"""The rate over a period, and the checks of a period: a year of daily checks."""


class Period(NamedTuple):
    """What a stream is monitored with, so that one false-alarm rate holds over all of its checks.

    Every check spends a part of the rate. However the checks depend on each other (all share one
    reference, and the images of two checks may be alike), the probability of any false alarm is at
    most the sum of the levels (Bonferroni), on average over references. A reference is a sample,
    too: one that happens to be unusual makes all checks of its version alarm more often. So half of
    the rate is kept for that, and the checks share the other half: with 5% over 365 checks, each is
    tested at a level of 0.025 / 365. Lan and DeMets (1983) call this spending; an equal share for
    each check treats a drift on the last day like one on the first.

    After the last check of a period, the next one begins, with a rate of its own.
    """

    false_alarms: float = FALSE_ALARMS
    """Probability of any false alarm in a period."""
    checks: int = CHECKS
    """The number of checks in a period."""

    @classmethod
    def checked(cls, false_alarms: float, checks: int) -> Self:
        """Return the period.

        Raises:
            ConfigError: if a value is not possible.
        """
        if not 0 < false_alarms < 1:
            raise ConfigError(
                f"--false-alarms is {false_alarms:g}, but must lie between 0 and 1. Choose a rate "
                "such as 0.05."
            )
        if checks < 1:
            raise ConfigError(
                f"--checks is {checks}, but must be at least 1. Choose a larger number."
            )
        return cls(false_alarms, checks)

    @property
    def level(self) -> float:
        """The level of each check."""
        return self.false_alarms * (1 - _FOR_THE_REFERENCE) / self.checks

    def spent(self, checks: int) -> float:
        """Return the part of the rate that is spent in the current period after so many checks.

        Each check also spends its share of what is kept for the reference.
        """
        return self.false_alarms * self.place(checks) / self.checks if checks else 0.0

    def place(self, check: int) -> int:
        """Return the number of a check within its period; both are counted from 1."""
        return (check - 1) % self.checks + 1

    def words(self) -> str:
        """Return what is promised, in words."""
        checks = "1 check" if self.checks == 1 else f"{self.checks:,} checks"
        return f"at most {self.false_alarms:.3g} false alarms in {checks}"
