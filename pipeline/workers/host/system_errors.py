"""Errors of the machine, and of the libraries that meet them, in a sentence with a remedy.

What Patchline expects at a place is handled there; this is for failures that may happen anywhere: a
file that somebody removes while it is read, a limit of the operating system, a server that goes
away in the middle of a request.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

from patchline.pipeline.errors import (
    DamagedFileError,
    OrchestrationError,
    PipelineError,
    RunError,
    ServerAwayError,
    StorageError,
    TrackingError,
    first_line,
)

_Kinds = tuple[tuple[frozenset[int], type[PipelineError], str], ...]
_OF_THE_SYSTEM: _Kinds = (
    (
        frozenset({errno.EMFILE, errno.ENFILE}),
        RunError,
        (
            "Too many files are open at once ({reason}). Raise the limit of this process with "
            "`ulimit -n 4096`, and try again."
        ),
    ),
    (
        frozenset({errno.EFBIG}),
        StorageError,
        (
            "{file} would be larger than files may be here ({reason}). Raise the limit with "
            "`ulimit -f unlimited`, or work on another disk."
        ),
    ),
    (
        frozenset({errno.EACCES, errno.EPERM, errno.EROFS}),
        StorageError,
        (
            "{file} may not be read or written ({reason}). Change its permissions, or work in a"
            " folder of your own."
        ),
    ),
    (
        frozenset({errno.ENOSPC, errno.EDQUOT}),
        StorageError,
        "There is no space left to write {file}. Free some, and try again.",
    ),
    (
        frozenset({errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY}),
        StorageError,
        "{file} is in the way ({reason}). Move it elsewhere, and try again.",
    ),
    (
        frozenset({errno.ENOENT}),
        StorageError,
        (
            "There is no {file} ({reason}). Check the path; if something has removed it meanwhile, "
            "run the command again."
        ),
    ),
    (
        frozenset({errno.ENAMETOOLONG}),
        StorageError,
        "The name of {file} is too long ({reason}). Choose a shorter one.",
    ),
)
"""What is said of an error of the operating system, by its number."""
_OTHER = "{file} cannot be read or written ({reason}). Check the disk or the network drive."
_ARTIFACTS = "mlflow-artifacts"
"""In the addresses at which an MLflow server transfers artifacts."""
_DELETED = "prefect.exceptions.ObjectNotFound"
_OF_LIBRARIES: tuple[tuple[tuple[str, ...], type[PipelineError], str], ...] = (
    (
        ("mlflow",),
        TrackingError,
        (
            "MLflow failed ({reason}). Check MLFLOW_TRACKING_URI, the server and its files, and"
            " run the command again."
        ),
    ),
    (
        ("sqlalchemy", "sqlite3", "psycopg2", "asyncpg", "alembic"),
        TrackingError,
        (
            "A database of MLflow or Prefect failed ({reason}). Check its file or server, or "
            "restore it from a backup."
        ),
    ),
    (
        (_DELETED,),
        OrchestrationError,
        (
            "Something that the command uses was deleted in Prefect meanwhile, such as its flow "
            "run. What was computed is kept: run the command again, which uses it."
        ),
    ),
    (
        ("prefect",),
        OrchestrationError,
        (
            "Prefect failed ({reason}). Check its server with `patchline up`, and run the "
            "command again."
        ),
    ),
    (
        (_ARTIFACTS,),
        ServerAwayError,
        (
            "The MLflow server could not transfer an artifact ({reason}). Check the bucket, and the"
            " keys that the server was started with; its log has the reason."
        ),
    ),
    (
        ("boto3", "botocore", "s3transfer"),
        ServerAwayError,
        (
            "The object store of the artifacts failed ({reason}). Check the bucket, "
            "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL."
        ),
    ),
    (
        ("httpx", "httpcore", "requests", "urllib3", "websockets"),
        OrchestrationError,
        (
            "A server did not answer ({reason}). Check PREFECT_API_URL, MLFLOW_TRACKING_URI and"
            " the network, and run the command again."
        ),
    ),
    (
        ("pyarrow", "safetensors", "safetensors_rust", "zipfile", "tarfile"),
        DamagedFileError,
        (
            "A file of the workspace is damaged ({reason}). Run the command again with --fresh,"
            " or restore the file from a backup."
        ),
    ),
)
"""What is said of an error of a library, by the package that its class comes from."""
_MEMORY = re.compile(
    r"can't allocate memory|out of memory|cannot allocate memory|unable to allocate|"
    r"failed to map segment|can't start new thread|thread constructor failed|"
    r"resource temporarily unavailable",
    re.IGNORECASE,
)
_DAMAGED = re.compile(
    r"parquet|not a database|disk image is malformed|zip ?file|tar ?file|safetensor|"
    r"incompletemetadata|protobuf|unexpected end of|invalid start byte",
    re.IGNORECASE,
)
_FAULTS = (TypeError, LookupError, AttributeError, AssertionError, NameError)
"""Faults of the code: what was being handled when they happened has not caused them."""
_EXTRAS = {"boto3": "s3", "psycopg2": "postgres", "asyncpg": "postgres"}
"""Packages of optional extras, which a team's stores need."""


def system_error(error: BaseException) -> PipelineError | None:
    """Return the error for the user, if the machine or a server has caused this one.

    The causes of an error are asked as well, the nearest first: libraries wrap what they meet.
    """
    return next(filter(None, map(_find_known_error, _chain(error))), None)


def _chain(error: BaseException) -> Iterator[BaseException]:
    present: BaseException | None = error
    while present is not None:
        yield present
        handled = None if isinstance(present, _FAULTS) else present.__context__
        present = present.__cause__ or handled


def _find_known_error(error: BaseException) -> PipelineError | None:
    if isinstance(error, PipelineError):
        return error
    if isinstance(error, MemoryError) or _MEMORY.search(str(error)):
        return RunError(
            f"The machine has too little memory or too few threads left ({first_line(error)}). "
            "Stop other programs, raise the limits of this process (`ulimit -a`), or lower "
            "training.batch_size."
        )
    if isinstance(error, ImportError) and error.name in _EXTRAS:
        return RunError(
            f"The package {error.name} is not installed. Run `pip install "
            f"'patchline[{_EXTRAS[error.name]}]'`."
        )
    if isinstance(error, ImportError):
        return RunError(
            f"A package cannot be imported ({first_line(error)}). Install Patchline again, with "
            "the versions of constraints.txt."
        )
    if isinstance(error, OSError) and error.errno and not isinstance(error, ConnectionError):
        return _file_error(error)
    return _library_error(error)


def _file_error(error: OSError) -> PipelineError:
    """Return the sentence for an error of the operating system; it mostly names a file."""
    if error.errno == errno.ENOENT and _here() is None:
        return StorageError("The working directory was removed. Change to another folder.")
    for numbers, kind, sentence in _OF_THE_SYSTEM:
        if error.errno in numbers:
            return kind(_sentence(sentence, error))
    return StorageError(_sentence(_OTHER, error))


def _sentence(form: str, error: OSError) -> str:
    file = _file_of(error)
    if form.startswith("{file}") and file.startswith("a file in "):
        file = f"A{file[1:]}"
    return form.format(file=file, reason=error.strerror or first_line(error))


def _file_of(error: OSError) -> str:
    names = [str(os.fsdecode(name)) for name in (error.filename, error.filename2) if name]
    return " or ".join(names) or f"a file in {_here()}"


def _here() -> str | None:
    """Return the working directory, if it is there."""
    try:
        return str(Path.cwd())
    except OSError:
        return None


def _library_error(error: BaseException) -> PipelineError | None:
    """Return the sentence for an error of a library, by where its class comes from."""
    library = type(error).__module__.partition(".")[0]
    if isinstance(error, ConnectionError):
        library = "httpx"
    elif f"{type(error).__module__}.{type(error).__name__}" == _DELETED:
        library = _DELETED
    elif library in ("requests", "mlflow") and f"/{_ARTIFACTS}/" in str(error):
        library = _ARTIFACTS
    elif isinstance(error, ValueError | OSError) and _DAMAGED.search(str(error)):
        library = "pyarrow"
    for libraries, kind, sentence in _OF_LIBRARIES:
        if library in libraries:
            return kind(sentence.format(reason=first_line(error)))
    return None
