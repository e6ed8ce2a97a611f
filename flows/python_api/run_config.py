"""The config of the run that a call of the Python API asks for.

The functions here import what is heavy when they are called, as the whole Python API does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchline.flows.python_api.session import plain

if TYPE_CHECKING:
    from patchline.pipeline.config import RunConfig


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
        data: as on the command line; None for the default.
        settings: sections as dicts.
        preset: name of a preset.
        config: YAML file with settings, weaker than `settings`.

    Raises:
        ConfigError: for a setting that is unknown or has a bad value.
    """
    from patchline.pipeline.config_files import requested

    name = None if data is None else os.fspath(data)
    file = None if config is None else Path(config)
    return requested(name, preset_name=preset, file=file, flags=plain(settings))


def extension(reference: str, settings: Mapping[str, Any]) -> RunConfig:
    """Return the config of a run that continues a finished run to more epochs.

    Raises:
        ConfigError: if there is no such run, or a setting cannot be changed.
    """
    from patchline.pipeline.training.start import extended_run
    from patchline.pipeline.workspace.files.workspace_folder import WORKSPACE

    return extended_run.requested(reference, plain(settings), WORKSPACE.resolve() / "runs")
