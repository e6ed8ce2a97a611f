"""The errors that Patchline raises deliberately.

    PipelineError                 one sentence: the value, the rule, the remedy
    ├── UserError                 invalid input                          (exit code 2)
    │   ├── ConfigError           a setting, a preset, a config file
    │   ├── DataError             the images or their labels
    │   ├── PluginError           a plugin is unknown, broken or misused
    │   └── ModelReferenceError   a model name, version or alias
    └── RunError                  a failure at run time                  (exit code 1)
        ├── StorageError          a disk or an object store that fails, is full or read-only
        │   └── StoreAwayError    an object store that cannot be reached
        ├── TrackingError         MLflow or its store
        │   └── ServerAwayError   temporarily not responding
        ├── TakenOverError        another process continues the run
        ├── OrchestrationError    Prefect, the local servers, a schedule
        ├── DamagedFileError      damaged weights or a damaged checkpoint
        ├── WorkerError           a training run, evaluation or packaging process
        └── PackagingError        the package differs from the model

An error's text is shown to the user and is clear without a traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from patchline.pipeline.redaction import redact_text


def first_line(error: BaseException, if_empty: str = "") -> str:
    """Return the first line of an error's text, without secrets, as part of a sentence.

    Args:
        error: what was raised.
        if_empty: what to return if it has no text; by default the name of its class.
    """
    lines = redact_text(str(error)).strip().splitlines() or [if_empty or type(error).__name__]
    return lines[0][:300].rstrip(". ")


def suggest_name(name: str, names: Iterable[str]) -> str:
    """Return a question for the name that is spelled most like an unknown one, after a space.

    Args:
        name: what does not exist.
        names: what does.

    Returns:
        An empty text if no name is close.
    """
    close = difflib.get_close_matches(name, list(names), n=1)
    return f" Did you mean '{close[0]}'?" if close else ""


class PipelineError(Exception):
    """The base class of all deliberate errors; secrets are removed from the text."""

    exit_code = 1

    def __init__(self, *arguments: object) -> None:
        super().__init__(
            *(redact_text(each) if isinstance(each, str) else each for each in arguments)
        )


class UserError(PipelineError):
    """Invalid input from the user."""

    exit_code = 2


class ConfigError(UserError):
    """A setting, a preset or a config file is invalid."""


class DataError(UserError):
    """The images or their labels cannot be used."""


class PluginError(UserError):
    """A plugin is unknown, broken or misused."""


class ModelReferenceError(UserError):
    """A model name, version or alias does not exist."""


class RunError(PipelineError):
    """A failure at run time."""


class StorageError(RunError):
    """A disk or an object store has failed."""


class StoreAwayError(StorageError):
    """An object store cannot be reached."""


class DamagedFileError(RunError):
    """A file of weights is damaged."""


class TrackingError(RunError):
    """MLflow, or the store behind it, failed."""


class ServerAwayError(TrackingError):
    """MLflow, or the store behind it, does not respond at the moment."""


class TakenOverError(RunError):
    """Another process continues the run, because this one seemed to be gone."""


class OrchestrationError(RunError):
    """Prefect, the servers of `patchline up`, or a schedule failed."""


class WorkerError(RunError):
    """A training, evaluation or packaging process failed."""


class PackagingError(RunError):
    """The packaged model gives other results than the trained model."""


def error_class(name: str) -> type[PipelineError]:
    """Return the class with that name, or `WorkerError` if there is none.

    A child process reports an error by class name and text; the parent raises the same class.
    """
    pending: list[type[PipelineError]] = [PipelineError]
    while pending:
        candidate = pending.pop()
        if candidate.__name__ == name:
            return candidate
        pending.extend(candidate.__subclasses__())
    return WorkerError
