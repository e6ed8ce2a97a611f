"""Log a package as a model of its run, with its metrics, and register it.

Each of these is done once, however often the run is resumed: the store shows what an earlier
attempt has done.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import yaml

from patchline.pipeline.evaluation.metrics.intervals import MetricEstimate
from patchline.pipeline.evaluation.report import EvaluationReport
from patchline.pipeline.frozen_model import FrozenModel
from patchline.pipeline.models.model_description import WEIGHTS_FILE, load_description
from patchline.pipeline.models.provenance import provenance_of
from patchline.pipeline.packaging.job import Package
from patchline.pipeline.packaging.package_files import ARTIFACTS, OPTIONAL, SERVER_FILE
from patchline.pipeline.packaging.standalone_file import requirements
from patchline.pipeline.registry.registered_models import (
    CHECKED_TAG,
    COMMIT_TAG,
    FINGERPRINT_TAG,
    PROVENANCE_TAG,
    ModelReference,
    check_classes,
    class_tags,
    metrics_tag,
    task_tag,
)
from patchline.pipeline.registry.registry_reading import open_registry
from patchline.pipeline.workers.host.interruption import signals_held
from patchline.pipeline.workspace.files.paths import artifact_uri
from patchline.pipeline.workspace.tracking import busy_server, provenance
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun, check_owner
from patchline.pipeline.workspace.tracking.tracking_store import client, unless_deleted


class Registered(FrozenModel):
    """A new version in the registry."""

    name: str
    version: str
    model_id: str

    @property
    def reference(self) -> ModelReference:
        """The version as a reference."""
        return ModelReference(self.name, self.version, f"models:/{self.model_id}")


def find_logged_model(run: TrackedRun, name: str, model_type: str = "image-classifier") -> str:
    """Return the id of the run's model, which is created without files the first time.

    It exists before its files, so that metrics can be linked to it.
    """
    from mlflow.entities import LoggedModelOutput

    store = client()
    model_id = _earlier_model(run)
    if model_id is None:
        model = store.create_logged_model(
            run.experiment_id, name=name, source_run_id=run.run_id, model_type=model_type
        )
        model_id = str(model.model_id)
    elif model_id in _find_linked_models(run):
        return model_id
    store.log_outputs(run.run_id, [LoggedModelOutput(model_id, step=0)])
    return model_id


class ReportedMetrics(Protocol):
    """Metrics of a version of the data."""

    @property
    def metrics(self) -> Mapping[str, MetricEstimate]:
        """By name, such as `test/accuracy`."""
        ...

    @property
    def data_fingerprint(self) -> str:
        """Version of the data."""
        ...


def log_report_metrics(
    run: TrackedRun, model_id: str | None, report: ReportedMetrics, dataset_name: str
) -> None:
    """Log a report's metrics on the run, linked to the data, and to the model if it is one."""
    _log_estimates(run, model_id, report.metrics, report.data_fingerprint, dataset_name)


def log_answer_metrics(
    run: TrackedRun, model_id: str | None, report: EvaluationReport, dataset_name: str
) -> None:
    """Log what was measured of the prediction sets and warnings, as far as it is known.

    The mean size of a set is logged too, without an interval.
    """
    answers = report.answers
    if answers is None:
        return
    estimates = answers.metrics(report.split)
    size = answers.chosen.mean_size
    alone = {} if size is None else {f"{report.split}/set_size": size}
    _log_estimates(run, model_id, estimates, report.data_fingerprint, dataset_name, alone)


def log_package_latency(run: TrackedRun, package: Package) -> None:
    """Log the milliseconds of each batch size that was measured."""
    from mlflow.entities import Metric

    if package.latency is None:
        return
    moment = int(time.time() * 1000)
    metrics = [
        Metric(f"package/milliseconds_batch_{each.batch_size}", each.milliseconds, moment, 0)
        for each in package.latency.batches
    ]
    client().log_batch(run.run_id, metrics=metrics)


def _log_estimates(
    run: TrackedRun,
    model_id: str | None,
    estimates: Mapping[str, MetricEstimate],
    data_fingerprint: str,
    dataset_name: str,
    alone: Mapping[str, float] | None = None,
) -> None:
    """Log metrics with both ends of their intervals, and those that have none, once."""
    from mlflow.entities import Metric

    store = client()
    if run.continued and set(estimates) <= set(store.get_run(run.run_id).data.metrics):
        return
    moment = int(time.time() * 1000)
    values = dict(alone or {})
    for key, estimate in estimates.items():
        values[key] = estimate.value
        values[f"{key}_low"], values[f"{key}_high"] = estimate.low, estimate.high
    metrics = [
        Metric(
            key,
            value,
            moment,
            0,
            model_id=model_id,
            dataset_name=dataset_name,
            dataset_digest=data_fingerprint,
        )
        for key, value in values.items()
    ]
    if metrics:
        store.log_batch(run.run_id, metrics=metrics)


def find_logged_model_of(reference: ModelReference) -> str | None:
    """Return the id of the logged model behind a version.

    Returns:
        None for a package that was registered from a folder, such as one of another workspace.
    """
    with unless_deleted():
        return str(client().get_logged_model(reference.source.rpartition("/")[2]).model_id)
    return None


def log_evaluated_model(run: TrackedRun, model_id: str) -> None:
    """Record on a run which registered model it evaluated."""
    from mlflow.entities import LoggedModelInput

    client().log_inputs(run.run_id, models=[LoggedModelInput(model_id)])


def register(
    run: TrackedRun, model_id: str, name: str, package: Package, tags: dict[str, str]
) -> Registered:
    """Log the package's files and register them as a new version; it has no alias yet.

    Raises:
        ModelReferenceError: if the model has other classes, because another run has registered a
            version since this one began.
    """
    version = _earlier_version(run, name) if run.continued else None
    if version is None:
        version = _new_version(run, model_id, name, package, tags)
    return Registered(name=name, version=version, model_id=model_id)


def _new_version(
    run: TrackedRun, model_id: str, name: str, package: Package, tags: dict[str, str]
) -> str:
    import mlflow

    store, description = client(), load_description(package.folder)
    if description.classes:
        check_classes(name, description.classes, description.task)
    folder = save_as_mlflow_model(run, model_id, package.folder)
    store.log_model_artifacts(model_id, str(folder))
    shutil.rmtree(folder)  # the store has it now
    store.finalize_logged_model(model_id, "READY")
    all_tags = {
        **class_tags(description.classes),
        **task_tag(description.task),
        FINGERPRINT_TAG: description.data_fingerprint,
        PROVENANCE_TAG: provenance_of(package.folder / WEIGHTS_FILE, name).summary.state,
        **metrics_tag(open_registry().test_metrics(run.run_id)),
        **({CHECKED_TAG: package.reported_sha256} if package.reported_sha256 else {}),
        **_commit_tag(),
        **tags,
    }
    # `register_model` also writes the link back from the logged model. The tags are in the same
    # call, so that a kill leaves no version without them.
    # It prints what the caller reports anyway.
    check_owner(run)
    with contextlib.redirect_stderr(io.StringIO()), signals_held():
        return busy_server.repeat_while_busy(
            lambda: str(mlflow.register_model(f"models:/{model_id}", name, tags=all_tags).version),
            already_done=lambda: _earlier_version(run, name),
        )


def save_as_mlflow_model(run: TrackedRun, model_id: str, package: Path) -> Path:
    """Write the package as an MLflow model folder: models from code, nothing pickled."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow's own type annotations, when it is imported
        import mlflow.pyfunc
        from mlflow.models import Model, ModelSignature
        from mlflow.types.schema import AnyType, ColSpec, DataType, ParamSchema, ParamSpec, Schema

    target = package.parent / "mlflow_model"
    shutil.rmtree(target, ignore_errors=True)
    any_type = AnyType()  # type: ignore[no-untyped-call]  # bytes, base64, paths and arrays
    signature = ModelSignature(
        inputs=Schema([ColSpec(any_type, "image")]),
        params=ParamSchema(
            [
                ParamSpec("top_k", DataType.long, 5),
                ParamSpec("coverage", DataType.double, 0.0),
                ParamSpec("map", DataType.boolean, False),
            ]
        ),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hints about type annotations and examples
        mlflow.pyfunc.save_model(
            str(target),
            python_model=str(package / SERVER_FILE),
            artifacts={
                name: artifact_uri(package / name)
                for name in ARTIFACTS
                if name not in OPTIONAL or (package / name).is_file()
            },
            signature=signature,
            pip_requirements=requirements(),
            mlflow_model=Model(run_id=run.run_id, model_id=model_id),
        )
    _without_machine_paths(target / "MLmodel")
    return target


def _without_machine_paths(file: Path) -> None:
    """Remove the paths of this machine from a package."""
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    flavor = content["flavors"]["python_function"]
    flavor["model_code_path"] = Path(flavor["model_code_path"]).name
    for artifact in flavor["artifacts"].values():
        artifact["uri"] = artifact["path"]
    file.write_text(yaml.safe_dump(content, sort_keys=True), encoding="utf-8")


def _commit_tag() -> dict[str, str]:
    head, dirty = provenance.commit()
    return {COMMIT_TAG: head + (", with changes" if dirty else "")} if head else {}


def _earlier_model(run: TrackedRun) -> str | None:
    condition = f"source_run_id = '{run.run_id}'"
    models = client().search_logged_models([run.experiment_id], filter_string=condition)
    return next((str(model.model_id) for model in models), None)


def _find_linked_models(run: TrackedRun) -> set[str]:
    outputs = client().get_run(run.run_id).outputs
    return {str(output.model_id) for output in outputs.model_outputs} if outputs else set()


def _earlier_version(run: TrackedRun, name: str) -> str | None:
    versions = client().search_model_versions(f"run_id = '{run.run_id}'")
    return next((str(version.version) for version in versions if version.name == name), None)
