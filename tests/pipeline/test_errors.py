"""The tree of errors, and what each means to the shell."""

from __future__ import annotations

from patchline.pipeline import errors
from patchline.pipeline.errors import (
    PipelineError,
    RunError,
    UserError,
    WorkerError,
    error_class,
    first_line,
)

BY_USER = ("ConfigError", "DataError", "PluginError", "ModelReferenceError")
AT_RUN_TIME = (
    "StorageError",
    "StoreAwayError",
    "TrackingError",
    "ServerAwayError",
    "TakenOverError",
    "OrchestrationError",
    "DamagedFileError",
    "WorkerError",
    "PackagingError",
)


def test_tree_has_one_root_and_no_other_error() -> None:
    """Everything that is raised on purpose is one of the errors that are drawn in the module.

    What the user gave is wrong: exit code 2. Something failed while it ran: exit code 1. The name
    that a child process reports leads to the class again.
    """
    drawn = errors.__doc__ or ""
    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert defined == {"PipelineError", "UserError", "RunError", *BY_USER, *AT_RUN_TIME}
    for name in defined:
        kind = getattr(errors, name)
        assert f" {name} " in drawn
        assert error_class(name) is kind
        assert issubclass(kind, UserError) == (name in (*BY_USER, "UserError"))
        assert issubclass(kind, RunError) == (name in (*AT_RUN_TIME, "RunError"))
        assert issubclass(kind, PipelineError)
        assert kind("sentence").exit_code == (2 if issubclass(kind, UserError) else 1)
    for unknown in ("ValueError", "", "NoSuchError", "error_class"):
        assert error_class(unknown) is WorkerError


def test_the_first_line_of_an_error_fits_into_a_sentence() -> None:
    """It has no full stop and no secret, and is short; an error without a text is named."""
    assert first_line(ValueError("\nno such mode.\nSee the manual.")) == "no such mode"
    assert first_line(KeyError()) == "KeyError"
    assert first_line(KeyError(), "no message") == "no message"
    assert "secret" not in first_line(OSError("postgresql://me:secret@host/db is away"))
    assert len(first_line(OSError("x" * 1000))) == 300
