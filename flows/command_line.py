"""The command `patchline`.

Answers go to standard output, everything else to standard error. Exit codes: 0 done; 1 a failure at
run time; 2 something the user gave is wrong; 3 a gate refused.
"""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter

from pipeline import quiet_libraries
from pipeline.errors import ConfigError, PipelineError

_EPILOGUE = """\
Everywhere: --debug shows the trace of an error, --plugin FILE.py adds a plugin from a file.
"""
_INTERRUPTED = 128 + signal.SIGINT
_TERMINATED = 128 + signal.SIGTERM
_STOPPED = {
    _INTERRUPTED: "Stopped by Ctrl-C.",
    _TERMINATED: "Stopped by the signal SIGTERM.",
}

Json = Annotated[bool, Parameter(name="--json", negative="")]


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit with its code."""
    signal.signal(signal.SIGTERM, _end)
    sys.exit(run_command_line(sys.argv[1:] if arguments is None else arguments))


def _end(*_: object) -> None:
    """Leave on SIGTERM through every `finally`, so that nothing stays open or alive."""
    sys.exit(_TERMINATED)


def run_command_line(arguments: list[str]) -> int:
    """Run one command and return its exit code; an error becomes one sentence."""
    quiet_libraries.apply()
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        arguments = _use_plugin_files(arguments)
        application = _application(arguments)
        result = application(
            arguments, exit_on_error=False, print_error=False, result_action="return_value"
        )
    except PipelineError as error:
        return _failed(str(error), error.exit_code, debug=debug)
    except CycloptsError as error:
        return _failed(_usage_sentence(error, arguments), ConfigError.exit_code, debug=debug)
    except KeyboardInterrupt:
        return _failed(_STOPPED[_INTERRUPTED], _INTERRUPTED, debug=debug)
    except BrokenPipeError:
        return 0  # whoever read the answer has seen enough
    except BaseException as error:  # noqa: BLE001 - the last place where an error can become a sentence
        return _other_end(error, debug=debug)
    return result if isinstance(result, int) else 0


def _other_end(error: BaseException, *, debug: bool) -> int:
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else 1
        if code in _STOPPED:  # what Prefect makes of Ctrl-C, and `_end` of SIGTERM
            return _failed(_STOPPED[code], code, debug=debug)
        return code
    sentence = f"{type(error).__name__}: {str(error).strip() or 'no message'}"
    hint = "" if debug else " Run again with --debug for the trace."
    return _failed(f"Unexpected failure. {sentence}{hint}", 1, debug=debug)


def _failed(sentence: str, code: int, *, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"Error: {sentence}", file=sys.stderr)
    return code


def _use_plugin_files(arguments: list[str]) -> list[str]:
    """Take every `--plugin FILE.py` out of the arguments and load the files."""
    files, kept, rest = [], [], iter(arguments)
    for argument in rest:
        if argument == "--plugin":
            file = next(rest, None)
            if file is None:
                raise ConfigError("--plugin needs a value. Give the path of a .py file.")
            files.append(Path(file))
        elif argument.startswith("--plugin="):
            files.append(Path(argument.partition("=")[2]))
        else:
            kept.append(argument)
    if files:
        from pipeline.plugin_loader import use_plugin_files

        use_plugin_files(files)
    return kept


def _application(arguments: list[str]) -> App:
    application = App(
        name="patchline",
        help="From a folder of labelled images to a Vision Transformer in a model registry.",
        help_epilogue=_EPILOGUE,
        version_flags=["--version"],
        version=_version,
    )
    application.command(_run_command(arguments), name="run")
    plugins = App(name="plugins", help="What is installed, what it costs, and how to write more.")
    plugins.command(list_plugins, name="list")
    plugins.command(_plugin_command(arguments, "show", show_plugin), name="show")
    plugins.command(_plugin_command(arguments, "check", check_plugin), name="check")
    plugins.command(new_plugin, name="new")
    application.command(plugins)
    application.command(predict, name="predict")
    application.command(_evaluate_command(arguments), name="evaluate")
    application.command(models, name="models")
    application.command(_promote_command(arguments), name="promote")
    application.command(rollback, name="rollback")
    return application


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
    from flows import named_plugin, plugins_command

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
    from flows.new_plugin_command import print_new_plugin

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
    from flows.promote_command import build

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
    from flows.promote_command import print_rollback

    print_rollback(name, reason=reason, as_json=json)


def _usage_sentence(error: CycloptsError, arguments: list[str]) -> str:
    """Return what is wrong with the command line in one sentence."""
    from pydantic import ValidationError

    from pipeline import config_errors

    cause = error.__cause__
    if isinstance(cause, ValidationError):
        try:
            composed = _composed(arguments)
        except PipelineError as other:
            return str(other)
        return str(config_errors.sentence(cause, composed))
    sentence = " ".join(str(error).split())
    if "Did you mean" not in sentence and "Available" not in sentence:
        sentence += " Run the command with --help to see what it takes."
    return sentence


def _composed(arguments: list[str]) -> Any:
    """Return the class of the settings that a command takes."""
    if arguments[:1] == ["plugins"]:
        from flows.named_plugin import named_plugin

        return named_plugin(arguments[2:]).settings_class
    from flows.run_command import composed

    return composed(arguments[1:])


if __name__ == "__main__":
    main()
