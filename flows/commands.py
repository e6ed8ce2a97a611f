"""What `patchline` offers: every command with its arguments; its work is imported when asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from flows import orchestration_commands

_EPILOGUE = """\
Everywhere: --debug shows the trace of an error, --plugin FILE.py adds a plugin from a file.
"""

Json = Annotated[bool, Parameter(name="--json", negative="")]


def application(arguments: list[str]) -> App:
    """Return the command line; settings of plugins are composed for what the arguments ask."""
    commands = App(
        name="patchline",
        help="From a folder of labelled images to a Vision Transformer in a model registry.",
        help_epilogue=_EPILOGUE,
        version_flags=["--version"],
        version=_version,
    )
    commands.command(_run_command(arguments), name="run")
    plugins = App(name="plugins", help="What is installed, what it costs, and how to write more.")
    plugins.command(list_plugins, name="list")
    plugins.command(_plugin_command(arguments, "show", show_plugin), name="show")
    plugins.command(_plugin_command(arguments, "check", check_plugin), name="check")
    plugins.command(new_plugin, name="new")
    commands.command(plugins)
    commands.command(predict, name="predict")
    commands.command(_evaluate_command(arguments), name="evaluate")
    commands.command(models, name="models")
    commands.command(_promote_command(arguments), name="promote")
    commands.command(rollback, name="rollback")
    orchestration_commands.register(commands)
    return commands


def _version() -> str:
    from importlib import metadata

    return metadata.version("patchline")


def _run_command(arguments: list[str]) -> Callable[..., Any]:
    """Return the command `run`; its settings are composed only when it is asked for."""
    if "run" in arguments[:1]:
        from flows.run_command import build

        return build(arguments[1:])

    def run() -> None:
        """Train on a folder of images and register the model; without DATA, on built-in digits."""

    return run


def list_plugins(*, json: Json = False) -> None:
    """List the installed plugins; nothing is imported.

    Parameters
    ----------
    json
        Print one JSON object.
    """
    from flows.plugin_list_command import print_list

    print_list(as_json=json)


def _plugin_command(
    arguments: list[str], name: str, general: Callable[..., Any]
) -> Callable[..., Any]:
    """Return `plugins show` or `plugins check`; with a plugin named, its settings are flags."""
    if arguments[:2] != ["plugins", name]:
        return general
    from flows.plugin_commands import named_plugin, plugins_command

    asks_for_help = {"--help", "-h"} & set(arguments)
    if asks_for_help and not named_plugin.words_of(arguments[2:]):
        return general
    builders = {"show": plugins_command.build_show, "check": plugins_command.build_check}
    return builders[name](arguments[2:])


def show_plugin(
    *words: str, picture: Path | None = None, photo: Path | None = None, json: Json = False
) -> None:
    """Show a plugin's settings, and what a model or a patch embedding costs with them.

    Parameters
    ----------
    words
        The plugin's name, after its kind where the name alone is not clear: [KIND] NAME. Its
        settings are flags, as for `run`: --model.size b --data.image-size 224.
    picture
        Draw what a patch embedding does to a photo of 224 pixels: a .png, .svg or .pdf file.
    photo
        The photo to draw on; by default one that ships with scikit-learn.
    json
        Print one JSON object.
    """


def check_plugin(*words: str, json: Json = False) -> None:
    """Hold a plugin against its contract; the exit code is 1 if it breaks a rule.

    Parameters
    ----------
    words
        The plugin's name, after its kind where the name alone is not clear: [KIND] NAME. Its
        settings are flags, as for `run`: --model.size b.
    json
        Print one JSON object.
    """


def new_plugin(kind: str, name: str, /, *, into: Path = Path(), json: Json = False) -> None:
    """Write a package with a new plugin that works: its code, its settings, its test.

    Parameters
    ----------
    kind
        model, patch_embedding, data_source or augmentation.
    name
        What the plugin is called: lower-case letters, digits and underscores.
    into
        The folder that the package `patchline-NAME` is written into; by default this one.
    json
        Print one JSON object.
    """
    from flows.plugin_commands.new_plugin_command import print_new_plugin

    print_new_plugin(kind, name, into=into, as_json=json)


def predict(
    model: str,
    /,
    *images: Path,
    top_k: Annotated[int, Parameter(name="--top-k")] = 3,
    out: Path | None = None,
    probabilities: bool = True,
    restart: Annotated[bool, Parameter(negative="")] = False,
    json: Json = False,
) -> int:
    """Label images with a registered model.

    Parameters
    ----------
    model
        NAME, NAME@ALIAS, NAME/VERSION or models:/NAME@ALIAS; a bare NAME means its champion.
    images
        Image files, or folders of them.
    top_k
        How many classes to show for each image.
    out
        Write a table there instead: a file that ends in .csv or .parquet. The same command goes on
        where it was interrupted.
    probabilities
        Whether a .parquet file holds the probabilities of all classes.
    restart
        Predict everything anew instead of going on after an interruption.
    json
        Print one JSON object.
    """
    from flows.predict_command import print_predictions, write_predictions

    if out is None:
        return print_predictions(model, list(images), top_k=top_k, as_json=json)
    return write_predictions(
        model,
        list(images),
        out,
        top_k=top_k,
        probabilities=probabilities,
        restart=restart,
        as_json=json,
    )


def models(name: str | None = None, /, *, json: Json = False) -> None:
    """Show the registered models: versions, aliases, figures.

    Parameters
    ----------
    name
        One model only.
    json
        Print one JSON object.
    """
    from flows.models_command import print_models

    print_models(name, as_json=json)


def _evaluate_command(arguments: list[str]) -> Callable[..., Any]:
    """Return the command `evaluate`; what it needs is imported only when it is asked for."""
    if "evaluate" not in arguments[:1]:
        return evaluate
    from flows.evaluate_command import build

    return build()


def evaluate(model: str, data: str, /) -> None:
    """Report on a registered model on any labelled images.

    Parameters
    ----------
    model
        NAME, NAME@ALIAS, NAME/VERSION or models:/NAME@ALIAS; a bare NAME means its champion.
    data
        A folder with one subfolder of images for each class, or SOURCE:NAME.
    """


def _promote_command(arguments: list[str]) -> Callable[..., Any]:
    """Return the command `promote`; its gates are flags, read only when it is asked for."""
    if "promote" not in arguments[:1]:
        return promote
    from flows.promotion.promote_command import build

    return build()


def promote(name: str, /) -> None:
    """Make a version champion if it passes the gates; the exit code is 3 if one refuses.

    Parameters
    ----------
    name
        The registered model.
    """


def rollback(name: str, /, *, reason: str | None = None, json: Json = False) -> None:
    """Make the champion before the present one champion again.

    Parameters
    ----------
    name
        The registered model.
    reason
        Why; it stands in the history.
    json
        Print one JSON object.
    """
    from flows.promotion.promote_command import print_rollback

    print_rollback(name, reason=reason, as_json=json)
