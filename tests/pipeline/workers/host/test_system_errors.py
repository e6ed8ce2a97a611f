"""What the machine, a server or a damaged file causes is a sentence with a remedy."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from botocore.exceptions import ClientError
from mlflow.exceptions import MlflowException
from prefect.exceptions import ObjectNotFound
from requests import HTTPError

from patchline.flows.command_line import run_command_line
from patchline.pipeline.errors import DamagedFileError, PipelineError
from patchline.pipeline.workers.host.system_errors import system_error


def refused(number: int, file: str = "a/b.txt") -> OSError:
    """Return what the operating system raises."""
    return OSError(number, os.strerror(number), file)


CASES: dict[str, tuple[Exception, str, str]] = {
    "permission": (refused(errno.EACCES), "a/b.txt may not be", "permissions"),
    "removed": (refused(errno.ENOENT), "There is no a/b.txt", "Check the path"),
    "full": (refused(errno.ENOSPC), "no space left to write a/b.txt", "Free some"),
    "open files": (refused(errno.EMFILE), "Too many files", "ulimit -n"),
    "memory": (MemoryError(), "too little memory", "training.batch_size"),
    "torch's memory": (
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
        "too little memory",
        "training.batch_size",
    ),
    "mlflow": (
        MlflowException("Run 'a' not found\nmore"),
        "(Run 'a' not found)",
        "MLFLOW_TRACKING",
    ),
    "database": (sqlite3.DatabaseError("file is not a database"), "not a database", "backup"),
    "server": (httpx.ConnectError("all attempts failed"), "did not answer", "PREFECT_API_URL"),
    "parquet": (pa.ArrowInvalid("Parquet magic bytes not found"), "damaged", "--fresh"),
    "keys": (
        ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "PutObject"),
        "(An error occurred (AccessDenied) when calling the PutObject operation: no)",
        "AWS_SECRET_ACCESS_KEY",
    ),
    "deleted flow run": (ObjectNotFound(Exception("gone")), "was deleted in Prefect", "again"),
    "proxied artifact": (
        HTTPError("500 Server Error for url: http://h:5000/api/2.0/mlflow-artifacts/artifacts/1"),
        "could not transfer an artifact",
        "keys that the server was started with",
    ),
    "package of an extra": (
        ModuleNotFoundError("No module named 'boto3'", name="boto3"),
        "The package boto3 is not installed",
        "`pip install 'patchline[s3]'`",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_an_error_of_the_machine_is_a_sentence(case: str) -> None:
    """It names the value and the remedy, for the error itself and where a library wraps it."""
    error, value, remedy = CASES[case]
    wrapped = RuntimeError("something else failed")
    wrapped.__cause__ = error
    for each in (error, wrapped):
        known = system_error(each)
        assert isinstance(known, PipelineError)
        assert value in str(known)
        assert remedy in str(known)
        assert str(known).endswith(".")


def test_an_error_of_the_code_is_none_of_the_machine() -> None:
    """A fault in Patchline is not reported as one of the machine; a sentence of ours is kept."""
    for error in (RuntimeError("tensors differ"), KeyError("a"), ValueError("x"), TypeError("y")):
        assert system_error(error) is None
    known = DamagedFileError("It is damaged. Restore it.")
    assert system_error(known) is known


def test_a_working_directory_that_was_removed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of the system names no file."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    known = system_error(FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)))
    assert str(known) == "The working directory was removed. Change to another folder."
    assert run_command_line(["models"]) == 1


def test_a_fault_while_an_error_of_the_machine_is_handled_stays_a_fault() -> None:
    """Nobody is sent to restore a file because of a misspelt key of ours."""
    fault = KeyError("lable")
    fault.__context__ = FileNotFoundError(2, "No such file or directory", "photo.png")
    assert system_error(fault) is None
    fault.__cause__ = fault.__context__
    assert "photo.png" in str(system_error(fault))
