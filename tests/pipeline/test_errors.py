"""The tree of errors, and what each means to the shell."""

from __future__ import annotations

import pytest

from patchline.pipeline import errors
from patchline.pipeline.errors import PipelineError, RunError, UserError, WorkerError, error_class

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


@pytest.mark.parametrize("name", BY_USER)
def test_error_of_the_user_has_exit_code_2(name: str) -> None:
    """What the user gave is wrong: exit code 2."""
    error = getattr(errors, name)("sentence")
    assert isinstance(error, UserError)
    assert not isinstance(error, RunError)
    assert error.exit_code == 2


@pytest.mark.parametrize("name", AT_RUN_TIME)
def test_error_at_run_time_has_exit_code_1(name: str) -> None:
    """Something failed while it ran: exit code 1."""
    error = getattr(errors, name)("sentence")
    assert isinstance(error, RunError)
    assert not isinstance(error, UserError)
    assert error.exit_code == 1


def test_tree_has_one_root_and_no_other_error() -> None:
    """Everything that is raised on purpose is one of the errors that are drawn in the module."""
    drawn = errors.__doc__ or ""
    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert defined == {"PipelineError", "UserError", "RunError", *BY_USER, *AT_RUN_TIME}
    assert all(issubclass(getattr(errors, name), PipelineError) for name in defined)
    assert all(f" {name} " in drawn for name in defined)


@pytest.mark.parametrize("name", ["PipelineError", "UserError", "RunError", *BY_USER, *AT_RUN_TIME])
def test_class_is_found_by_its_name(name: str) -> None:
    """The name that a child process reports leads to the class again."""
    assert error_class(name) is getattr(errors, name)


@pytest.mark.parametrize("name", ["ValueError", "", "Exception", "NoSuchError", "error_class"])
def test_unknown_name_is_a_worker_error(name: str) -> None:
    """An error that Patchline did not raise on purpose is the worker's."""
    assert error_class(name) is WorkerError


def test_text_of_an_error_is_its_sentence() -> None:
    """An error prints as the sentence that it was raised with."""
    assert str(errors.DataError("There is no folder x. Check the path.")).startswith("There is no")
