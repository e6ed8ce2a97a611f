"""The commands `patchline promote` and `patchline rollback`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import yaml
from cyclopts import Parameter

from flows.progress import display, shown
from pipeline import config_files, tracking, tracking_store
from pipeline.config import RunConfig
from pipeline.errors import ConfigError
from pipeline.registry import promoting
from pipeline.registry.config import PromotionConfig
from pipeline.registry.history import CHALLENGER
from pipeline.registry.promoting import Promotion, Request
from pipeline.registry.registered_models import ModelReference, resolve

REFUSED = 3


def build() -> Callable[..., int]:
    """Return the command, with the gates as flags."""

    def promote(
        name: str,
        /,
        *,
        version: int | None = None,
        config: Path | None = None,
        force: Annotated[bool, Parameter(negative="")] = False,
        reason: str | None = None,
        json: Annotated[bool, Parameter(negative="")] = False,
        promotion: PromotionConfig | None = None,
    ) -> int:
        """Make a version champion if it passes the gates; the exit code is 3 if one refuses.

        Parameters
        ----------
        name
            The registered model.
        version
            Which version; by default the challenger, which is the newest one.
        config
            YAML file whose section `promotion` holds the gates; by default those of the
            version's own run.
        force
            Promote although a gate refuses; the history shows it.
        reason
            Why the gates are overruled.
        json
            Print one JSON object.
        promotion
            Gates; a flag beats the file.
        """
        return print_promotion(
            name,
            version=version,
            config=config,
            promotion=promotion,
            force=force,
            reason=reason,
            as_json=json,
        )

    return promote


def print_promotion(
    name: str,
    *,
    version: int | None,
    config: Path | None,
    promotion: PromotionConfig | None,
    force: bool,
    reason: str | None,
    as_json: bool,
) -> int:
    """Promote a version; return 3 if a gate refuses."""
    if force and not (reason or "").strip():
        raise ConfigError("--force overrules the gates, so it needs --reason TEXT. Say why.")
    if reason is not None and not force:
        raise ConfigError("--reason explains --force, which is not given. Add it, or leave both.")
    tracking.close_abandoned()
    reference = resolve(f"{name}/{version}" if version is not None else f"{name}@{CHALLENGER}")
    gates = gates_of(reference, config, promotion)
    folder = _folder(reference)
    with shown():
        display().stage(f"Deciding about {reference.name}, version {reference.version}")
        decision, _ = promoting.promote(
            Request(reference, gates, reason if force else None), folder, display().note
        )
    if decision is None:  # only a request for an empty place can find it taken
        return REFUSED
    if as_json:
        print(decision.model_dump_json(indent=2))
    else:
        print("\n".join(_lines(decision)))
    return 0 if decision.promoted else REFUSED


def print_rollback(name: str, *, reason: str | None, as_json: bool) -> None:
    """Go back to the champion before the present one."""
    tracking.close_abandoned()
    resolve(name)  # an unknown name is answered before anything is locked
    with shown():
        display().stage(f"Going back to the champion of {name} before the present one")
        entry = promoting.rollback(name, reason, display().note)
    if as_json:
        content = {"name": name, "champion": entry.to_version, **entry.model_dump(mode="json")}
        print(json.dumps(content, indent=2))
    else:
        print(
            f"{name}, version {entry.to_version} is champion again, instead of version "
            f"{entry.from_version}. Reason: {entry.reason}."
        )


def gates_of(
    reference: ModelReference, file: Path | None, flags: PromotionConfig | None
) -> PromotionConfig:
    """Return the gates of a version: flags beat the file, the file beats what its run recorded.

    Raises:
        ConfigError: if the file or what it sets is wrong.
    """
    settings = _recorded(reference) if file is None else _from_file(file)
    given: dict[str, Any] = flags.model_dump(exclude_unset=True) if flags else {}
    return PromotionConfig.model_validate({**settings.model_dump(), **given})


def _from_file(file: Path) -> PromotionConfig:
    merged = config_files.assemble(preset_name=None, file=file, flags={})
    return RunConfig.model_validate({"promotion": merged.get("promotion", {})}).promotion


def _recorded(reference: ModelReference) -> PromotionConfig:
    """Return the gates in the config that the version's run recorded, or the defaults."""
    from mlflow.exceptions import MlflowException

    store = tracking_store.client()
    run_id = store.get_model_version(reference.name, reference.version).run_id
    try:
        text = Path(store.download_artifacts(str(run_id), "config.yaml")).read_text("utf-8")
        recorded = yaml.safe_load(text).get("promotion", {})
    except (MlflowException, OSError):
        print("The run's own settings are gone; the default gates are asked.", file=sys.stderr)
        return PromotionConfig()
    return PromotionConfig.model_validate(recorded)


def _folder(reference: ModelReference) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    name = f"{reference.name}-{reference.version}-{stamp}"
    return (Path(".patchline") / "promotions" / name).resolve()


def _lines(decision: Promotion) -> list[str]:
    verdict = "promoted" if decision.promoted else "refused"
    if decision.forced:
        verdict = "promoted by force"
    before = f"version {decision.champion}" if decision.champion else "none"
    lines = [
        f"{decision.name}, version {decision.version}: {verdict}",
        f"  champion before: {before}",
    ]
    width = max((len(gate.name) for gate in decision.gates), default=0)
    lines += [
        f"  {'passed ' if gate.passed else 'REFUSED'}  {gate.name:<{width}}  {gate.sentence}"
        for gate in decision.gates
    ]
    if decision.forced or not decision.gates or decision.champion == decision.version:
        lines.append(f"  reason: {decision.reason}")
    if decision.report:
        lines.append(f"  report: {_shown(decision.report)}")
    return lines


def _shown(path: str) -> str:
    import os

    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
