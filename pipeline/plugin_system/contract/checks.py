"""Define a check: a name, a function that passes or raises `CheckError`, an expected failure."""

from __future__ import annotations

import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from patchline.pipeline.errors import ConfigError, PipelineError, PluginError, first_line
from patchline.pipeline.frozen_model import FrozenModel

_USUAL_SIDES, _LARGEST_SIDE = (32, 64, 96, 128, 224, 256), 384
S = TypeVar("S")


class CheckError(AssertionError):
    """A plugin fails a conformance check; the message says why, and how to fix it."""


def require(holds: object, sentence: str) -> None:
    """Fail the running check with the sentence unless the condition holds."""
    if not holds:
        raise CheckError(sentence)


class CheckResult(FrozenModel):
    """The result of one check."""

    name: str
    status: Literal["passed", "failed", "excepted"]
    seconds: float
    message: str
    """Why it failed, or the reason why the failure is expected."""


@dataclass(frozen=True)
class Check:
    """One conformance check of one plugin; call it to run the check.

    A check with a `reason` is expected to fail: it is run all the same, and it is an error if the
    plugin passes, so that no expected failure outlives its reason.
    """

    name: str
    summary: str
    function: Callable[[], None]
    reason: str | None = None

    def __str__(self) -> str:
        return self.name

    def __call__(self) -> None:
        """Run the check.

        Raises:
            CheckError: if the plugin fails the check, or passes although a failure is expected.
        """
        try:
            self._run()
        except CheckError:
            if self.reason is None:
                raise
            return
        if self.reason is not None:
            raise CheckError(
                f"It passes {self.name}, which is among its expected_failed_checks. Remove it."
            )

    def result(self) -> CheckResult:
        """Run the check and return the result."""
        began = time.monotonic()
        status: Literal["passed", "failed", "excepted"] = "excepted" if self.reason else "passed"
        message = self.reason or ""
        try:
            self()
        except CheckError as error:
            status, message = "failed", str(error)
        seconds = time.monotonic() - began
        return CheckResult(name=self.name, status=status, seconds=seconds, message=message)

    def _run(self) -> None:
        try:
            self.function()
        except CheckError:
            raise
        except PipelineError as error:
            raise CheckError(str(error)) from error
        except Exception as error:  # any exception from a plugin fails the check
            reason = first_line(error, "no message")
            raise CheckError(f"It raised {type(error).__name__}: {reason}") from error


class CheckedPlugin:
    """A plugin with the settings that it is checked with."""

    def __init__(self, plugin: Any, settings: Any) -> None:
        self.plugin, self.settings = plugin, settings

    @cached_property
    def folder(self) -> Path:
        """A folder for all checks, removed with this object."""
        folder = Path(tempfile.mkdtemp()).resolve()
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return folder


def checks(subject: S, *functions: Callable[[S], None]) -> list[Check]:
    """Return a check of the subject for each function: its name, and the line that explains it."""
    return [
        Check(each.__name__, (each.__doc__ or "").partition("\n")[0], partial(each, subject))
        for each in functions
    ]


def with_expected_failures(
    table: Iterable[Check], expected_failures: Mapping[str, str]
) -> list[Check]:
    """Return a plugin's checks with the reasons of those that are expected to fail.

    Raises:
        PluginError: for an expected failure without a reason, or of a check that does not exist.
    """
    by_name = {check.name: check for check in table}
    for name, reason in expected_failures.items():
        if name not in by_name:
            raise PluginError(
                f"expected_failed_checks names '{name}', but there is no such check. "
                f"Checks: {', '.join(by_name)}."
            )
        if not reason.strip():
            raise PluginError(
                f"expected_failed_checks gives no reason for '{name}'. Add the reason."
            )
        by_name[name] = replace(by_name[name], reason=reason)
    return list(by_name.values())


def find_accepted_side(attempt: Callable[[int], object]) -> int:
    """Return the smallest usual side of a square image that an attempt does not refuse.

    Raises:
        ConfigError: if it refuses all of them, 32 to 384 pixels.
    """
    for side in _USUAL_SIDES:
        with suppress(ConfigError):
            attempt(side)
            return side
    attempt(_LARGEST_SIDE)
    return _LARGEST_SIDE
