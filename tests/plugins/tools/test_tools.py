"""A tool outside the tree has commands, work, events and services; one that fails hurts nobody."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.flows import load_flow_from_entrypoint

from patchline.flows.notifications import events
from patchline.flows.prefect_api import folder_labels
from patchline.flows.schedules import deployments, schedule_listing
from patchline.pipeline.local_services import answers
from patchline.pipeline.plugin_system import plugin_loader
from patchline.pipeline.plugin_system.tools import keep_former_paths, tools
from patchline.pipeline.workspace.files.atomic_files import write_text
from tests.flows.schedules.schedule_parts import only_one
from tests.flows.services.local_servers import listening, page, serving
from tests.free_ports import free_port
from tests.made.servers import Command
from tests.patience import until

_TOOL = """
from patchline.plugin_api import ToolCommand, ToolPlugin, ToolService, ToolWork
plugin = ToolPlugin(
    "A tool",
    commands=(ToolCommand({words!r}, "json:dumps", "Dump.", reads_only=True),),
    work=(ToolWork("dump", {flag!r}, "Dump.", "json:dumps", "json:dumps", "dumps"),),
)
"""
_GALLERY = """
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from patchline.plugin_api import ConfigError, ToolPlugin, ToolService

def check(folder):
    if not Path(folder).is_dir():
        raise ConfigError(f"There is no folder {folder}. Name another one.")

def show(folder, port):
    handler = partial(SimpleHTTPRequestHandler, directory=folder)
    ThreadingHTTPServer(("127.0.0.1", port), handler).serve_forever()

service = ToolService(
    "photo_gallery", "Gallery", "--gallery", "Folder to show.", "Port of the gallery.",
    f"{__name__}:show", f"{__name__}:check", health="/",
)
plugin = ToolPlugin("A gallery", services=(service,))
"""


def install(site: Path, name: str, text: str = "", module: str = "") -> None:
    """Put a package with a tool into a folder of Python's path; its module may be there."""
    info, module = site / f"{name}_tool-1.dist-info", module or f"{name}_tool"
    for file, content in {
        site / f"{name}_tool.py": f'"""A tool."""\n{text}',
        info / "METADATA": f"Metadata-Version: 2.1\nName: {name}-tool\nVersion: 1\n",
        info / "entry_points.txt": f"[patchline.tools]\n{name} = {module}:plugin\n",
    }.items():
        write_text(file, content)


@pytest.mark.usefixtures("event_api")
def test_an_installed_package_adds_a_command_scheduled_work_and_an_event(
    run_here: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: SyncPrefectClient
) -> None:
    """That of `plugins new`; once it is gone, its schedule says so."""
    assert "exists already" in run_here.refusal("plugins new tool schedule")
    folder = run_here.json("plugins new tool inbox")["folder"]
    shutil.copytree(f"{folder}/patchline_inbox", "site/patchline_inbox")
    install(Path("site"), "inbox", module="patchline_inbox.plugin")
    with monkeypatch.context() as path:
        path.syspath_prepend(tmp_path / "site")
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "1.jpg").touch()
        assert run_here.out("inbox new") == "1 images wait in new.\n"
        assert run_here.json("plugins check tool inbox")["passed"]
        assert "patchline.inbox.waiting" in run_here.json("plugins show inbox")["events"]
        hourly = ("schedule create hourly --interval 1h --inbox",)
        assert "There is no folder" in run_here.refusal(*hourly, "old")
        run_here.out(*hourly, "new")
        [listed] = run_here.json("schedule list")["schedules"]
        assert (listed["kind"], listed["what"]) == ("inbox", f"counts the images in {tmp_path}/new")
        webhook = ("--webhook", "http://127.0.0.1:1/", "--on", "inbox.waiting")
        assert "inbox.waiting" in run_here.out("notify create team", *webhook)
        flow: Flow[..., Any] = load_flow_from_entrypoint(str(only_one().entrypoint))
        assert flow(**only_one().parameters) == 1
        events.flush()
        asked = {"filter": {"event": {"name": ["patchline.inbox.waiting"]}}}
        until(
            lambda: client.request("POST", "/events/filter", json=asked).json()["events"],
            "the event has not arrived",
        )
    [listed] = run_here.json("schedule list")["schedules"]
    assert listed["kind"] == "unknown"
    assert "whose tool is not installed here" in listed["what"]
    assert "There is no event" in run_here.refusal("notify create team", *webhook)
    run_here.out("schedule remove hourly")


@pytest.mark.usefixtures("event_api")
def test_schedules_of_an_earlier_version_are_listed_and_find_their_flows(
    client: SyncPrefectClient,
) -> None:
    """As a32f8cf8 stored them, when the flow of `monitor` was in another place."""
    file = Path(__file__).with_name("deployments_of_earlier_version.json")
    here = str(Path.cwd())
    keep_former_paths()
    for each in json.loads(file.read_text("utf-8").replace("FOLDER", here)):
        flow_id = str(client.create_flow_from_name(each["flow"]))
        labels = each["deployment"]["labels"] | folder_labels.with_id(Path.cwd())
        body = each["deployment"] | {"flow_id": flow_id, "labels": labels}
        client.request("POST", "/deployments/", json=body).raise_for_status()
        flow: Flow[..., Any] = load_flow_from_entrypoint(body["entrypoint"])
        assert flow.name == each["flow"]
    listed = {each.name: each for each in map(schedule_listing.summary, deployments.deployments())}
    assert {name: (each.kind, each.what.replace(here, ".")) for name, each in listed.items()} == {
        "drifts": ("train", "trains on digits"),
        "monitors": ("monitor", "compares ./inbox with digits@champion"),
        "predicts": ("predict", "predicts ./inbox with digits@champion"),
        "trains": ("train", "trains on digits"),
        "watched": ("watch", "trains on new images in ./.patchline/sources/digits"),
    }


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("broken", "import nothing_like_it", "No module named 'nothing_like_it'"),
        ("number", "plugin = 3", "is a int, not a ToolPlugin"),
        ("fast", _TOOL.format(words="run fast", flag="--x"), "'run' belongs to Patchline"),
        ("zeal", _TOOL.format(words="monitor", flag="--x"), "'monitor' belongs to the tool"),
        ("drift", _TOOL.format(words="dump", flag="--on-drift"), "'--on-drift' belongs to"),
        ("wall", _GALLERY.replace("--gallery", "--serve"), "'--serve' belongs to the tool"),
    ],
)
def test_a_tool_that_cannot_be_used_is_named_where_its_command_is_asked_for(
    run_here: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    text: str,
    sentence: str,
) -> None:
    """Everything else works as before."""
    install(tmp_path / "site", name, text)
    monkeypatch.syspath_prepend(tmp_path / "site")
    for words in (("dumped", "1"), ("up", "--dumped", "1")):
        assert sentence in run_here.refusal(*words)
    code, out, err = run_here("monitor --help")
    assert (code, err) == (0, "")
    assert "Check whether new images" in out


def test_a_flag_of_the_core_is_not_taken(
    run_here: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command of the tool is there, its schedules are not."""
    install(tmp_path / "site", "cron", _TOOL.format(words="dump all", flag="--cron"))
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert "Dump" in run_here.out("dump --help")
    assert "five-field cron expression" in run_here.out("schedule create --help")
    install(tmp_path / "site", "wall", _GALLERY.replace("--gallery", "--database"))
    assert "PostgreSQL database" in run_here.out("up --help")


def test_a_single_file_is_a_tool(run_here: Command, tmp_path: Path) -> None:
    """Its command is that of the file, in this process and in those that it starts."""
    text = _TOOL.format(words="dump", flag="--dump").replace(
        '"json:dumps", "Dump."', '__name__ + ":said", "Say."', 1
    )
    write_text(tmp_path / "own.py", f'{text}\ndef said():\n    print("said")\n')
    assert run_here.out("dump --plugin own.py") == "said\n"
    assert [each.name for each in tools().usable if each.name == "own"]
    assert plugin_loader.plugin_files() == [tmp_path / "own.py"]


@pytest.mark.slow  # servers of its own
def test_up_runs_the_service_of_a_single_file(run_here: Command, tmp_path: Path) -> None:
    """It checks the value, chooses a free port and starts it again; `down` ends it."""
    write_text(tmp_path / "gallery.py", f'"""A gallery."""\n{_GALLERY}')
    write_text(tmp_path / "photos" / "index.html", "Photos")
    plugin = ("--plugin", "gallery.py")
    assert "no folder none" in run_here.refusal("up --gallery none", *plugin)
    port = free_port()
    flags = ("--gallery", "photos", "--gallery-port", str(port), *plugin)
    with listening(port), serving(tmp_path, *flags) as servers:
        up = servers.up(*flags)
        url = up.json["gallery_url"]
        assert f"Port {port} is taken, so the photo gallery uses port {url[-5:]}." in up.err
        assert up.json["serve_url"] is None
        assert page(url, tmp_path) == "Photos"
        assert f"Gallery  {url} (photos)" in servers.run("up", *plugin).out
        assert "running with --gallery photos" in servers.up("--gallery", ".", *plugin).err
        servers.process("tool_service").kill()
        until(lambda: "was killed by" in servers.log("supervisor"), "its end was not noticed")
        until(lambda: answers(url), "it was not started again")
    servers.assert_gone()
    assert not answers(url)
