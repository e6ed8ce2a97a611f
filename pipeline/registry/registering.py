"""Log a package as a model of its run, with its metrics, and register it."""

from __future__ import annotations

import contextlib
import io
import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from pipeline.evaluation.report import EvaluationReport
from pipeline.model_files import load_description
from pipeline.registry.packaging_job import Package
from pipeline.registry.registered_models import (
    CHALLENGER,
    CHAMPION,
    FINGERPRINT_TAG,
    class_tags,
)
from pipeline.registry.server_file import requirements
from pipeline.section import Section
from pipeline.tracking import TrackedRun, client

if TYPE_CHECKING:
    from mlflow import MlflowClient


_ARTIFACTS = ("model.onnx", "model.json", "model.safetensors")


class Registered(Section):
    """A new version in the registry."""

    name: str
    version: str
    aliases: tuple[str, ...]
    model_id: str


def create_logged_model(run: TrackedRun, name: str) -> str:
    """Create the run's model, still without files, so that metrics can be linked to it."""
    from mlflow.entities import LoggedModelOutput

    store = client()
    model = store.create_logged_model(
        run.experiment_id, name=name, source_run_id=run.run_id, model_type="image-classifier"
    )
    store.log_outputs(run.run_id, [LoggedModelOutput(model.model_id, step=0)])
    return str(model.model_id)


def log_report_metrics(
    run: TrackedRun, model_id: str, report: EvaluationReport, dataset_name: str
) -> None:
    """Log the figures of a report on the run, linked to the model and to the data."""
    store = client()
    for key, estimate in report.metrics.items():
        for suffix, value in (
            ("", estimate.value),
            ("_low", estimate.low),
            ("_high", estimate.high),
        ):
            store.log_metric(
                run.run_id,
                f"{key}{suffix}",
                value,
                model_id=model_id,
                dataset_name=dataset_name,
                dataset_digest=report.data_fingerprint,
            )


def register(
    run: TrackedRun, model_id: str, name: str, package: Package, tags: dict[str, str]
) -> Registered:
    """Log the package's files, register them as a new version, and give it its aliases.

    Every new version becomes `challenger`; the first one of a name becomes `champion` too.
    """
    import mlflow

    store = client()
    folder = save_as_mlflow_model(run, model_id, package.folder)
    store.log_model_artifacts(model_id, str(folder))
    shutil.rmtree(folder)  # the store has it now
    store.finalize_logged_model(model_id, "READY")
    # `register_model` is the call that also writes the link back from the logged model.
    with contextlib.redirect_stderr(io.StringIO()):  # it also prints what the caller says better
        version = mlflow.register_model(f"models:/{model_id}", name)
    description = load_description(package.folder)
    all_tags = {
        **class_tags(description.classes),
        FINGERPRINT_TAG: description.data_fingerprint,
        **tags,
    }
    for key, value in all_tags.items():
        store.set_model_version_tag(name, version.version, key, value)
    aliases = _give_aliases(store, name, str(version.version))
    return Registered(name=name, version=str(version.version), aliases=aliases, model_id=model_id)


def save_as_mlflow_model(run: TrackedRun, model_id: str, package: Path) -> Path:
    """Write the package as an MLflow model folder: models from code, nothing pickled."""
    import mlflow.pyfunc
    from mlflow.models import Model, ModelSignature
    from mlflow.types.schema import AnyType, ColSpec, DataType, ParamSchema, ParamSpec, Schema

    target = package.parent / "mlflow_model"
    shutil.rmtree(target, ignore_errors=True)
    any_type = AnyType()  # type: ignore[no-untyped-call]  # bytes, base64, paths and arrays
    signature = ModelSignature(
        inputs=Schema([ColSpec(any_type, "image")]),
        params=ParamSchema([ParamSpec("top_k", DataType.long, 5)]),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hints about type annotations and examples
        mlflow.pyfunc.save_model(
            str(target),
            python_model=str(package / "model_server.py"),
            artifacts={name: str(package / name) for name in _ARTIFACTS},
            signature=signature,
            pip_requirements=requirements(),
            mlflow_model=Model(run_id=run.run_id, model_id=model_id),
        )
    _without_machine_paths(target / "MLmodel")
    return target


def _without_machine_paths(file: Path) -> None:
    """Let a package say nothing about the folders of the machine that made it."""
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    flavor = content["flavors"]["python_function"]
    flavor["model_code_path"] = Path(flavor["model_code_path"]).name
    for artifact in flavor["artifacts"].values():
        artifact["uri"] = artifact["path"]
    file.write_text(yaml.safe_dump(content, sort_keys=True), encoding="utf-8")


def _give_aliases(store: MlflowClient, name: str, version: str) -> tuple[str, ...]:
    store.set_registered_model_alias(name, CHALLENGER, version)
    if CHAMPION in store.get_registered_model(name).aliases:
        return (CHALLENGER,)
    store.set_registered_model_alias(name, CHAMPION, version)
    return (CHALLENGER, CHAMPION)
