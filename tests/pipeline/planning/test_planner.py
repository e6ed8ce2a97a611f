"""A plan is measured once, remembered for the same facts, and kept in the resolved config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from patchline.pipeline.config import RunConfig
from patchline.pipeline.config_files import build_config
from patchline.pipeline.data.ingested_data import IngestedData
from patchline.pipeline.data.ingestion import ingest
from patchline.pipeline.planning import measuring, planner
from patchline.pipeline.planning.facts import DataFacts, MachineFacts, Plan, PlanFacts, Speed
from patchline.pipeline.planning.measuring import OtherPrograms, Trial, measure
from patchline.pipeline.planning.measuring_job import MeasuredCandidate, Measurement, MeasuringJob
from patchline.pipeline.planning.published import FEATURES
from patchline.pipeline.planning.rules import plan
from patchline.pipeline.stages import engine
from patchline.pipeline.stages.plan import PlanTraining
from patchline.pipeline.stages.stage import Context, Reporting, StageClass
from patchline.pipeline.workers.event_log import EventWriter
from patchline.pipeline.workspace.run_memory import stage_keys
from patchline.pipeline.workspace.run_memory.stage_memory import StageMemory


def asked(photos: Path, **flags: Any) -> RunConfig:
    """Return the config of `run PHOTOS --preset balanced` with flags."""
    return build_config(str(photos), preset_name="balanced", flags=flags)


def finished(config: RunConfig, data: IngestedData, work: Path, *stages: StageClass) -> Context:
    """Do stages of a run whose data were read, in silence."""
    context = Context(config, StageMemory(work), Reporting(*[lambda *_: None] * 4), work)
    context.put(data)
    engine.run_stages(stages, context)
    return context


def test_only_what_was_given_counts_as_set(photos: Path) -> None:
    """Defaults that a form or a schedule stores are not settings of the user; its changes are."""
    config = asked(photos, training={"epochs": 60})
    assert planner.user_settings(config) == {"training.epochs": 60}
    assert config.preset is not None
    stored = config.model_dump(mode="json")
    stored["optimizer"]["momentum"] = 0.5  # changed in a form
    stored["model"]["depth"] = 2
    assert planner.user_settings(RunConfig.model_validate(stored)) == {
        "model.depth": 2,
        "optimizer.momentum": 0.5,
        "training.epochs": 60,
    }
    del stored["record"]  # as an earlier version stored it, whose user had set an average
    stored["training"]["average_last"] = 5
    former = RunConfig.model_validate(stored)
    assert planner.user_settings(former)["record.average_last"] == 5
    other = asked(photos, model={"name": "rope_vit"}, augmentation={"name": "none"})
    assert planner.user_settings(other) == {"augmentation.name": "none", "model.name": "rope_vit"}


def test_a_plan_is_remembered_and_keeps_the_settings_stable(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second run takes the plan of the first, even if the machine is slower by then.

    Only other packages are measured again.
    """
    work = tmp_path / "work"
    config = asked(photos, training={"time_limit": "1m"})
    data = ingest(config, work)
    loads = iter([(900.0, 2), (5.0, 1), (700.0, 2)])

    def measured(*_: object) -> Measurement:
        rate, threads = next(loads)
        speed = Speed(candidate="tiny", images_per_second=rate, precision="float32")
        return Measurement(speeds=(speed,), threads=threads)

    monkeypatch.setattr(planner, "measure_apart", measured)

    def planned(changed: RunConfig) -> Plan:
        return finished(changed, data, work, PlanTraining).get(Plan)

    first = planned(config)
    assert first.images_per_second == pytest.approx(900.0, rel=0.9)
    assert planned(config) == first
    assert planner.with_plan(config, first).training.threads == 2
    other = planned(asked(photos, training={"time_limit": "2m"}))
    assert other.images_per_second < first.images_per_second
    monkeypatch.setattr(stage_keys, "find_installed_version", lambda _: "9.9")
    updated = planned(config)  # with another torch, neither the speed nor the precision stands
    assert updated.images_per_second < first.images_per_second
    assert planned(config) == updated


def write_wide(folder: Path, width: int) -> Path:
    """Write wide photographs with sets of two labels, one of which is rare, and their table."""
    random = np.random.default_rng(0)
    lines = ["image,tags"]
    for number in range(80):
        pixels = random.integers(0, 255, (40, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        labels = ("bird", "", "sky|bird")[number // 4 % 3] if number % 4 == 0 else "sky"
        lines.append(f"{number}.png,{labels}")
    (folder / "labels.csv").write_text("\n".join(lines))
    return folder / "labels.csv"


@pytest.mark.parametrize(("width", "share"), [(60, 0.333), (41, 0.0)])
def test_what_labels_name_is_not_cut_off(tmp_path: Path, width: int, share: float) -> None:
    """Wide images are squashed, with the reason, unless they are about square or it is set.

    So they are from settings that were stored whole, as those of a watch are.
    """
    (tmp_path / "data").mkdir()
    table = write_wide(tmp_path / "data", width)
    data = ingest(build_config(str(table), preset_name="quick"), tmp_path / "work")
    made = {}
    for resize in (None, "crop", "pad"):
        settings = {"resize": resize} if resize else {}
        config = build_config(str(table), preset_name="quick", flags={"data": settings})
        config = RunConfig.model_validate(config.model_dump(mode="json"))
        assert planner.user_settings(config).get("data.resize") == resize
        facts = planner.plan_facts(config, data)
        assert facts.data.cropped_away == pytest.approx(share, abs=0.03)
        made[resize] = plan(facts, planner.user_settings(config))
    squashed = made[None].settings["data"].get("resize") == "squash"
    assert squashed == (share > 0.05)
    assert any("leaves out 33% of it" in each for each in made[None].reasons) == squashed
    for resize in ("crop", "pad"):
        assert "resize" not in made[resize].settings["data"]


SMALL = {"embed_dim": 24, "depth": 1, "num_heads": 2, "mlp_dim": 24}


def test_fewer_threads_are_planned_where_other_programs_use_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only if that is clearly faster; here, passes of published weights are compared."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(OtherPrograms, "cores", lambda _: 1.5)
    monkeypatch.setattr(measuring, "trial_steps", lambda *_: pytest.fail("a step"))
    images, fastest = list[int](), [30.0]

    def rates(trial: Trial, _: object, number: int, *__: object, **___: object) -> dict[int, float]:
        images.append(number)
        assert next(trial(number)) > 0
        return {2: 3.0, 1: fastest[-1]}

    monkeypatch.setattr(measuring, "measure_rates", rates)
    data = {"image_size": 16}
    config = RunConfig.model_validate({"model": {"name": "vit", **SMALL}, "data": data})
    features = MeasuredCandidate(name=FEATURES, config=config, features_only=True)
    job = MeasuringJob(candidates=(features,), num_classes=2, images=50, budget_seconds=0.01)
    before = torch.get_num_threads()
    try:
        for rate, threads in ((30.0, 1), (3.1, 2)):
            fastest.append(rate)
            torch.set_num_threads(2)
            assert measure(job, EventWriter(tmp_path / "events.jsonl")).threads == threads
    finally:
        torch.set_num_threads(before)
    assert 4 <= images[0] <= 256


def test_measuring_ends_when_its_time_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then one speed is known, and the precision is not compared."""
    monkeypatch.setattr(measuring, "_precision", lambda *_: pytest.fail("compared"))
    data = {"image_size": 16}
    config = RunConfig.model_validate({"model": {"name": "vit", **SMALL}, "data": data})
    features = MeasuredCandidate(name=FEATURES, config=config, features_only=True)
    job = MeasuringJob(
        candidates=(features, features),
        num_classes=2,
        images=50,
        budget_seconds=9.0,
        most_seconds=0.0,
    )
    [speed] = measure(job, EventWriter(tmp_path / "events.jsonl")).speeds
    assert (speed.precision, speed.images_per_second > 0) == ("float32", True)


_SPEEDS = (
    Speed(candidate="tiny", images_per_second=9.0, precision="float32"),
    Speed(candidate="small", images_per_second=4.0, precision="bfloat16"),
)


@pytest.mark.parametrize(
    ("images", "user", "settings", "words"),
    [
        (9, {}, ("float32", 1), "computed with 1 thread in float32, as"),
        (50_000, {}, ("bfloat16", 1), "1 thread in bfloat16"),
        (9, {"training.threads": 4}, ("float32", None), "computed in float32, as"),
        (9, {"training.precision": "float32", "training.threads": 1}, (None, None), ""),
    ],
)
def test_the_plan_computes_as_it_measured(
    images: int, user: dict[str, Any], settings: tuple[str | None, int | None], words: str
) -> None:
    """Threads and precision are settings of the plan, unless the user has set them."""
    data = DataFacts(training_images=images, classes=2, median_side=32)
    facts = PlanFacts(preset="quick", data=data, machine=MachineFacts(threads=1), speeds=_SPEEDS)
    made = plan(facts, {"training.time_limit": "24h", **user})
    training = made.settings["training"]
    assert (training.get("precision"), training.get("threads")) == settings
    assert words in made.text()
    assert ("as in the measurement" in made.text()) is bool(words)
