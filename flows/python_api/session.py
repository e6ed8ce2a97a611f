"""What surrounds each call of the Python API, so that the caller's process stays as it was.

A command owns its process: it sets environment variables and log levels and ends. A call from a
notebook or a program does not, so everything that it sets is put back.

The functions here import what is heavy when they are called, as the whole Python API does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from patchline.flows.prefect_api import prefect_settings
from patchline.pipeline import config_errors, quiet_libraries, redaction
from patchline.pipeline.errors import ConfigError, RunError
from patchline.pipeline.local_services import MLFLOW_VARIABLES, OTHER_MLFLOW_LOGINS
from patchline.pipeline.plugin_system.plugin_loader import FILES_VARIABLE
from patchline.pipeline.terminal_words import visible
from patchline.pipeline.workers.host import environment_variables, interpreter, interruption
from patchline.pipeline.workspace.files import workspace_folder
from patchline.pipeline.workspace.relocation import following, read_only
from patchline.pipeline.workspace.tracking.tracking_store import ARTIFACT_ROOT_VARIABLE

if TYPE_CHECKING:
    from patchline.pipeline.config import RunConfig


_STORE = "MLFLOW_TRACKING_URI"
_VARIABLES = (
    *(*quiet_libraries.NAMES, _STORE, ARTIFACT_ROOT_VARIABLE),
    *(*MLFLOW_VARIABLES, *OTHER_MLFLOW_LOGINS, FILES_VARIABLE),
)
_LOGGERS = ("mlflow", "alembic")
_Section = TypeVar("_Section", bound=BaseModel)
_one_at_a_time = threading.RLock()
_said: set[str] = set()
"""Sentences about the user's environment that this process has printed."""


@contextmanager
def session(writes: str = "") -> Iterator[None]:
    """Run one call of the Python API; a second thread waits for the first.

    Args:
        writes: the function, such as `patchline.run()`, if it writes to the workspace.

    Raises:
        PipelineError: whatever the block could not do, as the sentence that a command prints.
        KeyboardInterrupt: if the user interrupted it.
    """
    interpreter.check()
    with ExitStack() as stack:
        for kept in (_one_at_a_time, _environment(), _keep_logging(), _hooks(), _no_running_loop()):
            stack.enter_context(kept)
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", message="IProgress not found")  # of tqdm, unused here
        quiet_libraries.apply()
        _say_what_is_left_out()
        redaction.install()
        workspace_folder.tighten()
        _use_the_store_of_the_caller()
        stack.enter_context(workspace_folder.remove_if_unused())
        with _errors():
            stack.enter_context(_workspace(writes))
            yield


def check_section(section: type[_Section], given: Mapping[str, Any], name: str = "") -> _Section:
    """Return a section of settings.

    Args:
        section: the class of the section.
        given: the settings as the caller gave them.
        name: stands in front of a setting that is wrong.

    Raises:
        ConfigError: for a setting that is unknown or has a bad value.
    """
    try:
        return section.model_validate(plain(given))
    except ValidationError as error:
        raise config_errors.sentence(error, section, name) from error


def plain(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as a file would hold them: paths as text."""

    def simple(value: object) -> object:
        if isinstance(value, Mapping):
            return plain(value)
        return str(value) if isinstance(value, Path) else value

    return {key: simple(value) for key, value in given.items()}


@contextmanager
def _errors() -> Iterator[None]:
    """Raise what a command would print."""
    try:
        yield
    except SystemExit as error:
        if error.code == interruption.CTRL_C:
            raise KeyboardInterrupt from error
        raise RunError(f"The call exited early with code {error.code}. Try again.") from error
    except Exception as error:
        known = prefect_settings.explain_error(error)
        if known is None or known is error:
            raise
        raise known from error


def _use_the_store_of_the_caller() -> None:
    """Use the store that the caller has set with `mlflow.set_tracking_uri`."""
    if "mlflow" not in sys.modules:
        return
    import mlflow

    if mlflow.is_tracking_uri_set():  # type: ignore[no-untyped-call]  # MLflow is loosely typed
        os.environ[_STORE] = mlflow.get_tracking_uri()


@contextmanager
def _workspace(writes: str) -> Iterator[None]:
    """Let a moved or copied workspace use its own files; read one that is read-only."""
    if workspace_folder.is_read_only():
        if writes:
            raise read_only.make_read_only_error(writes)
        print(read_only.enter(), file=sys.stderr)
    elif not workspace_folder.is_at_home() and (said := following.follow()):
        print(said, file=sys.stderr)
    try:
        yield
    finally:
        workspace_folder.use_scratch(None)


def _say_what_is_left_out() -> None:
    """Say once in a process which of the user's variables have no effect."""
    for sentence in quiet_libraries.explain_left_out():
        if sentence not in _said:
            _said.add(sentence)
            print(visible(sentence), file=sys.stderr)


@contextmanager
def _environment() -> Iterator[None]:
    try:
        with environment_variables.restore_variables(_VARIABLES):
            yield
    finally:
        quiet_libraries.forget()


@contextmanager
def _keep_logging() -> Iterator[None]:
    """Keep levels, the root's handlers and the record factory; Prefect replaces the handlers."""
    root = logging.getLogger()
    loggers = [root, *map(logging.getLogger, _LOGGERS)]
    levels = [logger.level for logger in loggers]
    handlers = list(root.handlers)
    factory = logging.getLogRecordFactory()
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
        root.handlers[:] = handlers
        logging.setLogRecordFactory(factory)


@contextmanager
def _hooks() -> Iterator[None]:
    before = sys.excepthook, threading.excepthook
    try:
        yield
    finally:
        sys.excepthook, threading.excepthook = before


@contextmanager
def _no_running_loop() -> Iterator[None]:
    """Hide the event loop that the caller runs in, as every Jupyter cell does.

    Prefect would return coroutines there instead of answers. The call blocks the loop either way.
    """
    loop = asyncio._get_running_loop()  # noqa: SLF001 - documented for event loops' own use
    asyncio._set_running_loop(None)  # noqa: SLF001
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)  # noqa: SLF001


def check_sections(settings: Mapping[str, Any], names: Iterable[str]) -> None:
    """Refuse a value where a group of settings is wanted.

    Args:
        settings: the settings as the caller gave them.
        names: names of all settings and groups at the top level.
    """
    groups = {name: settings.get(name) for name in set(names) - {"name", "seed"}}
    model = groups["model"]
    if isinstance(model, Mapping):
        groups["model.patch_embedding"] = model.get("patch_embedding")
    for name, value in groups.items():
        if value is not None and not isinstance(value, Mapping):
            raise ConfigError(f"{name} is {value!r}, but must be a dict of settings. Pass a dict.")


def check_alone(option: str, **beside: object) -> None:
    """Refuse what a run that continues an earlier one cannot be given any more."""
    given = [name for name, value in beside.items() if value]
    if given:
        raise ConfigError(
            f"'{given[0]}' cannot be combined with {option}: the run keeps the settings of the "
            "earlier one. Leave it out, or start a new run."
        )


def use_plugins(files: Sequence[str | Path]) -> None:
    """Use Python files that each hold a plugin beside the installed plugins.

    Raises:
        PluginError: if a file is not there, or is no plugin.
    """
    if files:
        from patchline.pipeline.plugin_system.plugin_loader import use_plugin_files

        use_plugin_files([Path(file) for file in files])


def new_run(
    data: str | Path | None,
    settings: Mapping[str, Any],
    *,
    preset: str | None = None,
    config: str | Path | None = None,
) -> RunConfig:
    """Return the config of a new run.

    Args:
        data: the data, named as on the command line; None for the default.
        settings: the run's settings, with sections as dicts.
        preset: name of a preset.
        config: YAML file with settings, weaker than `settings`.

    Raises:
        ConfigError: for a setting that is unknown or has a bad value.
    """
    from patchline.pipeline.config_files import build_config

    name = None if data is None else os.fspath(data)
    file = None if config is None else Path(config)
    return build_config(name, preset_name=preset, file=file, flags=plain(settings))


def extension(reference: str, settings: Mapping[str, Any]) -> RunConfig:
    """Return the config of a run that continues a finished run to more epochs.

    Raises:
        ConfigError: if there is no such run, or a setting cannot be changed.
    """
    from patchline.pipeline.training import extended_run
    from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE

    return extended_run.build_extended_config(
        reference, plain(settings), WORKSPACE.resolve() / "runs"
    )
