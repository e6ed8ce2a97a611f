"""Register a run's model once, however often the run is continued."""

from __future__ import annotations

from pipeline.evaluation.report import EvaluationReport
from pipeline.registry import registering
from pipeline.registry.packaging_job import Package
from pipeline.registry.registering import Registered
from pipeline.tracking import TrackedRun
from pipeline.tracking_store import client


def logged_model(run: TrackedRun, name: str) -> str:
    """Return the id of the run's model: that of an earlier attempt, or a new one."""
    if run.continued:
        from mlflow.entities import LoggedModelOutput

        store = client()
        condition = f"source_run_id = '{run.run_id}'"
        for model in store.search_logged_models([run.experiment_id], filter_string=condition):
            outputs = store.get_run(run.run_id).outputs
            linked = {output.model_id for output in outputs.model_outputs} if outputs else set()
            if model.model_id not in linked:
                store.log_outputs(run.run_id, [LoggedModelOutput(model.model_id, step=0)])
            return str(model.model_id)
    return registering.create_logged_model(run, name)


def log_report_metrics(
    run: TrackedRun, model_id: str, report: EvaluationReport, dataset_name: str
) -> None:
    """Log the figures of the report, unless an earlier attempt has done it."""
    if run.continued:
        there = client().get_run(run.run_id).data.metrics
        if set(report.metrics) <= set(there):
            return
    registering.log_report_metrics(run, model_id, report, dataset_name)


def register(
    run: TrackedRun, model_id: str, name: str, package: Package, tags: dict[str, str]
) -> Registered:
    """Register the package, unless an earlier attempt has done it."""
    version = _earlier_version(run, name) if run.continued else None
    if version is None:
        return registering.register(run, model_id, name, package, tags)
    return Registered(name=name, version=version, model_id=model_id)


def _earlier_version(run: TrackedRun, name: str) -> str | None:
    found = client().search_model_versions(f"run_id = '{run.run_id}'")
    return next((str(version.version) for version in found if version.name == name), None)
