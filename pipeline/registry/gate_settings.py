"""Which gates a version has to pass: those in flags, in a config file, or recorded by its run."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import yaml

from patchline.pipeline import config_files
from patchline.pipeline.errors import ConfigError, ModelReferenceError
from patchline.pipeline.registry.config import GateConfig, PromotionConfig
from patchline.pipeline.registry.registered_models import ModelReference
from patchline.pipeline.workspace.tracking.tracking_store import client


def gates_for(
    reference: ModelReference, file: Path | None, flags: GateConfig | None
) -> PromotionConfig:
    """Return the gates for a version: flags override the file, which replaces those of its run.

    A limit on one metric leaves the limits on others as they are.

    Raises:
        ConfigError: if the file or a setting in it is invalid.
        ModelReferenceError: if no file is given and the run's config is missing.
    """
    settings = _read_recorded_gates(reference) if file is None else _from_file(file)
    given: dict[str, Any] = flags.model_dump(exclude_unset=True) if flags else {}
    return PromotionConfig.model_validate(config_files.merge_settings(settings.model_dump(), given))


def _from_file(file: Path) -> PromotionConfig:
    merged = config_files.assemble(preset_name=None, file=file, flags={})
    if "promotion" not in merged:
        raise ConfigError(
            f"{file} has no section 'promotion', which holds the gates. Add it, or omit --config."
        )
    return config_files.validate_config(merged).promotion


def _read_recorded_gates(reference: ModelReference) -> PromotionConfig:
    """Return the gates in the config of the version's run, or the defaults."""
    from mlflow.exceptions import MlflowException

    store = client()
    run_id = store.get_model_version(reference.name, reference.version).run_id
    try:
        with tempfile.TemporaryDirectory(prefix="patchline-") as scratch:
            file = Path(store.download_artifacts(str(run_id), "config.yaml", scratch))
            text = file.read_text("utf-8")
        recorded = yaml.safe_load(text).get("promotion", {})
    except (MlflowException, OSError) as error:
        raise ModelReferenceError(
            f"The config of the run behind '{reference.name}' version {reference.version} is "
            "missing, so its gates are unknown. Pass them in a file with --config."
        ) from error
    return PromotionConfig.model_validate(recorded)
