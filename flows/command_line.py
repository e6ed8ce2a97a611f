"""The command `patchline`.

Results go to standard output, everything else to standard error. Exit codes: 0 success; 1 a failure
at run time; 2 invalid input; 3 a gate failed.
"""

from __future__ import annotations

import gc
import sys
import traceback
from pathlib import Path

from cyclopts import CycloptsError, UnknownCommandError, UnknownOptionError, UnusedCliTokensError

from patchline.flows.commands.application import application, command_tools
from patchline.flows.commands.switches import each_with_its_flag, value_of_switch
from patchline.flows.prefect_api import prefect_settings
from patchline.pipeline import quiet_libraries, redaction
from patchline.pipeline.errors import ConfigError
from patchline.pipeline.terminal_words import protect_terminal, visible
from patchline.pipeline.workers.host import interpreter, interruption
from patchline.pipeline.workspace import chosen
from patchline.pipeline.workspace.files import workspace_folder

_LEFT_RUNNING = (
    "Stopped by Ctrl-C: servers and active runs keep running. `patchline down --now` stops both."
)
_WITH_FLAGS_OF_TOOLS = (["up"], ["schedule"])

_NEW_OBJECTS = 100_000
"""After so many more objects than before, a command looks for garbage among them."""


def main(arguments: list[str] | None = None) -> None:
    """Run one command and exit with its code.

    It looks for garbage rarely: most of what a command allocates are the modules that it imports.
    """
    gc.set_threshold(_NEW_OBJECTS, 50, 100)
    interruption.exit_on_sigterm()
    protect_terminal()
    redaction.install(streams=True)
    code = run_command_line(sys.argv[1:] if arguments is None else arguments)
    gc.freeze()  # or Python would look at every object several times while it ends
    sys.exit(code)


def run_command_line(arguments: list[str]) -> int:
    """Run one command and return its exit code; an error becomes one sentence."""
    quiet_libraries.apply()
    redaction.install()
    workspace_folder.tighten()
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    try:
        interpreter.check()
        files, arguments = _plugin_files(arguments)
        _use_plugin_files(files)  # a store may be among them
        arguments = _use_workspace(arguments)
        _prepare(arguments)
        arguments = each_with_its_flag(arguments)
        with workspace_folder.remove_if_unused():
            result = application(arguments)(
                arguments, exit_on_error=False, print_error=False, result_action="return_value"
            )
    except CycloptsError as error:
        return _print_failure(_usage_sentence(error, arguments), ConfigError.exit_code, debug=debug)
    except KeyboardInterrupt:
        stopped = interruption.SENTENCES[interruption.CTRL_C]
        words = _LEFT_RUNNING if arguments[:1] == ["down"] else stopped
        return _print_failure(words, interruption.CTRL_C, debug=debug)
    except BrokenPipeError:
        return 0  # the reader of the output has closed it
    except BaseException as error:  # noqa: BLE001 - the last place to turn an error into a sentence
        return _other_end(error, debug=debug)
    return result if isinstance(result, int) else 0


def _prepare(arguments: list[str]) -> None:
    """Say what of the environment is left out, and let a moved workspace use its own files.

    `down` alone does not: it stops what the old folder runs.
    """
    if _asks_only(arguments):
        return
    for sentence in quiet_libraries.explain_left_out():
        print(visible(sentence), file=sys.stderr)
    if workspace_folder.is_read_only():
        from patchline.pipeline.workspace.relocation import read_only

        read_only.check(arguments)
        print(read_only.enter(), file=sys.stderr)
        return
    if arguments[:1] == ["down"] or workspace_folder.is_at_home():
        return
    from patchline.pipeline.workspace.relocation import following

    if said := following.follow():
        print(said, file=sys.stderr)


def _asks_only(arguments: list[str]) -> bool:
    """Return whether a command line asks for help or the version: it leaves every file alone.

    `--version` behind a command is a setting of that command.
    """
    words = [argument for argument in arguments if not argument.startswith("-")]
    return not words or arguments[0] == "--version" or bool({"--help", "-h"} & set(arguments))


def _other_end(error: BaseException, *, debug: bool) -> int:
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else 1
        if code in interruption.SENTENCES:
            return _print_failure(interruption.SENTENCES[code], code, debug=debug)
        return code
    if known := prefect_settings.explain_error(error):
        return _print_failure(str(known), known.exit_code, debug=debug)
    sentence = f"{type(error).__name__}: {str(error).strip() or 'no message'}"
    hint = "" if debug else " Run again with --debug for the traceback."
    return _print_failure(f"Unexpected failure. {sentence}{hint}", 1, debug=debug)


def _print_failure(sentence: str, code: int, *, debug: bool) -> int:
    if debug:
        trace = redaction.redact_text(traceback.format_exc())
        print(visible(trace, lines=True), end="", file=sys.stderr)
    print(f"Error: {visible(redaction.redact_text(sentence), lines=True)}", file=sys.stderr)
    return code


def _plugin_files(arguments: list[str]) -> tuple[list[Path], list[str]]:
    """Return the file of every `--plugin FILE.py`, and the other arguments."""
    files, kept = _take_flag("--plugin", arguments, "Give the path of a .py file.")
    return [Path(file) for file in files], kept


def _use_workspace(arguments: list[str]) -> list[str]:
    """Work with the workspace of `--workspace URI`, and return the other arguments."""
    uris, kept = _take_flag(chosen.FLAG, arguments, "Give an address such as s3://bucket/team.")
    if len(set(uris)) > 1:
        raise ConfigError(f"{chosen.FLAG} is given as {' and as '.join(uris)}. Give one address.")
    for uri in uris:
        chosen.use(uri)
    return kept


def _take_flag(flag: str, arguments: list[str], remedy: str) -> tuple[list[str], list[str]]:
    """Return the values of a flag that every command has, and the other arguments."""
    values, kept, rest = [], [], iter(arguments)
    for argument in rest:
        if argument == flag:
            value = next(rest, None)
            if value is None:
                raise ConfigError(f"{flag} needs a value. {remedy}")
            values.append(value)
        elif argument.startswith(f"{flag}="):
            values.append(argument.partition("=")[2])
        else:
            kept.append(argument)
    return values, kept


def _use_plugin_files(files: list[Path]) -> None:
    if files:
        from patchline.pipeline.plugin_system.plugin_loader import use_plugin_files

        use_plugin_files(files)


def _usage_sentence(error: CycloptsError, arguments: list[str]) -> str:
    """Return what is wrong with the command line in one sentence."""
    from pydantic import ValidationError

    from patchline.pipeline import config_errors

    cause = error.__cause__
    if isinstance(cause, ValidationError) and error.argument:
        sentence = str(config_errors.sentence(cause, error.argument.resolved_hint))
        name, _, rest = sentence.partition(" ")
        flag = f"--{name.replace('_', '-')}"
        is_flag = "." not in name and any(each.partition("=")[0] == flag for each in arguments)
        return f"{flag} {rest}" if is_flag else sentence
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        if switched := value_of_switch(error.unused_tokens, arguments):
            return switched
        words = " ".join(error.unused_tokens)
        return f"Unexpected argument '{words}'. Run the command with --help to list its arguments."
    if isinstance(error, UnknownOptionError) and (known := _explain_unknown_flag(error, arguments)):
        return known
    sentence = " ".join(str(error).split())
    of_tool = UnknownOptionError if arguments[:1] in _WITH_FLAGS_OF_TOOLS else UnknownCommandError
    if isinstance(error, of_tool) and (broken := command_tools().errors):
        return " ".join((sentence, *broken))
    if "Did you mean" not in sentence and "Available" not in sentence:
        sentence += " Run the command with --help to list its arguments."
    return sentence


_OF_A_RUN = ("training", "optimizer", "model", "augmentation", "evaluation", "promotion")
"""Sections of settings that `data inspect` does not have."""


def _explain_unknown_flag(error: UnknownOptionError, arguments: list[str]) -> str | None:
    """Return why a command does not have a flag, if that is known."""
    from patchline.pipeline.former_settings import explain_former

    flag = (error.token.keyword or error.token.value).partition("=")[0]
    section = flag.removeprefix("--").partition(".")[0]
    if arguments[:2] == ["data", "inspect"] and section in _OF_A_RUN:
        return (
            f"{flag} is no flag of `patchline data inspect`, which trains nothing; flags that "
            f"begin with --{section} are those of `patchline run`."
        )
    return explain_former(flag)


if __name__ == "__main__":
    main()
