"""Every error that Patchline raises on purpose.

    PipelineError                 one sentence: the value, the rule, the remedy
    ├── UserError                 what the user gave is wrong            (exit code 2)
    │   ├── ConfigError           a setting, a preset, a config file
    │   ├── DataError             the images or their labels
    │   ├── PluginError           a plugin is unknown, broken or misused
    │   └── ModelReferenceError   a model name, version or alias
    └── RunError                  something failed while it ran          (exit code 1)
        ├── StorageError          a disk that is full or may not be written
        ├── TrackingError         MLflow or its store
        │   └── ServerAwayError   it does not answer; later it may
        ├── OrchestrationError    Prefect, the local servers, a schedule
        ├── DamagedFileError      weights or a checkpoint that are not what was written
        ├── WorkerError           a training, evaluation or packaging process
        └── PackagingError        the package disagrees with the model

An error's text is what a person reads, so it never needs a traceback to be understood.
"""

from __future__ import annotations

from pipeline.redaction import redacted


class PipelineError(Exception):
    """The root of all errors that Patchline raises on purpose; its text holds no secrets."""

    exit_code = 1

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(redacted(each) if isinstance(each, str) else each for each in arguments))


class UserError(PipelineError):
    """What the user gave is wrong."""

    exit_code = 2


class ConfigError(UserError):
    """A setting, a preset or a config file is wrong."""


class DataError(UserError):
    """The images or their labels cannot be used."""


class PluginError(UserError):
    """A plugin is unknown, broken or misused."""


class ModelReferenceError(UserError):
    """A model name, version or alias does not exist."""


class RunError(PipelineError):
    """Something failed while it ran."""


class StorageError(RunError):
    """A file could not be written."""


class DamagedFileError(RunError):
    """A file of weights is not what was written."""


class TrackingError(RunError):
    """MLflow, or the store behind it, did not do its part."""


class ServerAwayError(TrackingError):
    """MLflow, or the store behind it, does not answer; later it may."""


class OrchestrationError(RunError):
    """Prefect, the servers of `patchline up`, or a schedule did not do its part."""


class WorkerError(RunError):
    """A training, evaluation or packaging process ended badly."""


class PackagingError(RunError):
    """The packaged model does not compute what the trained model computes."""


def error_class(name: str) -> type[PipelineError]:
    """Return the class of that name; `WorkerError` when there is none.

    A child process reports an error by class name and text; the parent raises the same class.
    """
    pending: list[type[PipelineError]] = [PipelineError]
    while pending:
        candidate = pending.pop()
        if candidate.__name__ == name:
            return candidate
        pending.extend(candidate.__subclasses__())
    return WorkerError
