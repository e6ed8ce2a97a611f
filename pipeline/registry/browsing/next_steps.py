"""What `patchline run` prints in the end: the results, and commands to paste."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from patchline.pipeline.evaluation.headline import headline_of
from patchline.pipeline.registry.browsing.run_summary import RunSummary
from patchline.pipeline.terminal_words import pasted_path, pasted_program

Command = tuple[str, str]
"""A command line and what it does."""


def next_steps(summary: RunSummary, seconds: float, plugins: Sequence[Path] = ()) -> str:
    """Return the results of a run and what to do with them, in lines.

    Args:
        summary: of the run.
        seconds: duration of the whole command.
        plugins: plugin files that were given with `--plugin`.
    """
    parts = {**summary.seconds, "start-up and end": seconds - sum(summary.seconds.values())}
    stages = ", ".join(f"{stage} {each:.0f}" for stage, each in parts.items())
    activation, commands = _commands(summary, plugins)
    width = max(len(command) for command, _ in commands)
    lines = [
        "",
        _result_line(summary),
        *(f"               {note}" for note in (summary.caveat, summary.groups_note) if note),
        *_fold_lines(summary),
        *_calibration_lines(summary),
        f"Registered     {summary.name}, version {summary.version} ({', '.join(summary.aliases)})",
        *_promotion_lines(summary),
        f"Report         {pasted_path(summary.report)}",
        f"Took           {seconds:.0f} s ({stages})",
        "",
        f"What's next{f' (after `{activation}`)' if activation else ''}:",
        *(f"  {command:<{width}}  {meaning}" for command, meaning in commands),
    ]
    return "\n".join([*lines, *address_lines(summary.page, summary.tracking_uri)])


def _result_line(summary: RunSummary) -> str:
    main = headline_of(summary.metrics)
    if main is None:
        loss = summary.metrics["test/loss"]
        interval = f"95% interval {loss.low:.4g} to {loss.high:.4g}"
        return f"Test loss      {loss.value:.4g} on {loss.n:,} images ({interval})"
    found = main.estimate
    if found is None:
        return (
            f"{f'Test {main.name}':<14} unknown: no label is on some test images and not on others"
        )
    joint = "of" if main.name == "accuracy" else "on"
    return (
        f"{f'Test {main.name}':<14} {found.value:.1%} {joint} {found.n:,} images "
        f"(95% interval {found.low:.1%} to {found.high:.1%})"
    )


def _commands(summary: RunSummary, plugins: Sequence[Path]) -> tuple[str, list[Command]]:
    """Return the command that activates the environment, if one is needed, and the others."""
    program, activation = pasted_program("patchline")
    champion = "champion" in summary.aliases
    model = f"{summary.name}@champion" if champion else f"{summary.name}/{summary.version}"
    promote = [(f"{program} promote {summary.name}", "make it champion if it is better")]
    if champion:
        promote = []
    elif summary.approval:
        promote = [(f"{program} approve {model}", "make it champion, or `reject` it")]
    files = "".join(f" --plugin {pasted_path(str(file))}" for file in plugins)
    again = f"{program} run --config {pasted_path(summary.config)}{files} --fresh"
    of_encoder = [
        (f"{program} run FOLDER --model.init {model}", "train a classifier from it"),
        (f"{program} models {summary.name}", "list all versions with their metrics"),
        (again, "reproduce this run"),
    ]
    of_classifier = [
        (f"{program} predict {model} {pasted_path(summary.example_image)}", _predicts(summary)),
        (f"{program} explain {model} {pasted_path(summary.example_image)}", "show how it sees it"),
        (f"{program} serve {model}", "a page to try images on, and answers over HTTP"),
        *promote,
        (f"{program} models {summary.name}", "list all versions with their metrics"),
        (again, "reproduce this run"),
    ]
    commands = of_classifier if _is_classifier(summary) else of_encoder
    if not _has_server(summary.tracking_uri):
        commands.append((f"{pasted_program('mlflow')[0]} ui", "browse the runs in this folder"))
    return activation, commands


def _is_classifier(summary: RunSummary) -> bool:
    return headline_of(summary.metrics) is not None


def _predicts(summary: RunSummary) -> str:
    headline = headline_of(summary.metrics)
    return "classify an image" if headline and headline.name == "accuracy" else "label an image"


def _has_server(tracking_uri: str) -> bool:
    return tracking_uri.startswith("http")


def address_lines(page: str, tracking_uri: str) -> list[str]:
    """Return where the MLflow UI shows a run, in its layout for model training.

    Args:
        page: address of the run; empty if there is none.
        tracking_uri: of the store; without a server, the UI has to be started.
    """
    when = "This run in MLflow" if _has_server(tracking_uri) else "This run, while `mlflow ui` runs"
    return [f"{when}: {page}"] if page else []


def _fold_lines(summary: RunSummary) -> list[str]:
    folds = summary.cross_validation
    if folds is None:
        return []
    interval = f"95% t interval {folds.low:.1%} to {folds.high:.1%}"
    return [f"Validation     {folds.value:.1%}, mean of {folds.n} folds ({interval})"]


def _calibration_lines(summary: RunSummary) -> list[str]:
    """Return why the probabilities may be uncalibrated; nothing where images determine them."""
    fit = summary.calibration
    return [] if fit is None or fit.is_calibrated else [f"Calibration    {fit.sentence()}"]


def _promotion_lines(summary: RunSummary) -> list[str]:
    decision = summary.promotion
    if "champion" in summary.aliases or not _is_classifier(summary):
        return []
    if decision is None:
        program = pasted_program("patchline")[0]
        how = (
            "approval is pending"
            if summary.approval
            else f"`{program} promote {summary.name}` compares this version with it"
        )
        lines = [f"               the champion has not changed; {how}"]
    else:
        lines = [f"Not promoted   {decision.reason}"]
    return [*lines, f"Approval       {summary.approval}"] if summary.approval else lines
