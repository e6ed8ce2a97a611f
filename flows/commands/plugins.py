"""The commands `patchline plugins list`, `show`, `check` and `new`."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from cyclopts import Parameter
from pydantic import BaseModel, create_model

from patchline.flows.commands.application import commands
from patchline.flows.commands.switches import (
    Answer,
    Flat,
    Json,
    add_flags,
    dump_given_flags,
    emit,
    terminal_lines,
    without_needless_negatives,
)
from patchline.pipeline import config_files
from patchline.pipeline.config import RunConfig, flatten_settings
from patchline.pipeline.errors import ConfigError, PluginError, suggest_name
from patchline.pipeline.frozen_model import DocumentedModel
from patchline.pipeline.plugin_system import plugin_loader
from patchline.pipeline.plugin_system.composed_config import ComposedModel, compose_config
from patchline.pipeline.plugin_system.plugin_loader import Kind, PluginEntry, list_installed
from patchline.pipeline.plugin_system.plugin_skeleton import (
    WrittenPackage,
    check_kind,
    write_package,
)
from patchline.pipeline.training.config import OptimizerConfig
from patchline.pipeline.training.recipe.schedule import learning_rate
from patchline.plugin_api import ToolPlugin


def list_plugins(*, as_json: Json = False) -> None:
    """List the installed plugins without importing them."""
    entries = list_installed()
    shown = ("kind", "name", "distribution", "version", "summary", "error")
    plugins = [{key: asdict(entry)[key] for key in shown} for entry in entries]
    lines = terminal_lines("plugins.txt.j2", __package__, entries=entries)
    emit({"plugins": plugins}, *lines, as_json=as_json)


def new_plugin(kind: str, name: str, /, *, into: Path = Path(), as_json: Json = False) -> None:
    """Create a package with a new, working plugin: code, settings and tests.

    Parameters
    ----------
    kind
        model, patch_embedding, data_source, augmentation, objective, launcher, store or tool.
    name
        Name of the plugin: lower-case letters, digits and underscores.
    into
        Parent folder of the new package `patchline-NAME`; the current folder by default.
    """
    words = name.replace("_", "-")
    if kind == "tool" and words in {each.words.partition(" ")[0] for each in commands()}:
        raise ConfigError(f"`patchline {words}` exists already. Choose another name for the tool.")
    written = write_package(kind, name, into)
    steps = _next_steps(written)
    answer = {
        "kind": written.kind,
        "name": written.name,
        "folder": str(written.folder),
        "files": list(written.files),
        "next": steps,
    }
    emit(
        answer,
        f"Created the {written.kind} plugin '{written.name}' in {written.folder}:",
        "",
        *(f"  {file}" for file in written.files),
        "",
        "It already works. What's next:",
        "",
        *(f"  {step}" for step in steps),
        as_json=as_json,
    )


def _next_steps(written: WrittenPackage) -> list[str]:
    """Return the commands that install, check, use and test the package, in order."""
    folder = shlex.quote(str(written.folder))
    return [
        f"pip install -e {folder}",
        f"patchline plugins check {written.kind} {written.name}",
        written.run_command,
        f"python -m pytest {folder}",
    ]


def build_check(arguments: list[str]) -> Callable[..., int]:
    """Return the command with the settings of the named plugin as flags."""

    def check(
        *words: str,
        as_json: Json = False,
        settings: Any = None,
    ) -> int:
        """Run the plugin's conformance checks; exits with code 1 if one fails.

        Parameters
        ----------
        words
            [KIND] NAME of the plugin; KIND is needed only if the name is ambiguous. Settings are
            flags as in `run`: --model.size b.
        settings
            Settings to run the checks with.
        """
        check_words(words, arguments)
        return _print_checks(find_named_plugin(arguments), settings, as_json=as_json)

    return add_settings_type(check, arguments)


def _print_checks(named: NamedPlugin, settings: BaseModel | None, *, as_json: bool) -> int:
    """Run the checks, and print each result as soon as it is available."""
    from patchline.plugin_checks import checks_of

    entry = named.entry
    with redirect_stdout(sys.stderr):  # output of the plugin's own
        plugin = plugin_loader.load(entry.kind, entry.name)
        checks = checks_of(plugin, named.only_own_settings(settings))
    stream = sys.stderr if as_json else sys.stdout
    print(f"{_title(entry)}\n", file=stream)
    width = max(len(check.name) for check in checks)
    results = []
    for check in checks:
        print(f"  {check.name:<{width}}  ", end="", file=stream, flush=True)
        with redirect_stdout(sys.stderr):
            result = check.result()
        results.append(result)
        note = {"passed": check.summary, "failed": result.message}.get(
            result.status, f"expected: {result.message}"
        )
        print(f"{result.status:<8} {result.seconds:5.1f} s  {note}", file=stream)
    counts = {
        status: sum(result.status == status for result in results)
        for status in ("passed", "excepted", "failed")
    }
    print("\n" + ", ".join(f"{count} {status}" for status, count in counts.items()), file=stream)
    if as_json:
        answer = {
            "kind": entry.kind,
            "name": entry.name,
            "passed": counts["failed"] == 0,
            "checks": [result.model_dump() for result in results],
        }
        emit(answer, as_json=True)
    return 1 if counts["failed"] else 0


CurveKind = Literal["schedule", "optimizer"]
CURVES: tuple[CurveKind, ...] = get_args(CurveKind)
_POINTS, _ROWS = 64, 10
_EIGHTHS = " ▁▂▃▄▅▆▇█"


class OptimizerSettings(DocumentedModel):
    """The settings that decide the learning rate."""

    optimizer: OptimizerConfig | None = None


def build_curve(kind: CurveKind, name: str) -> Callable[..., None]:
    """Return the command that draws the learning rate of a schedule, or with an optimizer.

    Raises:
        ConfigError: if there is no schedule or optimizer of that name.
    """
    names = list(get_args(OptimizerConfig.model_fields[_key_of(kind)].annotation))
    if name not in names:
        raise ConfigError(f"There is no {kind} '{name}'. Choose one of {', '.join(names)}.")

    def show(
        *words: str,
        picture: Path | None = None,
        as_json: Json = False,
        settings: Flat[OptimizerSettings] = None,
    ) -> None:
        """Draw the learning rate of a schedule over a training run.

        Parameters
        ----------
        words
            schedule NAME or optimizer NAME.
        picture
            Write the curve as a picture: .svg, .png or .pdf.
        settings
            Settings of the optimizer: --optimizer.warmup-fraction 0.2.
        """
        del words
        given = dump_given_flags(settings)
        chosen = {"optimizer": {_key_of(kind): name}}
        if name == "schedule_free":
            chosen["optimizer"]["schedule"] = "constant"
        config = config_files.validate_config(config_files.merge_settings(chosen, given)).optimizer
        rates = learning_rates(config, _POINTS)
        if picture is not None:
            _save_picture(config, picture)
            print(f"Picture: {picture}", file=sys.stderr)
        emit(
            {"kind": kind, "name": name, "learning_rates": rates},
            f"optimizer {config.name}, schedule {config.schedule}, "
            f"warm-up {config.warmup_fraction:.0%}, peak {config.learning_rate:g}",
            "",
            *_draw_bars(rates),
            as_json=as_json,
        )

    return show


def learning_rates(config: OptimizerConfig, points: int) -> list[float]:
    """Return the learning rate at equally distant moments of a training run."""
    return [learning_rate(config, (point + 0.5) / points) for point in range(points)]


def _key_of(kind: CurveKind) -> str:
    return "schedule" if kind == "schedule" else "name"


def _draw_bars(rates: Sequence[float]) -> list[str]:
    """Return the lines of a bar chart, with the learning rate beside its axis."""
    peak = max(rates)
    lines = []
    for row in range(_ROWS, 0, -1):
        heights = [rate / peak * _ROWS - (row - 1) for rate in rates]
        bars = "".join(_EIGHTHS[round(8 * min(1.0, max(0.0, each)))] for each in heights)
        label = f"{peak * row / _ROWS:.2g}" if row in (_ROWS, _ROWS // 2) else ""
        lines.append(f"{label:>10} │{bars}".rstrip())
    lines.append(f"{0:>10} └{'─' * len(rates)}")
    lines.append(f"{'':>12}start{'of training':^{len(rates) - 8}}end")
    return lines


def _save_picture(config: OptimizerConfig, file: Path) -> None:
    if file.suffix not in (".svg", ".png", ".pdf"):
        raise ConfigError(f"--picture {file} must end with .svg, .png or .pdf.")
    from matplotlib.figure import Figure

    points = 500
    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    axes.plot([(point + 0.5) / points for point in range(points)], learning_rates(config, points))
    axes.set(xlabel="training progress", ylabel="learning rate", ylim=(0, None))
    figure.savefig(file)


_IMAGE_SIZE = 224


def build_show(arguments: list[str]) -> Callable[..., None]:
    """Return the command with the settings of the named plugin as flags."""
    words_given = words_of(arguments)
    for kind in CURVES:
        if words_given[:1] == [kind] and len(words_given) == 2:  # noqa: PLR2004 - kind and name
            return build_curve(kind, words_given[1])

    def show(
        *words: str,
        picture: Path | None = None,
        photo: Path | None = None,
        as_json: Json = False,
        settings: Any = None,
    ) -> None:
        """Show a plugin's settings, and the cost of a model or patch embedding.

        Parameters
        ----------
        words
            [KIND] NAME of the plugin; KIND is needed only if the name is ambiguous. Settings are
            flags as in `run`: --model.size b --data.image-size 224. `schedule NAME` and
            `optimizer NAME` draw the learning rate.
        picture
            Write a picture of what a patch embedding does to a 224-pixel photo: .png, .svg or .pdf.
        photo
            The photo for --picture; by default one that ships with scikit-learn.
        settings
            Settings to compute the cost with.
        """
        check_words(words, arguments)
        plugin = find_named_plugin(arguments)
        if picture is None and photo is not None:
            raise ConfigError("--photo needs --picture. Add --picture FILE.png.")
        if picture is not None:
            _draw(plugin, settings, photo, picture)
        _print_plugin(plugin, settings, as_json=as_json)

    return add_settings_type(show, arguments)


def _print_plugin(named: NamedPlugin, settings: BaseModel | None, *, as_json: bool) -> None:
    entry = named.entry
    plugin = plugin_loader.load(entry.kind, entry.name)
    if isinstance(plugin, ToolPlugin):
        _print_tool(entry, plugin, as_json=as_json)
        return
    schema = plugin.config_class.model_json_schema()
    answer: dict[str, Any] = {"kind": entry.kind, "name": entry.name, "settings": schema}
    config = named.config(settings)
    image_size = config.data.image_size or _IMAGE_SIZE
    cost = None
    if entry.kind in ("model", "patch_embedding"):
        from patchline.pipeline.models.model_cost import model_cost

        cost = model_cost(config.model, image_size)
        answer |= {"image_size": image_size, **cost.model_dump()}
    lines = terminal_lines(
        "plugin.txt.j2",
        __package__,
        plugin=plugin,
        properties=schema.get("properties", {}),
        given=named.own_settings(settings),
        dumps=json.dumps,
        names=config.model.names,
        image_size=image_size,
        cost=cost,
    )
    emit(answer, _title(entry), *lines, as_json=as_json)


def _title(entry: PluginEntry) -> str:
    return f"{entry.kind} {entry.name} ({entry.distribution} {entry.version})"


def _print_tool(entry: PluginEntry, plugin: ToolPlugin, *, as_json: bool) -> None:
    """Print what a tool adds: commands, work that schedules repeat, events, services of `up`."""
    parts = {
        "commands": {f"patchline {each.words}": each.help for each in plugin.commands},
        "schedules": {each.flag: each.help for each in plugin.work},
        "events": {each.name: each.when for each in plugin.events},
        "services": {each.flag: each.help for each in plugin.services},
    }
    lines = terminal_lines("tool.txt.j2", __package__, plugin=plugin, parts=parts)
    emit({"kind": entry.kind, "name": entry.name, **parts}, _title(entry), *lines, as_json=as_json)


def _draw(named: NamedPlugin, settings: BaseModel | None, photo: Path | None, out: Path) -> None:
    if named.entry.kind != "patch_embedding":
        raise ConfigError(
            f"--picture works only for a patch embedding, but {named.entry.name} is a "
            f"{named.entry.kind}. Omit --picture."
        )
    from patchline.pipeline.evaluation.visual_guide.patch_embedding_picture import save_picture

    save_picture(named.entry.name, named.own_settings(settings), photo, out)
    print(f"Picture: {out}", file=sys.stderr)


_NAME_FLAGS: dict[Kind, tuple[str, ...]] = {
    "model": ("model", "name"),
    "patch_embedding": ("model", "patch_embedding", "name"),
    "data_source": ("data", "source"),
    "augmentation": ("augmentation", "name"),
    "objective": ("objective", "name"),
    "launcher": ("launcher", "name"),
}
"""What of a run's settings names a plugin; a store is named by the scheme of an address."""
_HELP = ("--help", "-h")
_WITHOUT_VALUE = ("--json", *_HELP)


@dataclass(frozen=True)
class NamedPlugin:
    """An installed plugin, and the class of the settings that flags may set."""

    entry: PluginEntry
    settings_class: type[BaseModel]

    def given(self, settings: BaseModel | None) -> dict[str, Any]:
        """Return the settings from the flags, including the plugin's name.

        Raises:
            ConfigError: if a flag names another plugin of the same kind.
        """
        flags = dump_given_flags(settings)
        if self.entry.kind not in _NAME_FLAGS:
            return flags
        path = _NAME_FLAGS[self.entry.kind]
        section = flags
        for key in path[:-1]:
            section = section.setdefault(key, {})
        other = section.setdefault(path[-1], self.entry.name)
        if other != self.entry.name:
            raise ConfigError(
                f"{'.'.join(path)} is {other}, but the command names {self.entry.name}. Omit one "
                "of them."
            )
        return flags

    def own_settings(self, settings: BaseModel | None) -> dict[str, Any]:
        """Return the plugin's own settings from the flags."""
        flags = self.given(settings)
        if self.entry.kind == "data_source":
            options: dict[str, Any] = flags["data"].get("options", {})
            return options
        section = flags
        for key in _NAME_FLAGS.get(self.entry.kind, ())[:-1]:
            section = section[key]
        return {k: v for k, v in section.items() if k not in ("name", "patch_embedding")}

    def only_own_settings(self, settings: BaseModel | None) -> dict[str, Any]:
        """Return the plugin's own settings from the flags, and refuse others.

        Raises:
            ConfigError: if a flag sets anything else.
        """
        own = self.own_settings(settings)
        if self.entry.kind not in _NAME_FLAGS:
            return own
        path = _NAME_FLAGS[self.entry.kind][:-1]
        prefix = "data.options" if self.entry.kind == "data_source" else ".".join(path)
        allowed = {f"{prefix}.{key}" for key in own} | {".".join(_NAME_FLAGS[self.entry.kind])}
        for key in flatten_settings(self.given(settings)):
            if not any(key == name or key.startswith(f"{name}.") for name in allowed):
                raise ConfigError(
                    f"{key} is not a setting of {self.entry.name}; the checks use only its own "
                    "settings. Omit it."
                )
        return own

    def config(self, settings: BaseModel | None) -> RunConfig:
        """Return the validated config with the plugin and the flags."""
        return config_files.validate_config(self.given(settings))


def words_of(arguments: Sequence[str]) -> list[str]:
    """Return the arguments that are neither flags nor values of flags."""
    words, rest = [], iter(arguments)
    for argument in rest:
        if not argument.startswith("-"):
            words.append(argument)
        elif argument not in _WITHOUT_VALUE and "=" not in argument and ".no-" not in argument:
            next(rest, None)
    # A switch has no value, so the word after it is the name.
    return words or [argument for argument in arguments if not argument.startswith("-")]


def check_words(words: Sequence[str], arguments: Sequence[str]) -> None:
    """Refuse values given to a switch as a separate word, such as `--flag false`.

    Raises:
        ConfigError: if a word belongs to no flag and is not part of `[KIND] NAME`.
    """
    stray = [word for word in words if word not in words_of(arguments)]
    if stray:
        raise ConfigError(
            f"The value {stray[0]} belongs to no flag. A switch takes no separate value: use "
            "--FLAG or --FLAG=false."
        )


def add_settings_type(
    command: Callable[..., Answer], arguments: Sequence[str]
) -> Callable[..., Answer]:
    """Return the command with the settings of the named plugin as the type of `settings`.

    For `--help` without a name, there are no flags for settings.

    Raises:
        ConfigError: if the arguments name no plugin, or more than one.
        PluginError: if the plugin is not installed or broken.
    """
    if not words_of(arguments) and any(flag in arguments for flag in _HELP):
        command.__annotations__["settings"] = Annotated[None, Parameter(parse=False)]
        return command
    return add_flags(command, find_named_plugin(arguments).settings_class)


def find_named_plugin(arguments: Sequence[str]) -> NamedPlugin:
    """Return the plugin named by the arguments of a command.

    Raises:
        ConfigError: if they name no plugin, or more than one.
        PluginError: if the plugin is not installed or broken.
    """
    entry = find_entry(words_of(arguments))
    if entry.kind not in _NAME_FLAGS:
        return NamedPlugin(entry, create_model("NoSettings"))
    path = _NAME_FLAGS[entry.kind]
    implied = [f"--{'.'.join(path).replace('_', '-')}", entry.name]
    whole = without_needless_negatives(compose_config([*arguments, *implied], {}))
    return NamedPlugin(entry, _sections(whole, entry.kind))


def find_entry(words: Sequence[str]) -> PluginEntry:
    """Return the installed plugin for `[KIND] NAME`.

    Raises:
        ConfigError: for a wrong number of words, or an unknown kind.
        PluginError: for an unknown or ambiguous name.
    """
    if len(words) == 2:  # noqa: PLR2004 - kind and name
        kind, name = words
        return plugin_loader.find(check_kind(kind), name)
    if len(words) != 1:
        raise ConfigError("Name one plugin: [KIND] NAME. `patchline plugins list` lists them.")
    entries = list_installed()
    matches = [entry for entry in entries if entry.name == words[0]]
    kinds = sorted({entry.kind for entry in matches})
    if len(kinds) > 1:
        raise PluginError(
            f"'{words[0]}' is the name of a {' and a '.join(kinds)}. Add the kind before the name."
        )
    if not matches:
        names = sorted({entry.name for entry in entries})
        hint = suggest_name(words[0], names)
        raise PluginError(f"There is no plugin '{words[0]}'.{hint} Installed: {', '.join(names)}.")
    return plugin_loader.find(matches[0].kind, matches[0].name)


def _sections(whole: type[BaseModel], kind: Kind) -> type[BaseModel]:
    """Return the settings that apply to one kind of plugin."""
    if kind in ("augmentation", "objective", "launcher"):
        return _part(whole, kind)
    data: Any = whole.model_fields["data"].annotation
    if kind == "data_source":
        return _part(whole, data=_part(data, "source", "options"))
    return _part(whole, "model", data=_part(data, "image_size"))


def _part(section: type[BaseModel], *keys: str, **classes: type[BaseModel]) -> type[BaseModel]:
    fields: dict[str, Any] = {
        key: (section.model_fields[key].annotation, section.model_fields[key]) for key in keys
    }
    fields |= {key: (value, section.model_fields[key]) for key, value in classes.items()}
    return create_model(section.__name__, __base__=ComposedModel, **fields)
