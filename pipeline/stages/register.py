"""Register the package as a new version of the model."""

from __future__ import annotations

from dataclasses import dataclass

from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.errors import PackagingError
from patchline.pipeline.evaluation.evaluating import Evaluated
from patchline.pipeline.packaging.clean_process_check import check_package
from patchline.pipeline.packaging.job import Package
from patchline.pipeline.packaging.package_files import DESCRIPTION_FILE, ONNX_FILE
from patchline.pipeline.packaging.packaged_model import PackagedModel
from patchline.pipeline.registry import registration
from patchline.pipeline.registry.registered_models import TAUGHT_BY_TAG, TEST_IMAGES_TAG
from patchline.pipeline.registry.registration import Registered
from patchline.pipeline.stages.stage import Stage
from patchline.pipeline.workspace.tracking.tracked_run import TrackedRun


@dataclass(frozen=True)
class Register(Stage[Registered]):
    """Leaves the version. The store knows whether an earlier attempt has registered it."""

    name = "register"
    task = "Register the model"
    output = Registered
    rehearsal = "Checking the package as MLflow would serve it"

    package: Package
    evaluated: Evaluated | None
    data: IngestedData
    run: TrackedRun

    def title(self) -> str:
        """Return the model's name."""
        return f"Registering '{self.config.name}'"

    def task_run(self) -> str:
        """Return the model's name."""
        return f"Register in {self.config.name}"

    def compute(self) -> Registered:
        """Log the package's files, and register them."""
        name, run = str(self.config.name), self.run
        tags = dict(self.context.tags)
        if self.evaluated:
            tags[TEST_IMAGES_TAG] = self.evaluated.report.images_fingerprint
        if self.data.taught_by:
            tags[TAUGHT_BY_TAG] = self.data.taught_by
        model_id = registration.find_logged_model(run, name)
        return registration.register(run, model_id, name, self.package, tags)

    def rehearse(self) -> Registered:
        """Write the package as an MLflow model and load it in a clean process; register nothing."""
        package = self.package
        saved = registration.save_as_mlflow_model(self.run, "rehearsal", package.folder)
        opened = PackagedModel(package.folder / ONNX_FILE, package.folder / DESCRIPTION_FILE)
        check = check_package(saved, opened)
        if not check.passed:
            raise PackagingError(f"The package does not work: {check.finding}. Change the model.")
        return Registered(name=str(self.config.name), version="0", model_id="rehearsal")
