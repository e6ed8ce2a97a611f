"""Weights at hand are weighed against random ones, and the plan says what it chose, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import save_file

from patchline.pipeline.config import RunConfig
from patchline.pipeline.config_files import build_config
from patchline.pipeline.data.ingestion import ingest
from patchline.pipeline.data.manifests import manifest as manifests
from patchline.pipeline.errors import WorkerError
from patchline.pipeline.models.provenance import Provenance, SeenImages
from patchline.pipeline.planning import planner
from patchline.pipeline.planning.facts import DataFacts, MachineFacts, Plan, PlanFacts, Speed
from patchline.pipeline.planning.measuring import measure
from patchline.pipeline.planning.measuring_job import Measurement
from patchline.pipeline.planning.published import FEATURES
from patchline.pipeline.planning.weights_choice import (
    Weighed,
    WeightsChoice,
    WeightsRequest,
    choose,
    suits,
    weigh,
)
from patchline.pipeline.stages.initial_weights import ChooseWeights, FindWeights
from patchline.pipeline.stages.plan import PlanTraining
from patchline.pipeline.training.initial_weights.local_weights import VARIABLE
from patchline.pipeline.workers.event_log import EventWriter
from tests.conftest import write_photos
from tests.pipeline.planning.test_planner import finished
from tests.pipeline.training.initial_weights.test_finding import registered_encoder, saved_model
from tests.pipeline.training.initial_weights.test_local_weights import tiny_vit

LIMIT = "training.time_limit"


def facts(images: int = 1_000, classes: int = 5, side: int = 300, **changes: Any) -> PlanFacts:
    """Return the facts of photographs, 70% of them for training."""
    held = round(0.15 * images)
    data = DataFacts(
        training_images=images - 2 * held,
        validation_images=held,
        test_images=held,
        classes=classes,
        median_side=side,
        **changes,
    )
    return PlanFacts(preset="balanced", data=data)


def weighed(speed: float, images: int, **user: Any) -> Weighed:
    """Return the outcome for photographs and a speed of features."""
    settings = {key.replace("__", "."): value for key, value in user.items()}
    return weigh(facts(images), settings, speed)


def test_few_photographs_are_better_off_with_trained_weights() -> None:
    """Also where only a head can be trained; on a faster machine, more than that is.

    CIFAR-10's 60,000 images on two cores, many images of a class or a minute ask for random ones.
    """
    for outcome, wins, words in (
        (weighed(0.6, 1_000), True, "with 140 training images per class a head on them is better"),
        (weighed(100.0, 1_000), True, "time to train more than the head"),
        (weighed(3.0, 60_000), False, "more than the 30 min that there are"),
        (weighed(6.0, 9_000), False, "no better than a network from scratch"),
        (weighed(3.0, 1_000, training__time_limit="1m"), False, "more than the 60 s that there"),
        (weighed(3_000.0, 60_000), True, ""),  # a GPU
    ):
        assert outcome.wins is wins
        assert words in outcome.why


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"side": 20}, False),
        ({"greyscale": True}, False),
        ({"classes": 0}, False),
        ({"side": 32}, True),
        ({}, True),
    ],
    ids=str,
)
def test_thumbnails_and_greyscale_images_want_no_photographs(
    change: dict[str, Any], *, wanted: bool
) -> None:
    """Nothing is looked up for the digits, nor for images without labels."""
    assert suits(facts(**change).data) is wanted


def test_a_model_or_weights_of_the_user_stand() -> None:
    """Also if the weights are none, in a flag or in a file; a time limit leaves the choice."""
    for flags, allowed in (
        ({}, True),
        ({"training": {"time_limit": "5m"}}, True),
        ({"model": {"init": "none"}}, False),
        ({"model": {"depth": 3}}, False),
        ({"model": {"name": "rope_vit"}}, False),
    ):
        config = build_config("photos", preset_name="quick", flags=flags)
        assert config.model.init is None
        assert planner.may_choose_weights(config) is allowed, flags
    without = build_config("photos", preset_name="none", flags={})
    assert not planner.may_choose_weights(without)
    unlabelled = build_config("photos", flags={"objective": {"name": "mae"}})
    assert not planner.may_choose_weights(unlabelled)


@pytest.fixture(scope="module")
def request_(tmp_path_factory: pytest.TempPathFactory) -> WeightsRequest:
    """Return the request of a run with photographs of 64 pixels."""
    folder = tmp_path_factory.mktemp("request")
    photos = write_photos(folder / "photos", classes=2, images=30, side=64)
    config = build_config(str(photos), preset_name="quick", flags={})
    data = ingest(config, folder / "work")
    return WeightsRequest(config, data, planner.plan_facts(config, data), {})


def chosen(request: WeightsRequest, tmp_path: Path, speed: float = 500.0) -> WeightsChoice:
    """Return the choice on a machine where features have a speed."""
    return choose(request, tmp_path / "work", lambda _: features_at(speed))


def features_at(speed: float) -> Measurement:
    """Return a measurement of features."""
    return Measurement(speeds=(Speed(candidate=FEATURES, images_per_second=speed),))


def test_without_weights_the_plan_says_what_they_would_bring(
    request_: WeightsRequest, tmp_path: Path
) -> None:
    """In one line with the command, for photographs only; nothing is downloaded."""
    choice = chosen(request_, tmp_path)
    assert choice.reference == ""
    (line,) = choice.reasons
    assert "few photographs gain most from" in line
    assert "--model.init timm:vit_base_patch16_clip_224.openai --download" in line
    small = request_.facts.data.model_copy(update={"median_side": 32})
    smaller = request_._replace(facts=request_.facts.model_copy(update={"data": small}))
    assert chosen(smaller, tmp_path).reasons == ()


def test_the_largest_weights_with_time_for_their_features_are_chosen(
    request_: WeightsRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And those that only look like a Vision Transformer are passed over, with the reason."""
    folder = tmp_path / "weights"
    folder.mkdir()
    save_file(tiny_vit(64), folder / "b_small.safetensors")
    save_file(tiny_vit(192), folder / "a_large.safetensors")
    monkeypatch.setenv(VARIABLE, str(folder))
    choice = chosen(request_, tmp_path)
    assert choice.reference == str(folder / "a_large.safetensors")
    assert choice.measurement == features_at(500.0)
    assert "license not stated, from PATCHLINE_WEIGHTS" in choice.reasons[0]
    speeds = iter([0.3, 500.0])  # the larger one takes most of the time
    smaller = choose(request_, tmp_path / "work", lambda _: features_at(next(speeds)))
    assert smaller.reference == str(folder / "b_small.safetensors")
    none = chosen(request_, tmp_path, speed=0.01)
    assert none.reference == ""

    def fails(_: object) -> Measurement:
        raise WorkerError("The measuring process was killed.")

    failed = choose(request_, tmp_path / "work", fails)
    assert any("which the next run tries again: The measuring" in each for each in failed.reasons)
    machine = MachineFacts(memory_gib=1e-5)
    little = request_._replace(facts=request_.facts.model_copy(update={"machine": machine}))
    large = choose(little, tmp_path / "work", lambda _: pytest.fail("measured"))
    assert "too large for the time or memory" in large.reasons[0]
    broken = {**tiny_vit(256)}
    del broken["encoder.ln.weight"]
    save_file(broken, folder / "a_large.safetensors")
    assert chosen(request_, tmp_path).reference == str(folder / "b_small.safetensors")


def test_a_file_that_has_seen_images_of_the_test_is_not_chosen(
    request_: WeightsRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor measured: its metrics would be optimistic. One that has seen other images is."""
    rows = manifests.usable(manifests.load(request_.data.manifest_file))
    nothing, folder = rows.iloc[:0], tmp_path / "trained"
    monkeypatch.setenv(VARIABLE, str(folder))
    for split, is_chosen in (("test", False), ("validation", False), ("train", True)):
        seen = SeenImages.of(rows[rows["split"] == split].head(3), nothing)
        given = Provenance(own=seen)
        saved_model(folder, given, ("a", "b"), patch_embedding={"name": "conv"})
        choice_made = chosen(request_, tmp_path)
        assert bool(choice_made.reference) is is_chosen
        why = "is not used: its weights have seen 3 validation or test images of this run, so"
        assert (why in choice_made.reasons[0]) is not is_chosen


def test_settings_for_a_network_from_scratch_decline(
    request_: WeightsRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan warns, with what weights bring, and says how to use them nevertheless.

    A length, a batch or a rate is taken for training more than a head, where that is planned.
    """
    save_file(tiny_vit(64), tmp_path / "vit.safetensors")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "vit.safetensors"))
    asked = request_._replace(settings={"optimizer.name": "sgd", LIMIT: "1m"})
    choice = chosen(asked, tmp_path)
    assert choice.reference == ""
    assert "because optimizer.name is set: --model.init" in choice.reasons[0]
    length = {"training.epochs": 3, "training.batch_size": 16, "optimizer.learning_rate": 1e-3}
    long = request_._replace(settings=length)
    assert chosen(long, tmp_path).reference == str(tmp_path / "vit.safetensors")
    slow = chosen(long, tmp_path, speed=0.5)
    assert slow.reference == ""
    assert "which ignores optimizer.learning_rate, training.batch_size" in slow.reasons[0]
    assert chosen(request_, tmp_path, speed=0.5).reference


def test_a_run_starts_from_the_choice_as_if_the_user_had_set_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chosen, found, planned; a second run takes both without measuring, another file neither."""
    save_file(tiny_vit(64), tmp_path / "vit.safetensors")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "vit.safetensors"))
    photos = write_photos(tmp_path / "photos", classes=2, images=40, side=48)
    config, work = build_config(str(photos), preset_name="quick", flags={}), tmp_path / "work"
    data = ingest(config, work)
    measured = []
    events = EventWriter(tmp_path / "events.jsonl")

    def here(job: Any, _: Path) -> Any:
        measured.append(job)
        return measure(job, events)

    monkeypatch.setattr(planner, "measure_apart", here)

    def run() -> tuple[RunConfig, Plan]:
        context = finished(config, data, work, ChooseWeights, FindWeights, PlanTraining)
        return context.config, context.get(Plan)

    resolved, made = run()
    assert made.summary[-1].startswith(f"starts from {tmp_path / 'vit.safetensors'} (torchvision")
    assert resolved.model.init == str(tmp_path / "vit.safetensors")
    assert resolved.record.init_sha256 is not None
    assert (resolved.model.settings["embed_dim"], resolved.data.image_size) == (64, 32)
    assert resolved.training.trainable == "head_then_all"
    assert len(measured) == 1
    assert run() == (resolved, made)
    assert len(measured) == 1
    save_file(tiny_vit(128), tmp_path / "vit.safetensors")
    again, _ = run()
    assert again.record.init_sha256 != resolved.record.init_sha256
    assert len(measured) == 2


@pytest.mark.usefixtures("own_store")
def test_a_registered_encoder_of_many_more_images_is_chosen(
    request_: WeightsRequest, tmp_path: Path
) -> None:
    """Not one whose images are few, and never the run's own model."""
    seen = SeenImages(trained_N=np.arange(1_000, dtype=np.uint64))
    few = SeenImages(trained_N=np.arange(50, dtype=np.uint64))
    registered_encoder("b-few", tmp_path, Provenance(own=few))
    assert chosen(request_, tmp_path).reference == ""
    registered_encoder("c-many", tmp_path, Provenance(own=seen))
    choice = chosen(request_, tmp_path)
    assert choice.reference == "c-many/1"
    assert choice.measurement is None  # its training is measured when it is planned
    assert "registered here, trained on about 500 images" in choice.reasons[0]
    named = request_.config.model_copy(update={"name": "c-many"})
    assert chosen(request_._replace(config=named), tmp_path).reference == ""
