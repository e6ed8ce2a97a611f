"""Define a check: a name, a function that passes or raises `CheckError`, an expected failure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from patchline.pipeline.errors import PipelineError, PluginError
from patchline.pipeline.frozen_model import FrozenModel


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
            reason = (str(error).strip() or "no message").splitlines()[0]
            raise CheckError(f"It raised {type(error).__name__}: {reason}") from error


Rule = tuple[str, Callable[[], None]]
"""A check's name and its function, whose docstring is the summary."""


def with_expected_failures(
    rules: Iterable[Rule], expected_failures: Mapping[str, str]
) -> Iterator[Check]:
    """Return a plugin's checks, including those that are expected to fail.

    Raises:
        PluginError: for an expected failure without a reason, or of a check that does not exist.
    """
    rules = list(rules)
    names = [name for name, _ in rules]
    for name, reason in expected_failures.items():
        if name not in names:
            raise PluginError(
                f"expected_failed_checks names '{name}', but there is no such check. "
                f"Checks: {', '.join(names)}."
            )
        if not reason.strip():
            raise PluginError(
                f"expected_failed_checks gives no reason for '{name}'. Add the reason."
            )
    for name, function in rules:
        summary = (function.__doc__ or "").partition("\n")[0]
        yield Check(name, summary, function, expected_failures.get(name))
