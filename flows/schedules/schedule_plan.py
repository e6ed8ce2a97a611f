"""What a schedule does each time: training with a config file, or predicting with a model.

Everything is checked when the schedule is created, at a desk, and not at two in the morning.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pipeline.config import NAME_RULE, is_name
from pipeline.errors import ConfigError
from pipeline.files.file_digest import digest_of
from pipeline.workspace import WORKSPACE

if TYPE_CHECKING:
    from prefect import Flow

    from pipeline.config import RunConfig

Kind = Literal["train", "predict"]
CONFIG_FILE, CONFIG_SHA256 = "patchline.config_file", "patchline.config_sha256"


@dataclass(frozen=True)
class Plan:
    """What a schedule does each time it fires."""

    kind: Kind
    parameters: dict[str, Any]
    """What the flow is called with, as JSON."""
    labels: dict[str, str] = field(default_factory=dict)
    """Which config file it came from."""

    @property
    def flow(self) -> Flow[..., Any]:
        """The flow that does it."""
        if self.kind == "train":
            from flows.training.training_flow import training_flow

            return training_flow
        from flows.schedules.prediction_flow import predict_flow

        return predict_flow


def checked_name(name: str) -> str:
    """Return the name of a schedule.

    Raises:
        ConfigError: if it has signs that a name may not have.
    """
    if not is_name(name):
        raise ConfigError(
            f"The schedule's name is '{name}', but it {NAME_RULE}. Choose another one."
        )
    return name


def plan(
    *, config: Path | None, predict: str | None, images: Path | None, out: Path | None
) -> Plan:
    """Return what the command line asks for, all of it checked.

    Raises:
        ConfigError: if an option is missing, too many are given, or the config file is wrong.
        DataError: if there is nothing to train on or to predict.
        ModelReferenceError: if there is no such model.
        PluginError: if a plugin is unknown or broken.
    """
    if predict is None:
        for option, value in (("--images", images), ("--out", out)):
            if value is not None:
                raise ConfigError(f"{option} is for predictions. Add --predict MODEL.")
        if config is None:
            raise ConfigError(
                "Say what to do: --config FILE.yaml to train, or --predict MODEL --images FOLDER "
                "--out FILE to predict."
            )
        return _training(config)
    if config is not None:
        raise ConfigError("--config is for training and --predict for predicting. Give one.")
    if images is None or out is None:
        missing = "--images FOLDER" if images is None else "--out FILE.parquet"
        raise ConfigError(f"--predict {predict} also needs {missing}. Add it.")
    return _prediction(predict, images, out)


def read_config(file: Path) -> tuple[RunConfig, dict[str, str]]:
    """Return the checked config of a file, its paths made absolute, and the labels that name it.

    Raises:
        ConfigError: if the file is missing or wrong.
        DataError: if there is nothing to train on.
        PluginError: if a plugin is unknown or broken.
    """
    from pipeline import config_files
    from pipeline.data import ingestion

    labels = config_labels(file)
    config = config_files.validated(config_files.assemble(preset_name=None, file=file, flags={}))
    path = config.data.path
    if path is not None and Path(path).exists():
        data = config.data.model_copy(update={"path": str(Path(path).resolve())})
        config = config.model_copy(update={"data": data})
    ingestion.check_source(config, WORKSPACE.resolve())
    return config, labels


def config_labels(file: Path) -> dict[str, str]:
    """Return the labels that say which config file a deployment was made from."""
    return {CONFIG_FILE: str(file.absolute()), CONFIG_SHA256: digest(file)}


def digest(file: Path) -> str:
    """Return the SHA-256 of a file; an empty text if it cannot be read."""
    try:
        return digest_of(file).sha256
    except OSError:
        return ""


def config_state(labels: dict[str, Any]) -> Literal["same", "changed", "gone"] | None:
    """Return what became of the config file that a deployment was made from; none without one."""
    file = labels.get(CONFIG_FILE)
    if not file:
        return None
    now = digest(Path(str(file)))
    if not now:
        return "gone"
    return "same" if now == labels.get(CONFIG_SHA256) else "changed"


def _training(file: Path) -> Plan:
    config, labels = read_config(file)
    return Plan("train", {"config": config.model_dump(mode="json")}, labels)


def _prediction(model: str, images: Path, out: Path) -> Plan:
    from pipeline.prediction.batch_prediction import check_table
    from pipeline.prediction.image_files import check_images, is_empty
    from pipeline.prediction.prediction_parts import parts_folder
    from pipeline.registry.registered_models import resolve

    images, out = images.resolve(), out.absolute()
    check_table(out, top_k=1)
    if not is_empty(images):  # an inbox begins empty
        check_images([images], (out, parts_folder(out)))
    resolve(model)
    return Plan("predict", {"model": model, "images": str(images), "out": str(out)})
