"""Registered versions with known predictions, made in a moment: nothing is trained."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd
import torch
from onnx import TensorProto, helper, numpy_helper

from patchline.pipeline import config_files
from patchline.pipeline.config import ModelChoice, RunConfig
from patchline.pipeline.data.labels.label_sets import MULTI_LABEL
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.evaluation import predictions
from patchline.pipeline.evaluation.metrics.label_calibration import LabelThresholds
from patchline.pipeline.models.model_description import ModelDescription
from patchline.pipeline.models.provenance import Provenance, SeenImages, as_metadata
from patchline.pipeline.packaging.job import Package
from patchline.pipeline.packaging.standalone_file import write_model_server
from patchline.pipeline.registry import registration
from patchline.pipeline.registry.aliases import CHAMPION, alias_of
from patchline.pipeline.registry.config import PromotionConfig
from patchline.pipeline.registry.promotion import Request, assign_aliases, promote
from patchline.pipeline.registry.registered_models import ModelReference
from patchline.pipeline.workspace.files.atomic_files import write_text
from patchline.pipeline.workspace.files.sealed_files import digest_of, write_tensors
from patchline.pipeline.workspace.tracking import tracked_run, tracking_store
from patchline.pipeline.workspace.tracking.tracked_run import DATA_ROOT_TAG, NewRun
from patchline.plugin_api import ImageSpec

CLASSES = ("down", "rising", "up")
SIDE = 8
QUICK = PromotionConfig(package_check=False, min_images=10)
"""Every gate but the one that starts a process."""


def digest(number: int) -> str:
    """Return the SHA-256 that image `number` of the made data has."""
    return hashlib.sha256(str(number).encode()).hexdigest()


def made_manifest(
    test: range = range(200), train: range = range(1000, 1100), validation: range = range(900, 950)
) -> pd.DataFrame:
    """Return the manifest of data whose images are known by their numbers."""
    rows = [
        {
            "path": f"{CLASSES[number % 3]}/{number}.png",
            "label": CLASSES[number % 3],
            "split": split,
            "group": "",
            "sha256": digest(number),
            "width": SIDE,
            "height": SIDE,
            "mode": "RGB",
            "bytes": 100,
            "status": "ok",
            "reason": "",
        }
        for split, numbers in (("test", test), ("train", train), ("validation", validation))
        for number in numbers
    ]
    return pd.DataFrame(rows, columns=manifests.COLUMNS)


def made_predictions(manifest: pd.DataFrame, wrong: range) -> pd.DataFrame:
    """Return predictions on the test images: right, but for the numbers in `wrong`."""
    rows = manifest[manifest["split"] == "test"].reset_index(drop=True)
    mistaken = {digest(number) for number in wrong}
    probabilities = np.full((len(rows), len(CLASSES)), 0.1)
    for position, (label, sha256) in enumerate(zip(rows["label"], rows["sha256"], strict=True)):
        said = (CLASSES.index(label) + (sha256 in mistaken)) % len(CLASSES)
        probabilities[position, said] = 0.8
    return predictions.with_probabilities(rows, CLASSES, probabilities)


def seen_in(manifest: pd.DataFrame) -> Provenance:
    """Return the provenance of a model that was trained on a manifest, from random weights."""
    rows = [manifest[manifest["split"] == split] for split in ("train", "validation")]
    return Provenance(SeenImages.of(*rows))


def made_package(
    folder: Path,
    classes: tuple[str, ...] = CLASSES,
    seed: int = 0,
    provenance: Provenance | None = None,
    *,
    thresholds: tuple[float, ...] = (),
) -> Package:
    """Write a whole package whose network weighs the mean colour of an image.

    With thresholds it is a multi-label one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = np.random.default_rng(seed).normal(0, 0.05, (3, len(classes))).astype(np.float32)
    nodes = [
        helper.make_node("Cast", ["images"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["floats", "axes"], ["means"], keepdims=0),
        helper.make_node("MatMul", ["means", "weights"], ["logits"]),
        helper.make_node("Sigmoid", ["logits"], ["probabilities"])
        if thresholds
        else helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "mean colour",
        [helper.make_tensor_value_info("images", TensorProto.UINT8, ["batch", SIDE, SIDE, 3])],
        [
            helper.make_tensor_value_info(
                "probabilities", TensorProto.FLOAT, ["batch", len(classes)]
            )
        ],
        [
            numpy_helper.from_array(weights, "weights"),
            numpy_helper.from_array(np.array([1, 2], dtype=np.int64), "axes"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, folder / "model.onnx")
    record = as_metadata(provenance or Provenance())
    write_tensors(folder / "model.safetensors", {"weights": torch.from_numpy(weights)}, record)
    image = ImageSpec(
        channels=3, height=SIDE, width=SIDE, mean=(0.5,) * 3, std=(0.25,) * 3, resize="crop"
    )
    description = ModelDescription(model=ModelChoice(), plugins=(), classes=classes, image=image)
    if thresholds:
        values = LabelThresholds(values=thresholds, fitted=(True,) * len(classes), images=50)
        sets = {"task": MULTI_LABEL, "thresholds": values}
        description = description.model_copy(update=sets)
    write_text(folder / "model.json", description.model_dump_json())
    write_text(folder / "model_card.md", "# A model for tests\n")
    write_model_server(folder / "model_server.py")
    return Package(folder=folder, largest_difference=0.0, checked_images=0, bytes=0)


def registered_version(
    name: str,
    folder: Path,
    *,
    wrong: range = range(0),
    manifest: pd.DataFrame | None = None,
    root: Path | None = None,
    metrics: dict[str, float] | None = None,
    records_predictions: bool = True,
    compared: bool = True,
    config: PromotionConfig = QUICK,
    seed: int = 0,
    provenance: Provenance | None = None,
    classes: tuple[str, ...] = CLASSES,
) -> ModelReference:
    """Register a version with predictions that are wrong where they should be; it has no alias.

    They were compared with those of the package, unless `compared` is false.
    """
    manifest = made_manifest() if manifest is None else manifest
    provenance = provenance or seen_in(manifest)
    new = NewRun(
        experiment=name,
        name=name,
        command="patchline run",
        params={},
        tags={DATA_ROOT_TAG: str(root)} if root else {},
    )
    with tracked_run.open_run(new, folder / "runs") as run:
        config_files.save(RunConfig(name=name, promotion=config), run.folder / "config.yaml")
        tracked_run.log_file(run, run.folder / "config.yaml")
        fingerprint = manifests.fingerprint(manifest)
        file = run.folder / "data" / f"{fingerprint}.parquet"
        manifests.save(manifest, file)
        tracked_run.log_data(run, name, fingerprint, file)
        if records_predictions:
            table = run.folder / "predictions.parquet"
            predictions.save(made_predictions(manifest, wrong), table)
            tracked_run.log_file(run, table, "report")
        store = tracking_store.client()
        for key, value in (metrics or {}).items():
            store.log_metric(run.run_id, f"test/{key}", value)
        model_id = registration.find_logged_model(run, name)
        package = made_package(run.folder / "package", classes, seed, provenance)
        if records_predictions and compared:
            package = package.model_copy(update={"reported_sha256": digest_of(table).sha256})
        registered = registration.register(run, model_id, name, package, {})
    return registered.reference


def make_version(
    name: str, folder: Path, *, config: PromotionConfig = QUICK, **made: Any
) -> ModelReference:
    """Register a version as a run does, which then asks for its aliases."""
    reference = registered_version(name, folder, config=config, **made)
    assign_aliases(reference, config, folder / "aliases" / name / reference.version)
    return reference


def promoted(reference: ModelReference, folder: Path, **settings: Any) -> bool:
    """Ask for a promotion with quick gates, and return whether it was given."""
    config = QUICK.model_copy(update=settings)
    decision, _ = promote(Request(reference, config), folder / "promotion")
    return decision is not None and decision.promoted


def champion_version() -> str | None:
    """Return the version of `roses` that is the champion."""
    return alias_of(tracking_store.client(), "roses", CHAMPION)
