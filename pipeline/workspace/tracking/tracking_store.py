"""The MLflow store: its address, and a client for it."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchline.pipeline import local_services
from patchline.pipeline.errors import PipelineError, ServerAwayError, TrackingError, first_line
from patchline.pipeline.redaction import redact_text, split_credentials
from patchline.pipeline.workers.host import environment_variables
from patchline.pipeline.workers.host.interruption import signals_held
from patchline.pipeline.workspace.files import file_locks
from patchline.pipeline.workspace.files.atomic_files import storage_errors
from patchline.pipeline.workspace.files.file_locks import hold_lock
from patchline.pipeline.workspace.files.paths import artifact_uri, sqlite_path, sqlite_uri
from patchline.pipeline.workspace.files.workspace_folder import (
    WORKSPACE,
    check_paths,
    make_folder,
    place,
)
from patchline.pipeline.workspace.tracking import busy_server, mlflow_schema, team_stores

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run


logger = logging.getLogger(__name__)

DATABASE, ARTIFACTS = "mlflow.db", "mlruns"
"""MLflow's own names for a store in the working directory: of its SQLite file, of its artifacts."""
ARTIFACT_ROOT_VARIABLE = "_MLFLOW_SERVER_ARTIFACT_ROOT"
"""Where MLflow reads the artifact root of a SQL store that a process opens."""
_REGISTRY = "MLFLOW_REGISTRY_URI"
"""Names another store for the registered models than for the runs."""
_DATABASES = ("postgresql", "mysql", "mssql")
_SQLITE_HEADER = b"SQLite format 3\0"
_answered: dict[str, str] = {}
"""Identities of the SQLite files that have answered this process, by address."""
_FIRST_ANSWER = {"MLFLOW_HTTP_REQUEST_TIMEOUT": 10, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": 1}
"""Timeout in seconds, and retries, of the first request to a server."""
_impatient_lock = threading.Lock()
_impatient_threads: list[ExitStack] = []
"""What restores the timeouts, once for each thread whose first request is under way."""
_IN_WORDS = (
    ("Read timed out", "it does not answer"),
    ("QueuePool limit", "it is busy: no connection to its database was free for five minutes"),
    ("Connection refused", "nothing listens there"),
    ("NewConnectionError", "nothing listens there"),
    ("Name or service not known", "there is no such host"),
    ("unsupported URI", "MLflow keeps no runs at an address of this kind"),
    ("requires its secret", "it requires its secret"),
)
_REMEDIES = (
    (
        "not a database",
        "Restore the file from a backup, or move it elsewhere to begin a new store.",
    ),
    ("is malformed", "Restore the file from a backup, or move it elsewhere to begin a new store."),
    ("unable to open database file", "Move away what is in the place of the file."),
    ("readonly database", "Make its folder writable, or copy it (`cp -r`) to a folder of yours."),
    (
        "requires its secret",
        "Set the variables in .patchline/services/login.env of the folder of `patchline up`.",
    ),
    ("unsupported URI", "Set {variable} to an http, https, sqlite or postgresql address."),
    (
        "No module named 'psycopg2'",
        "Install Patchline with the extra `postgres`, or set {variable} to another store.",
    ),
)


def use_store() -> str:
    """Return the tracking URI, made absolute for this process and the processes it starts.

    `MLFLOW_TRACKING_URI` takes precedence, then the server of `patchline up`, then MLflow's default
    in the working directory, which is the store that this server uses.

    Raises:
        ServerAwayError: if the folder has a team's stores, which only its servers use.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI") or _local_server() or ""
    if not uri:
        team_stores.check_local()
    uri = without_login(absolute_store(uri))
    os.environ["MLFLOW_TRACKING_URI"] = uri
    _set_artifact_root(sqlite_path(uri))
    local_services.log_in_to_mlflow(uri)
    return uri


def absolute_store(uri: str) -> str:
    """Return the URI of a store; a SQLite file's path is made absolute.

    Args:
        uri: the URI as the user gave it; empty for the SQLite file in the working directory.
    """
    if not uri:
        return sqlite_uri(Path(DATABASE).resolve())
    file = sqlite_path(uri)
    return uri if file is None or file.is_absolute() else sqlite_uri(file.resolve())


def _set_artifact_root(database: Path | None) -> None:
    """Let MLflow store the artifacts of a SQLite store beside its file, whatever that is called.

    MLflow's own default, `./mlruns`, is the same folder where the working directory holds the
    store; it unquotes the path, so that a percent sign in a name would lead elsewhere.
    """
    if database is None:
        os.environ.pop(ARTIFACT_ROOT_VARIABLE, None)
    else:
        os.environ[ARTIFACT_ROOT_VARIABLE] = artifact_uri(database.parent / ARTIFACTS)


def _local_server() -> str | None:
    """Return the server that `patchline up` runs for this folder, if it answers."""
    services = local_services.find_running()
    if services is None:
        return None
    served_here = "mlflow" in services.own
    if served_here and not local_services.answers(f"{services.mlflow_url}/health"):
        team_stores.check_local(services)
        logger.warning(
            "The MLflow server of `patchline up` at %s does not answer (see %s). Using its "
            "database directly.",
            services.mlflow_url,
            local_services.logs_folder(services.folder) / "mlflow.log",
        )
        return None
    return services.mlflow_url


def without_login(uri: str) -> str:
    """Return the address of a server without user and password, which move to the environment.

    MLflow reads them there, and no error, tag or page of MLflow can show them. The address of a
    database keeps its password.
    """
    login = split_credentials(uri)
    if not uri.startswith(("http://", "https://")) or login.user is None:
        return uri
    os.environ["MLFLOW_TRACKING_USERNAME"] = login.user
    os.environ["MLFLOW_TRACKING_PASSWORD"] = login.password or ""
    return login.address


def sqlite_file() -> Path | None:
    """Return the file of a SQLite store; none for a server."""
    return sqlite_path(use_store())


def store_exists() -> bool:
    """Return whether there is a store to read; a SQLite file is only created by a run."""
    database = sqlite_file()
    if database is not None and not database.parent.is_dir():
        raise TrackingError(
            f"The folder {database.parent} of the MLflow store {database.name} does not exist. "
            "Check MLFLOW_TRACKING_URI."
        )
    return database is None or database.exists()


def client() -> MlflowClient:
    """Return a client of the store; create the store first if it is a new SQLite file.

    Raises:
        TrackingError: if the store does not answer.
        StorageError: if the SQLite file may not be written.
    """
    uri = use_store()
    forget_keys()
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # it raises what it logs
    logging.getLogger("alembic").setLevel(logging.ERROR)
    try:
        database = sqlite_file()
        if uri.startswith(("http://", "https://")):
            environment_variables.check_proxy(
                uri
            )  # no signals are held: the server completes what it has begun
            return _create_answering_client(busy_server.patient_client())
        if database is None:
            _connect_once(uri)
            return _create_answering_client(_build_holding_client())
        if place() != WORKSPACE.resolve() and database == Path(DATABASE).resolve():
            check_paths()
            return _create_answering_client(_build_holding_client())
        lock = database.parent / WORKSPACE / "mlflow.lock"
        with storage_errors(database):
            make_folder(lock.parent)
            lock.touch()  # fails at once if the folder may not be written
        if _has_answered(uri, database):
            return _build_holding_client()()
        with hold_lock(lock):  # processes that create a SQLite file together would crash each other
            mlflow_schema.create_database(database)
            answering = _create_answering_client(_build_holding_client())
        _answered[uri] = file_locks.identity(database)
        return answering  # noqa: TRY300 - the handlers below are for all of it
    except PipelineError:
        raise
    except Exception as error:
        raise unreachable(uri, error) from error


def forget_keys() -> None:
    """Let MLflow's next client of S3 read the credentials again; it makes one every five minutes.

    The default session of boto3 would keep those of `~/.aws/credentials` that it has read once.
    """
    if boto3 := sys.modules.get("boto3"):
        vars(boto3)["DEFAULT_SESSION"] = None


def _has_answered(uri: str, database: Path) -> bool:
    """Return whether this SQLite file has answered this process, and still begins like one."""
    known = _answered.get(uri)
    if not known or known != file_locks.identity(database) or os.environ.get(_REGISTRY):
        return False
    with database.open("rb") as stream:
        return stream.read(len(_SQLITE_HEADER)) == _SQLITE_HEADER


def _build_holding_client() -> type[MlflowClient]:
    """Return the class of MLflow's client whose calls complete before a signal takes effect."""
    return busy_server.client_class(_hold_signals)


def _hold_signals(call: Callable[[], Any]) -> Any:
    with signals_held():
        return call()


@contextmanager
def unless_deleted() -> Iterator[None]:
    """End a block at the first error of MLflow: what it asks for was deleted."""
    from mlflow.exceptions import MlflowException

    with suppress(MlflowException):
        yield


_FIRST_PAGE, _LARGEST_PAGE = 5, 500
"""Runs that are read at a time."""


def all_runs(condition: str) -> Iterator[Run]:
    """Yield the runs that match a filter in MLflow's search language, the newest first.

    An example is `attributes.status = 'RUNNING'`. A run comes with all its metrics and settings, so
    the first pages are short: who looks for the newest one does not wait for hundreds.
    """
    store = client()
    where: list[str] = []
    token: str | None = None
    while token or not where:
        experiments = store.search_experiments(page_token=token)
        where += [found.experiment_id for found in experiments]
        token = experiments.token
        if not token:
            break
    size = _FIRST_PAGE
    while where:
        page = store.search_runs(
            where,
            condition,
            max_results=size,
            order_by=["attributes.start_time DESC"],
            page_token=token,
        )
        yield from page
        token, size = page.token, min(_LARGEST_PAGE, size * 4)
        if not token:
            return


def _connect_once(uri: str) -> None:
    """Connect to a database server: MLflow alone takes minutes to find that one is away."""
    import sqlalchemy

    if uri.partition(":")[0].partition("+")[0] in _DATABASES:
        engine = sqlalchemy.create_engine(uri, poolclass=sqlalchemy.NullPool)
        engine.connect().close()


def _create_answering_client(kind: type[MlflowClient]) -> MlflowClient:
    created = kind()
    with _impatient():
        try:
            created.search_experiments(max_results=1)
        except Exception as error:
            if not _is_slow(error):
                raise
            slow = True
        else:
            slow = False
    if slow:  # the usual timeouts are long enough for a server that is busy
        created.search_experiments(max_results=1)
    with _impatient():
        if registry := os.environ.get(_REGISTRY):
            try:
                created.search_registered_models(max_results=1)
            except Exception as error:
                raise unreachable(registry, error, _REGISTRY) from error
    return created


def _is_slow(error: Exception) -> bool:
    """Return whether a server is well and has only taken long to answer."""
    uri = os.environ["MLFLOW_TRACKING_URI"]
    timed_out = "Read timed out" in str(error) and uri.startswith(("http://", "https://"))
    return timed_out and local_services.answers(f"{uri.rstrip('/')}/health")


@contextmanager
def _impatient() -> Iterator[None]:
    """Use short timeouts for the first request, before the server is known to answer.

    The environment is that of all threads: the first that enters shortens the timeouts, and the
    last that leaves restores them.
    """
    with _impatient_lock:
        if not _impatient_threads:
            _impatient_threads.append(stack := ExitStack())
            before = stack.enter_context(environment_variables.restore_variables(_FIRST_ANSWER))
            for name, most in _FIRST_ANSWER.items():
                given = before[name] or ""
                os.environ[name] = str(min(int(given), most) if given.isdigit() else most)
        else:
            _impatient_threads.append(_impatient_threads[0])
    try:
        yield
    finally:
        with _impatient_lock:
            stack = _impatient_threads.pop()
            if not _impatient_threads:
                stack.close()


def unreachable(
    uri: str, error: Exception, variable: str = "MLFLOW_TRACKING_URI"
) -> ServerAwayError:
    """Return the error for a store that failed, without credentials.

    Args:
        uri: the URI of the store.
        error: what failed.
        variable: the environment variable that may name the store.
    """
    text = str(error)
    reason = next((words for sign, words in _IN_WORDS if sign in text), first_line(error))
    usual = "Check {variable} and the server."
    remedy = next((words for sign, words in _REMEDIES if sign in text), usual)
    return ServerAwayError(
        f"The MLflow store {redact_text(uri)} cannot be used ({reason}). "
        f"{remedy.format(variable=variable)}"
    )
