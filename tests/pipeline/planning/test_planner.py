"""A plan is measured once, remembered for the same facts, and kept in the resolved config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from patchline.pipeline.config import RunConfig
from patchline.pipeline.config_files import requested
from patchline.pipeline.data.ingestion import ingest
from patchline.pipeline.models.model_building import build_model
from patchline.pipeline.planning import planner
from patchline.pipeline.planning.facts import Plan, Speed
from patchline.pipeline.planning.measuring import measure
from patchline.pipeline.planning.measuring_job import Measurement
from patchline.pipeline.planning.plan import plan
from patchline.pipeline.run_memory.stage_memory import StageMemory
from patchline.pipeline.stages import engine
from patchline.pipeline.stages.context import Context, Reporting
from patchline.pipeline.stages.plan import PLAN
from patchline.pipeline.training.speed import precision
from patchline.pipeline.training.speed.precision import Chooser
from patchline.pipeline.workers.event_log import EventWriter
from patchline.plugin_api import ImageSpec


def asked(photos: Path, **flags: Any) -> RunConfig:
    """Return the config of `run PHOTOS --preset balanced` with flags."""
    return requested(str(photos), preset_name="balanced", flags=flags)


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


def test_another_model_is_set_with_its_name_alone(photos: Path) -> None:
    """The defaults of a chosen plugin are not settings of the user."""
    config = asked(photos, model={"name": "rope_vit"}, augmentation={"name": "none"})
    assert planner.user_settings(config) == {"augmentation.name": "none", "model.name": "rope_vit"}


def test_a_plan_is_remembered_and_keeps_the_settings_stable(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second run takes the plan of the first, even if the machine is slower by then."""
    work = tmp_path / "work"
    config = asked(photos, training={"time_limit": "1m"})
    data = ingest(config, work)
    speeds = iter([900.0, 1.0, 5.0])

    def measured(*_: object) -> Measurement:
        return Measurement(speeds=(Speed(candidate="tiny", images_per_second=next(speeds)),))

    monkeypatch.setattr(planner, "measured_apart", measured)

    def planned(changed: RunConfig, *, fresh: bool = False) -> Plan:
        silent = Reporting(*[lambda *_: None] * 4)
        context = Context(changed, StageMemory(work, fresh=fresh), silent, work)
        context.put(data)
        engine.run_stages((PLAN,), context)
        return context.get(Plan)

    first = planned(config)
    assert first.images_per_second == pytest.approx(900.0, rel=0.9)
    assert planned(config) == first
    seeded = config.model_copy(update={"seed": 3})
    assert planned(seeded) == first
    other = planned(asked(photos, training={"time_limit": "2m"}))
    assert other.images_per_second < first.images_per_second
    assert planned(config, fresh=True) not in (first, other)


def test_the_planned_config_has_every_setting_and_no_preset(photos: Path, tmp_path: Path) -> None:
    """What is saved with the run replays without planning again."""
    optimizer = {"weight_decay": 0.33, "gradient_clip": None}
    config = asked(photos, training={"batch_size": 5}, optimizer=optimizer)
    data = ingest(config, tmp_path / "work")
    facts = planner.plan_facts(config, data)
    made = plan(facts, planner.user_settings(config))
    whole = planner.with_plan(config, made)
    assert whole.preset is None
    assert whole.training.batch_size == 5
    assert whole.model.patch_embedding.name == "whitened"
    assert whole.optimizer.name == "muon"
    assert (whole.optimizer.weight_decay, whole.optimizer.gradient_clip) == (0.33, None)
    assert whole.data.path == str(photos)


def test_measuring_gives_a_speed_for_the_first_candidate_at_least(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A budget of nothing still measures the fastest model, with real steps.

    Its precision is remembered for the training.
    """
    monkeypatch.setattr(precision, "certain_reason", lambda _: "")
    config = asked(photos)
    data = ingest(config, tmp_path / "work")
    facts = planner.plan_facts(config, data)
    job = planner.measuring_job(config, data, facts, {})
    changes = {"budget_seconds": 0.001, "images": 8, "workspace": tmp_path / "work"}
    job = job.model_copy(update=changes)
    events = EventWriter(tmp_path / "events.jsonl")
    found = measure(job, events)
    assert [speed.candidate for speed in found.speeds] == ["tiny"]
    assert found.speeds[0].images_per_second > 0
    monkeypatch.setattr(precision, "faster", lambda _: pytest.fail("was measured again"))
    chosen = job.candidates[0].config
    side = chosen.data.image_size or 0
    image = ImageSpec(
        channels=3, height=side, width=side, mean=(0.5,) * 3, std=(0.5,) * 3, resize="crop"
    )
    model = build_model(chosen.model, image, job.num_classes)
    remembered = Chooser(chosen, image, job.num_classes, model, job.workspace).choose()
    assert "images/s in float32" in remembered.reason
