"""What `patchline` offers: each command, the function that it is, and its line in `--help`.

A command's file is imported when the command is asked for, so that `--help` answers at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cyclopts import App, Group, Parameter

from patchline.flows.commands.help_page import ALL, COMMON, HEADINGS, HELP, HelpPage
from patchline.pipeline.plugin_system.tools import Tool, Tools, import_function, tools

_EPILOGUE = """\
`patchline COMMAND --help` shows a command's flags. Every command also takes
--workspace URI (or PATCHLINE_WORKSPACE), the workspace that a team shares;
--plugin FILE.py, a plugin from a file; --debug, the traceback of an error."""


@dataclass(frozen=True)
class Command:
    """A command, by what a user types and by the path of its function."""

    words: str
    """What is typed behind `patchline`: `run`, `schedule run-now`."""
    path: str
    """The place of its function: `module:function`, with the module in this folder unless it
    belongs to a tool."""
    help: str
    """What its function's docstring says before the parameters."""
    composed: bool = False
    """Whether the function takes the arguments and returns the command, with plugins' settings."""
    examples: tuple[str, ...] = ()
    """What may follow the words, one example a line at the end of `--help`."""
    common: tuple[str, ...] | None = COMMON
    """Flags of settings that `--help` shows, the others are for `--help-all`; None for all."""
    group: str = "Extend"
    """The heading in `patchline --help`, one of `HEADINGS`."""
    tool: Tool | None = None
    """The tool that it belongs to; None for Patchline's own commands."""

    @property
    def import_path(self) -> str:
        """The path of the function from the root."""
        return self.path if self.tool else f"patchline.flows.commands.{self.path}"

    def epilogue(self) -> str:
        """Return the examples as `--help` ends with them."""
        lines = (f"  patchline {self.words} {each}".rstrip() for each in self.examples)
        return "\n".join(("Examples:", *lines)) if self.examples else ""

    def arguments_in(self, arguments: list[str]) -> list[str] | None:
        """Return what stands behind the command's words, or nothing if others are meant."""
        words = self.words.split()
        plain = [argument for argument in arguments if argument not in HELP]
        if plain[: len(words)] != words:
            return None
        return [*plain[len(words) :], *(argument for argument in arguments if argument in HELP)]

    def build(self, arguments: list[str]) -> Callable[..., Any]:
        """Return the command that a composed one is for these arguments."""
        built: Callable[..., Any] = self.function()(arguments)
        return built

    def function(self) -> Callable[..., Any]:
        """Return the function, which imports its file."""
        return import_function(self.import_path)


GROUPS = {
    "plugins": "List, inspect, check and create plugins.",
    "schedule": "Manage schedules; requires `patchline up`.",
    "data": "Inspect, compare, preview and watch data sets.",
    "notify": "Manage webhook notifications; requires `patchline up`.",
    "workspace": "Back up and restore the workspace of a folder.",
}
COMMANDS = (
    Command(
        "run",
        "run:build",
        "Train on a folder of images and register the model; without DATA, on built-in digits.",
        composed=True,
        examples=("flowers", "flowers --preset best --training.time-limit 20m"),
        group="Begin",
    ),
    Command(
        "predict",
        "predict:build",
        "Predict the classes of images with a registered model.",
        composed=True,
        examples=(
            "flowers@champion photo.jpg",
            "flowers@champion new_photos --out predictions.csv",
        ),
        group="Begin",
    ),
    Command(
        "models",
        "promote:models",
        "List registered models with their versions, aliases and metrics.",
        examples=("", "flowers --json"),
        group="Begin",
    ),
    Command(
        "data inspect",
        "data:build_inspect",
        "Report on the data alone: counts, damage, duplicates, leakage, imbalance.",
        composed=True,
        examples=("flowers", "flowers --check-labels flowers@champion"),
        group="Train",
    ),
    Command(
        "data diff",
        "data:diff",
        "Show which images were added, removed, changed or relabelled from A to B.",
        examples=("flowers flowers_may",),
        group="Train",
    ),
    Command(
        "data preview",
        "data:build_preview",
        "Draw training images before and after augmentation, as one picture.",
        composed=True,
        examples=("flowers", "flowers --augmentation.name strong --training.cutmix 1"),
        group="Train",
    ),
    Command(
        "data watch",
        "data:watch",
        "Watch a folder and train when it has enough new images; stop with `schedule remove`.",
        examples=("flowers --config flowers.yaml",),
        group="Train",
    ),
    Command(
        "clean",
        "workspace:clean",
        "List files that no version, resumed run or repeated run needs; --yes removes them.",
        examples=("", "--yes"),
        group="Train",
    ),
    Command(
        "evaluate",
        "evaluate:evaluate",
        "Evaluate a registered model on labelled images and write a report.",
        examples=("flowers@champion labelled.csv", "flowers/3 flowers --split test"),
        group="Improve",
    ),
    Command(
        "promote",
        "promote:promote",
        "Promote a version to champion if it passes the gates; exits with code 3 if one fails.",
        examples=("flowers", "flowers --version 3 --reason 'reviewed on the test page' --force"),
        group="Use",
    ),
    Command(
        "rollback",
        "promote:rollback",
        "Roll back to the previous champion.",
        examples=("flowers",),
        group="Use",
    ),
    Command(
        "up",
        "up:build",
        "Start the servers of this folder: Prefect, MLflow, and a runner for its schedules.",
        composed=True,
        examples=("", "--serve flowers@champion"),
        group="Automate",
    ),
    Command(
        "down",
        "up:down",
        "Stop the services once active runs finish.",
        examples=("", "--now"),
        group="Automate",
    ),
    Command(
        "schedule create",
        "schedule:build",
        "Create or update a schedule that trains, predicts, or does the work of a tool.",
        composed=True,
        examples=(
            "nightly --cron '0 2 * * *' --config flowers.yaml",
            "inbox --interval 1h --predict flowers --images inbox",
        ),
        group="Automate",
    ),
    Command(
        "schedule list",
        "schedule:list_schedules",
        "List the schedules and watches: what they do, when they run next, how the last run ended.",
        group="Automate",
    ),
    Command(
        "schedule pause",
        "schedule:pause",
        "Pause a schedule; an active run continues.",
        group="Automate",
    ),
    Command(
        "schedule resume",
        "schedule:resume",
        "Resume a paused schedule; missed runs are not caught up on.",
        group="Automate",
    ),
    Command(
        "schedule remove",
        "schedule:remove",
        "Remove a schedule; its runs and models are kept.",
        group="Automate",
    ),
    Command(
        "schedule run-now",
        "schedule:run_now",
        "Start a run of a schedule now, in addition to its scheduled times.",
        group="Automate",
    ),
    Command(
        "approve",
        "promote:approve",
        "Approve a pending promotion.",
        examples=("flowers/3 --reason 'reviewed'",),
        group="Automate",
    ),
    Command(
        "reject",
        "promote:reject",
        "Reject a pending promotion.",
        examples=("flowers/3 --reason 'too few images of tulips'",),
        group="Automate",
    ),
    Command(
        "notify create",
        "notify:create",
        "Create or update a notification: events are posted as JSON to a webhook.",
        examples=("team --webhook https://example.org/hook --on run.failed",),
        group="Automate",
    ),
    Command(
        "notify list",
        "notify:list_notifications",
        "List the notifications.",
        group="Automate",
    ),
    Command(
        "notify remove",
        "notify:remove",
        "Remove a notification.",
        group="Automate",
    ),
    Command(
        "worker",
        "up:worker",
        "Execute scheduled runs of a work pool in this folder, until Ctrl-C.",
        examples=("--work-pool gpu",),
        group="Automate",
    ),
    Command(
        "settings",
        "settings:settings",
        "Find settings and flags by words: of runs, plugins and commands.",
        examples=("learning rate", "imbalance --json"),
    ),
    Command(
        "plugins list",
        "plugins:list_plugins",
        "List the installed plugins without importing them.",
    ),
    Command(
        "plugins show",
        "plugins:build_show",
        "Show a plugin's settings, and the cost of a model or patch embedding.",
        composed=True,
        examples=("vit", "patch_embedding conv_stem --picture stem.png"),
        common=None,
    ),
    Command(
        "plugins check",
        "plugins:build_check",
        "Run the plugin's conformance checks; exits with code 1 if one fails.",
        composed=True,
        examples=("conv_stem",),
        common=None,
    ),
    Command(
        "plugins new",
        "plugins:new_plugin",
        "Create a package with a new, working plugin: code, settings and tests.",
        examples=("patch_embedding my_stem",),
    ),
    Command(
        "workspace export",
        "workspace:export",
        "Write the workspace of this folder into one archive, for a backup or another machine.",
        examples=("backup.zip",),
    ),
    Command(
        "workspace import",
        "workspace:restore",
        "Restore a workspace from an archive into an empty folder.",
        examples=("backup.zip restored",),
    ),
)


def command_tools() -> Tools:
    """Return the installed tools whose commands are no command or group of Patchline."""
    return tools().besides({command.words.partition(" ")[0] for command in COMMANDS})


def commands() -> list[Command]:
    """Return the commands of Patchline, and those of the installed tools."""
    return [
        *COMMANDS,
        *(
            Command(
                each.words,
                each.function,
                each.help,
                each.composed,
                each.examples,
                each.common or COMMON,
                each.group,
                tool,
            )
            for tool in command_tools().usable
            for each in tool.plugin.commands
        ),
    ]


def _default_worth_showing(default: object) -> str | None:
    """Return what help says of a default; nothing of a switch that is off, and of an empty list."""
    if default is None or default is False or default in ((), [], {}, "", frozenset()):
        return None
    if isinstance(default, tuple | list):
        return " ".join(str(each) for each in default)
    return str(default)


def application(arguments: list[str]) -> App:
    """Return the command line; settings of plugins are composed for what the arguments ask."""
    root = App(
        name="patchline",
        help="From a folder of labelled images to a Vision Transformer in a model registry.",
        help_format="plaintext",
        help_epilogue=_EPILOGUE,
        help_flags=HELP,
        help_formatter=HelpPage(COMMON, is_whole=False),
        version_flags=["--version"],
        version=_version,
        default_parameter=Parameter(
            negative_iterable=(),  # no --data.empty-mean
            show_default=_default_worth_showing,
        ),
    )
    groups = {"": root}
    headings = {name: Group(name, sort_key=place) for place, name in enumerate(HEADINGS)}
    for place, command in enumerate(commands()):
        group, _, name = command.words.rpartition(" ")
        heading = headings.get(command.group, headings["Extend"])
        if group not in groups:
            summary = command.tool.plugin.summary if command.tool else GROUPS[group]
            groups[group] = App(
                name=group, help=summary, help_flags=HELP, group=heading, sort_key=place
            )
            root.command(groups[group])
        behind = command.arguments_in(arguments) if command.composed else None
        function = command.import_path if behind is None else command.build(behind)
        groups[group].command(
            function,
            name=name,
            help=command.help,
            help_formatter=HelpPage(command.common, is_whole=ALL in arguments),
            help_epilogue=command.epilogue(),
            group=None if group else heading,
            sort_key=place,
        )
    return root


def _version() -> str:
    from importlib import metadata

    return metadata.version("patchline")
