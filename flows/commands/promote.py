"""The commands `patchline promote` and `patchline rollback`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from flows.closing.close_runs import tell_closed
from flows.commands.switches import Json, Switch
from flows.notifications import events
from flows.progress import display, shown
from pipeline import config_files
from pipeline.errors import ConfigError, ModelReferenceError, RunError
from pipeline.evaluation.decision import GateResult
from pipeline.registry.config import PromotionConfig
from pipeline.registry.history import CHALLENGER
from pipeline.registry.registered_models import ModelReference, resolve
from pipeline.tracking import tracking_store
from pipeline.workspace import WORKSPACE

if TYPE_CHECKING:
    from pipeline.registry.promotion import Promotion

REFUSED = 3
LONGEST_REASON = 500


def promote(
    name: str,
    /,
    *,
    version: int | None = None,
    config: Path | None = None,
    force: Switch = False,
    reason: str | None = None,
    ask: Switch = False,
    as_json: Json = False,
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
    ask
        Do not decide, but ask a person, who answers with `patchline approve` or in Prefect;
        needs `patchline up`.
    promotion
        Gates; a flag beats the file.
    """
    if ask:
        from flows.commands.approve import print_question

        if force or reason is not None:
            raise ConfigError("--ask leaves the decision to a person. Leave --force, --reason.")
        return print_question(
            name, version=version, config=config, promotion=promotion, as_json=as_json
        )
    return _print_promotion(
        name,
        version=version,
        config=config,
        promotion=promotion,
        force=force,
        reason=reason,
        as_json=as_json,
    )


def _print_promotion(
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
    with shown():
        decision = promote_version(
            name, version=version, config=config, promotion=promotion, force=force, reason=reason
        )
    if as_json:
        print(decision.model_dump_json(indent=2))
    else:
        print("\n".join(_lines(decision)))
    return 0 if decision.promoted else REFUSED


def promote_version(
    name: str,
    *,
    version: int | str | None,
    config: Path | None,
    promotion: PromotionConfig | None,
    force: bool,
    reason: str | None,
) -> Promotion:
    """Decide whether a version becomes champion; the arguments are those of the command."""
    if force and not (reason or "").strip():
        raise ConfigError("--force overrules the gates, so it needs --reason TEXT. Say why.")
    if reason is not None and not force:
        raise ConfigError("--reason explains --force, which is not given. Add it, or leave both.")
    reason = None if reason is None else one_line(reason)
    check_name(name)
    tell_closed()
    reference = resolve(f"{name}/{version}" if version is not None else f"{name}@{CHALLENGER}")
    gates = gates_of(reference, config, promotion)
    from pipeline.registry.promotion import Request
    from pipeline.registry.promotion import promote as decide

    display().stage(f"Deciding about {reference.name}, version {reference.version}")
    request = Request(reference, gates, reason if force else None)
    decision, _ = decide(request, _folder(reference), display().note)
    if decision is None:  # cannot be: only a request for an empty place finds it taken
        raise RunError(f"The champion of '{name}' changed meanwhile. Try again.")
    events.tell_decision(decision)
    return decision


def rollback(name: str, /, *, reason: str | None = None, as_json: Json = False) -> None:
    """Make the champion before the present one champion again.

    Parameters
    ----------
    name
        The registered model.
    reason
        Why; it stands in the history.
    """
    reason = None if reason is None else one_line(reason)
    check_name(name)
    tell_closed()
    resolve(name)  # an unknown name is answered before anything is locked
    with shown():
        from pipeline.registry.promotion import rollback as roll_back

        display().stage(f"Going back to the champion of {name} before the present one")
        entry = roll_back(name, reason, display().note)
    facts = {"version": entry.to_version, "before": entry.from_version, "reason": entry.reason}
    events.emit(events.MODEL_ROLLED_BACK, f"patchline.model.{name}", {"name": name, **facts})
    if as_json:
        content = {"name": name, "champion": entry.to_version, **entry.model_dump(mode="json")}
        print(json.dumps(content, indent=2))
    else:
        print(
            f"{name}, version {entry.to_version} is champion again, instead of version "
            f"{entry.from_version}. Reason: {entry.reason}."
        )


def check_name(name: str) -> None:
    """Refuse a reference where a name is wanted.

    Raises:
        ConfigError: for `flowers@champion`, `flowers/2` and the like.
    """
    if not name or any(sign in name for sign in "@/:"):
        raise ConfigError(
            f"'{name}' is not the name of a registered model. Give the bare name; promote takes a "
            "version with --version."
        )


def one_line(reason: str) -> str:
    """Return a reason that fits into a history: no line breaks, no escapes, not too long."""
    plain = "".join(sign if sign.isprintable() else " " for sign in reason)
    words = " ".join(plain.split())
    if len(words) > LONGEST_REASON:
        raise ConfigError(
            f"The reason has {len(words)} characters; at most {LONGEST_REASON} are kept. Shorten "
            "it."
        )
    return words


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
    if "promotion" not in merged:
        raise ConfigError(
            f"{file} has no section 'promotion', which holds the gates. Add it, or leave --config."
        )
    return config_files.validated(merged).promotion


def _recorded(reference: ModelReference) -> PromotionConfig:
    """Return the gates in the config that the version's run recorded, or the defaults."""
    from mlflow.exceptions import MlflowException

    store = tracking_store.client()
    run_id = store.get_model_version(reference.name, reference.version).run_id
    try:
        text = Path(store.download_artifacts(str(run_id), "config.yaml")).read_text("utf-8")
        recorded = yaml.safe_load(text).get("promotion", {})
    except (MlflowException, OSError) as error:
        raise ModelReferenceError(
            f"The settings of the run behind '{reference.name}' version {reference.version} are "
            "gone, and with them its gates. Give the gates in a file with --config."
        ) from error
    return PromotionConfig.model_validate(recorded)


def _folder(reference: ModelReference) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    name = f"{reference.name}-{reference.version}-{stamp}"
    return (WORKSPACE / "promotions" / name).resolve()


def _lines(decision: Promotion) -> list[str]:
    verdict = "promoted" if decision.promoted else "refused"
    if decision.forced:
        verdict = "promoted by force"
    if decision.champion == decision.version:
        return [f"{decision.name}, {decision.reason}"]
    before = f"version {decision.champion}" if decision.champion else "none"
    lines = [
        f"{decision.name}, version {decision.version}: {verdict}",
        f"  champion before: {before}",
    ]
    width = max((len(gate.name) for gate in decision.gates), default=0)
    lines += [
        f"  {_verdict(gate):<10}  {gate.name:<{width}}  {gate.sentence}" for gate in decision.gates
    ]
    if decision.forced or not decision.gates:
        lines.append(f"  reason: {decision.reason}")
    if decision.report:
        lines.append(f"  report: {_shown(decision.report)}")
    return lines


def _verdict(gate: GateResult) -> str:
    if not gate.passed:
        return "REFUSED"
    return "passed" if gate.value is not None else "not judged"


def _shown(path: str) -> str:
    import os

    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
