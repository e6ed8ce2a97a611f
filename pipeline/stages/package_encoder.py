"""Package an encoder that was trained without labels, and check the package."""

from __future__ import annotations

from dataclasses import dataclass

from patchline.pipeline.stages.package import PackageStage, TrainedInputs
from patchline.pipeline.training.pretraining.evaluating import PretrainingEvaluated


@dataclass(frozen=True)
class PackageEncoderInputs(TrainedInputs):
    """The report has the loss of the test images."""

    evaluated: PretrainingEvaluated


class PackageEncoder(PackageStage[PackageEncoderInputs]):
    """Leaves the package of an encoder, whose features are compared with those in torch."""

    task = "Package the encoder"
    reads = PackageEncoderInputs
    rehearsal = "Packaging the encoder and checking the package"


PACKAGE_ENCODER = PackageEncoder()
