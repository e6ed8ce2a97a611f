"""What a check is: a name, a function that passes or says what is wrong, perhaps an exception."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from pipeline.errors import PipelineError, PluginError
from pipeline.section import Section


class CheckError(AssertionError):
    """A plugin does not do what its contract says; the text says what, and what to do."""


def require(holds: object, sentence: str) -> None:
    """Fail the running check with a sentence unless the condition holds."""
    if not holds:
        raise CheckError(sentence)


class CheckResult(Section):
    """How one check ended."""

    name: str
    status: Literal["passed", "failed", "excepted"]
    seconds: float
    message: str
    """Why it failed, or the reason of the declared exception."""


@dataclass(frozen=True)
class Check:
    """One rule of the contract, for one plugin; call it to hold the plugin against it.

    A check with a `reason` is a declared exception: it is run all the same, and fails when the
    plugin does pass, so that no exception outlives its reason.
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
            CheckError: if the plugin breaks the rule, or passes in spite of a declared exception.
        """
        try:
            self._run()
        except CheckError:
            if self.reason is None:
                raise
            return
        if self.reason is not None:
            raise CheckError(
                f"It passes {self.name}, which it declares as an exception. Remove the exception."
            )

    def result(self) -> CheckResult:
        """Run the check and return how it ended."""
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
        except Exception as error:  # whatever a plugin raises breaks its contract
            reason = (str(error).strip() or "no message").splitlines()[0]
            raise CheckError(f"It raised {type(error).__name__}: {reason}") from error


Rule = tuple[str, Callable[[], None]]
"""A check's name and its function, whose docstring is the summary."""


def with_exceptions(rules: Iterable[Rule], exceptions: Mapping[str, str]) -> Iterator[Check]:
    """Return a plugin's checks, its declared exceptions among them.

    Raises:
        PluginError: for an exception without a reason, or for a check that does not exist.
    """
    rules = list(rules)
    names = [name for name, _ in rules]
    for name, reason in exceptions.items():
        if name not in names:
            raise PluginError(
                f"The plugin declares an exception for '{name}', but there is no such check. "
                f"Checks: {', '.join(names)}."
            )
        if not reason.strip():
            raise PluginError(
                f"The plugin declares an exception for '{name}' without a reason. Say why."
            )
    for name, function in rules:
        summary = (function.__doc__ or "").partition("\n")[0]
        yield Check(name, summary, function, exceptions.get(name))
