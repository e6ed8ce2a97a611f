"""What README and docs show is executed; the plugin tutorial has a test of its own."""

from __future__ import annotations

import re
import shlex
from itertools import takewhile
from pathlib import Path

import pytest
from cyclopts import CycloptsError

from patchline.flows.commands.application import application
from patchline.pipeline.data.labels.label_cells import NO_LABEL
from patchline.pipeline.workspace.files.folder_walk import DEFAULT_PATTERNS
from tests.flows.training.runs import TINY
from tests.structure.pages import PAGES, ROOT, blocks, commands, execute

_LISTING = re.compile(r"<!-- file: (\S+) -->\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"(?:[Ff]lows?|[Ss]tates?|[Ee]nd(?:s|ed)? as) \*([^*]+)\*")
_STATES_OF_PREFECT = {"Completed", "Failed", "Crashed", "Cancelled", "Late"}
_LINK = re.compile(r"\]\((?!https?:)([^)#]+)\)")
_FILE = re.compile(r"\b(?:pipeline|flows|plugins|benchmarks|tests|examples)/[\w/]+\.(?:py|j2|md)\b")
_OF_A_READER = ("tests/test_contract.py", "tests/test_plugin.py")
"""Files of the package that the plugin tutorial writes."""


_PARSED = (
    *("augment.md", "bring_your_data.md", "explain.md", "fine_tune.md", "getting_started.md"),
    *("inspect.md", "models.md", "patch_embeddings.md", "pretrain.md", "reports.md", "resume.md"),
    *("settings.md", "several_labels.md", "teach.md"),
)
"""Pages of commands that have tests of their own: here only their arguments are checked."""
_SHOWING = [page for page in PAGES if commands(page) and page.name != "write_a_plugin.md"]
_README = ROOT / "README.md"
_EXECUTED = [page for page in _SHOWING if page.name not in _PARSED and page != _README]
_SHELL = {"|", "||", "&&", ";", "&", ">", ">>", "<"}


@pytest.mark.parametrize("page", _EXECUTED, ids=lambda page: page.name)
def test_every_command_of_a_page_works(page: Path, trained: Path) -> None:
    """Each command of a page, in order, ends with exit code 0."""
    for command in commands(page):
        execute(command, trained)


@pytest.mark.slow
def test_every_command_of_the_readme_works(garden: Path) -> None:
    """Likewise, from the first run on, which takes seconds; other runs are only planned."""
    for command in commands(_README):
        runs = command.startswith("patchline run ") and "--dry-run" not in command
        less = TINY if command == "patchline run flowers" else "--preset none --dry-run"
        execute(f"{command} {less}" if runs else command, garden)


@pytest.mark.parametrize(
    "page", [page for page in _SHOWING if page not in _EXECUTED], ids=lambda page: page.name
)
def test_every_command_of_another_page_exists(
    page: Path, garden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each `patchline` command of a page that is executed elsewhere has these arguments."""
    monkeypatch.chdir(garden)
    for command in commands(page):
        words = shlex.shlex(command, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        arguments = list(takewhile(lambda word: word not in _SHELL, words))
        if arguments[:1] == ["patchline"] and "--plugin" not in arguments:
            _parse(arguments[1:])


def _parse(arguments: list[str]) -> None:
    app = application(arguments)
    app.parse_args(arguments, exit_on_error=False, print_error=False)


def test_the_default_of_data_ignore_is_listed() -> None:
    """The page on bringing data lists exactly the names that are skipped by default."""
    page = (ROOT / "docs/how_to/bring_your_data.md").read_text("utf-8")
    listed = re.search(r"<!-- the default of data.ignore -->\n```text\n(.*?)```", page, re.DOTALL)
    assert listed
    names = [name.replace("\r", "\\r") for name in DEFAULT_PATTERNS]
    assert " ".join(listed[1].split()) == " ".join(names)
    cells = re.search(r"in any case; by default (.*?)\. How many", page, re.DOTALL)
    assert cells
    assert re.findall(r"`(.*?)`", cells[1]) == list(NO_LABEL)


def test_names_of_flows_and_states_are_those_in_the_code() -> None:
    """A page calls them as the Prefect UI does."""
    files = [
        file for folder in ("flows", "plugins/tools") for file in (ROOT / folder).rglob("*.py")
    ]
    sources = [file.read_text("utf-8") for file in files]
    named = [
        (page.name, name)
        for page in PAGES
        for name in _NAMED.findall(" ".join(page.read_text("utf-8").split()))
    ]
    unknown = [each for each in named if not any(f'"{each[1]}"' in text for text in sources)]
    assert len(named) > 5
    assert [each for each in unknown if each[1] not in _STATES_OF_PREFECT] == []


def test_a_command_that_does_not_exist_is_noticed() -> None:
    """The check of commands fails on a flag that no command has."""
    with pytest.raises(CycloptsError, match="--lerning-rate"):
        _parse(["run", "flowers", "--lerning-rate", "1"])


def test_the_python_examples_work(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of serving answers from the registered model; that of the models runs."""
    execute("patchline predict flowers@champion flowers --out predictions.parquet", trained)
    monkeypatch.chdir(trained)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{trained / 'mlflow.db'}")
    for page in ("reference/models.md", "how_to/serve.md", "how_to/predict.md"):
        examples = blocks(ROOT / "docs" / page, "python")
        assert examples, page
        for example in examples:
            exec(example, {})  # noqa: S102 - it is of the page


def test_a_command_that_fails_is_noticed(garden: Path) -> None:
    """The same check fails on a command that does not work."""
    with pytest.raises(AssertionError, match="no/such"):
        execute("patchline run no/such", garden)


def test_there_are_commands_to_execute() -> None:
    """The pages show commands at all."""
    assert len([command for page in _EXECUTED for command in commands(page)]) >= 7


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_listings_are_the_real_files_and_links_lead_somewhere(page: Path) -> None:
    """A listing equals the file that it names; a relative link has a target."""
    text = page.read_text("utf-8")
    for name, listing in _LISTING.findall(text):
        assert listing == (ROOT / name).read_text("utf-8")
    for target in _LINK.findall(text):
        assert (page.parent / target).exists(), target


def test_files_that_pages_and_code_name_exist() -> None:
    """A file that is named by its path from the top is there, so that a reader can open it."""
    folders = ("pipeline", "flows", "plugins", "benchmarks")
    sources = [file for folder in folders for file in (ROOT / folder).rglob("*.py")]
    missing = [
        f"{source.relative_to(ROOT)}: {name}"
        for source in [*PAGES, ROOT / ".github" / "CONTRIBUTING.md", *sources]
        for name in _FILE.findall(source.read_text("utf-8"))
        if name not in _OF_A_READER and not (ROOT / name).exists()
    ]
    assert not missing
