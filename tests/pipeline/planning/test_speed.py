"""Speeds on a GPU: what lies between measured models, and the data-loader workers they need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import pytest

from patchline.pipeline.config_files import build_config
from patchline.pipeline.planning import measuring
from patchline.pipeline.planning.draft import SMALLER, Start, draft_plan
from patchline.pipeline.planning.facts import DataFacts, MachineFacts, PlanFacts, Speed
from patchline.pipeline.planning.measuring import measure, measure_loading
from patchline.pipeline.planning.measuring_job import MeasuredCandidate, MeasuringJob
from patchline.pipeline.planning.published import FEATURES
from patchline.pipeline.planning.rules import plan
from patchline.pipeline.planning.tiers import (
    OWN,
    PHOTOGRAPH_TIERS,
    compute_reached_speed,
    images_per_second,
    workers,
)
from patchline.pipeline.training.speed.trial_steps import trial_steps
from patchline.pipeline.workers.event_log import EventWriter

GPU = MachineFacts(device="cuda", threads=16, memory_gib=80)


def facts(*speeds: Speed, machine: MachineFacts = GPU, images: int = 1_000_000) -> PlanFacts:
    """Return the facts of photographs on a GPU."""
    data = DataFacts(training_images=images, classes=1_000, median_side=300)
    return PlanFacts(preset="balanced", data=data, machine=machine, speeds=speeds)


def measured(name: str, rate: float, loaded: float = 0.0) -> Speed:
    """Return the speed of a candidate."""
    return Speed(candidate=name, images_per_second=rate, loaded_per_second=loaded)


def candidate(**settings: Any) -> MeasuredCandidate:
    """Return a candidate that trains images of 32 pixels."""
    model = {"embed_dim": 16, "depth": 1, "num_heads": 2, "mlp_dim": 16}
    flags = {"data": {"image_size": 32}, "model": model, **settings}
    config = build_config("photos", preset_name="none", flags=flags)
    return MeasuredCandidate(name="tiny", config=config)


def test_a_gpu_is_measured_with_a_large_model_second() -> None:
    """The largest that there are enough images for; a CPU goes from the fastest on."""
    on_gpu = facts()
    names = [each.name for each in draft_plan(on_gpu, {}).measured_first]
    assert names == ["tiny", "vit_s16", "huge", "large", "medium", "small"]
    few = facts(images=900)
    assert [each.name for each in draft_plan(few, {}).measured_first] == ["tiny", "small"]
    cpu = facts(machine=MachineFacts())
    names = [each.name for each in draft_plan(cpu, {}).measured_first]
    assert names == [tier.name for tier in PHOTOGRAPH_TIERS]


@pytest.mark.parametrize(
    ("machine", "rate", "loaded", "number"),
    [
        (MachineFacts(), 100.0, 2_000.0, 0),
        (GPU, 1_200.0, 2_000.0, 2),  # 3,000 images/s without augmentation
        (GPU, 900.0, 20_000.0, 0),
        (GPU, 1_900.0, 2_000.0, 15),
        (MachineFacts(device="cuda", threads=1), 1_500.0, 2_000.0, 1),
    ],
)
def test_workers_keep_up_with_the_training(
    machine: MachineFacts, rate: float, loaded: float, number: int
) -> None:
    """None on a CPU, none where augmentation is negligible, and never more than cores."""
    assert workers(machine, measured("small", rate, loaded)) == number
    assert compute_reached_speed(machine, measured("small", rate, loaded)) >= rate


def test_fine_tuning_and_pre_training_get_workers_too() -> None:
    """Steps of all weights wait for the augmentation of single images, as those from scratch do."""
    features = measured(FEATURES, 7_000.0, 1_000.0)
    fine = plan(facts(features, images=20_000), {}, "published")
    assert fine.settings["training"]["trainable"] == "head_then_all"
    assert fine.settings["data"]["workers"] == 3  # 2,000 images/s are trained
    head = plan(facts(features), {"training.trainable": "head"}, "published")
    assert "data" not in head.settings
    own = measured(OWN, 500.0, 1_000.0)
    pretraining = plan(facts(own), {}, "unlabelled")
    assert pretraining.settings["data"]["workers"] == 2  # 1,000 images/s without augmentation
    assert "2 data-loader workers: the augmentation runs on the CPU" in pretraining.text()
    starts: tuple[tuple[Start, Speed], ...] = (("published", features), ("unlabelled", own))
    for start, speed in starts:
        set_by_user = plan(facts(speed, images=20_000), {"data.workers": 7}, start)
        assert "data" not in set_by_user.settings
        on_cpu = plan(facts(speed, machine=MachineFacts(), images=20_000), {}, start)
        assert "data" not in on_cpu.settings


def test_several_gpus_train_more_images_with_workers_of_their_own() -> None:
    """Each has its part of the batch; the cores are shared; the assumption is named."""
    slow = measured("vit_s16", 1_300.0, 1_800.0)
    eight = GPU.model_copy(update={"processes": 8})
    one = plan(facts(slow), {})
    several = plan(facts(slow, machine=eight), {"training.processes": 8})
    assert several.images_per_second > 2.5 * one.images_per_second
    assert workers(eight, slow) == 1  # 16 cores for eight processes
    assert several.settings["data"]["workers"] == 1
    assert "assumed that each process reaches 90% of one alone" in several.text()
    on_two = eight.model_copy(update={"machines": 2})
    assert workers(on_two, slow) == 3


def test_only_the_augmentation_of_single_images_needs_workers() -> None:
    """`standard` changes whole batches on the device; `randaugment` goes through the images."""
    threads = cv2.getNumThreads()
    alone = measure_loading(candidate(augmentation={"name": "randaugment"}))
    assert 50 < alone < 100_000
    assert cv2.getNumThreads() == threads
    features = candidate(augmentation={"name": "randaugment"})
    assert measure_loading(features.model_copy(update={"features_only": True})) > 50
    for batched in ("standard", "light", "resized_crop"):
        assert measure_loading(candidate(augmentation={"name": batched})) == 0.0


def test_steps_of_smaller_images_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They cost what their pixels cost, where a step takes as long as its images are large."""

    def timed(settings: Any, model: Any, batch: int, **options: Any) -> Iterator[float]:
        pixels: list[int] = []
        model.register_forward_pre_hook(lambda _, given: pixels.append(given[0].numel()))
        return (1e-9 * pixels[-1] for _ in trial_steps(settings, model, batch, **options))

    monkeypatch.setattr(measuring, "trial_steps", timed)
    monkeypatch.setattr(measuring, "_LEAST_SECONDS", 0.0)
    model = {"embed_dim": 16, "depth": 1, "num_heads": 2, "patch_embedding": {"name": "whitened"}}
    given = (candidate(model=model, training={"precision": "float32"}),)
    job = MeasuringJob(candidates=given, num_classes=2, images=99, budget_seconds=60)
    [speed] = measure(job, EventWriter(tmp_path / "events.jsonl")).speeds
    assert speed.smaller_step_share == pytest.approx(SMALLER**2)


def test_sizes_that_are_set_make_all_candidates_as_fast() -> None:
    """What one of them was measured with then holds for the others."""
    set_sizes = {"model.embed_dim": 320, "model.depth": 2, "data.image_size": 128}
    for settings, alike in ((set_sizes, True), ({}, False)):
        draft = draft_plan(facts(measured("tiny", 500.0), machine=MachineFacts()), settings)
        rates = {draft.length_of(each).images_per_second for each in draft.candidates[:-1]}
        assert (rates == {500.0}) is alike


def test_a_small_model_that_a_gpu_waits_for_says_little_about_large_ones() -> None:
    """Between two measured models, speeds fall with the work; beyond, they follow the nearest."""
    both = facts(measured("tiny", 9_000.0), measured("vit_s16", 3_000.0))
    rates = [
        images_per_second(both, tier, PHOTOGRAPH_TIERS, tier.name) for tier in PHOTOGRAPH_TIERS
    ]
    assert rates == sorted(rates, reverse=True)
    assert (rates[0], rates[-1]) == (9_000.0, 3_000.0)
    one = images_per_second(
        facts(measured("tiny", 9_000.0)), PHOTOGRAPH_TIERS[-1], PHOTOGRAPH_TIERS, "vit_s16"
    )
    assert one < 300  # ten times too slow, which is why a large one is measured too
