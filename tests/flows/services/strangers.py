"""What strangers try at the servers of `patchline up`: requests, an attack, another user."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.patience import patient

AS_NOBODY = """
import json, sys, urllib.error, urllib.request
found = {}
for address, headers in json.loads(sys.argv[1]):
    request = urllib.request.Request(address, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            found[address] = response.status
    except urllib.error.HTTPError as error:
        found[address] = error.code
for file in json.loads(sys.argv[2]):
    try:
        found[file] = open(file).read()
    except OSError as error:
        found[file] = type(error).__name__
print(json.dumps(found))
"""
"""A program that requests addresses, reads files, and prints the results as JSON."""


TRIED = ("post", "simple post", "read", "image", "events in", "events out", "logs out")
INTRUDER = """<!doctype html><title>intruder</title><body><script>
const found = {};
const flow = JSON.stringify({name: "INTRUDER"});
async function asked(name, address, options) {
  try { await fetch(address, {credentials: "include", ...options}); found[name] = "YES"; }
  catch { found[name] = "no"; }
}
function heard(name, path) {
  return new Promise((done) => {
    const socket = new WebSocket("API".replace("http", "ws") + path, ["prefect"]);
    socket.onopen = () => { found[name] = "YES"; done(); };
    socket.onerror = () => { found[name] = "no"; done(); };
  });
}
function loaded(name, address) {
  return new Promise((done) => {
    const image = new Image();
    image.onload = () => { found[name] = "YES"; done(); };
    image.onerror = () => { found[name] = "no"; done(); };
    image.src = address;
  });
}
(async () => {
  const json = {method: "POST", body: flow, headers: {"content-type": "application/json"}};
  await asked("post", "API/flows/", json);
  await asked("read", "MLFLOW/api/2.0/mlflow/experiments/search?max_results=1", {});
  // Without leave to read the answer a browser sends this one, and says nothing of what came.
  await fetch("API/flows/", {method: "POST", body: flow, mode: "no-cors", credentials: "include"});
  found["simple post"] = "no";
  await loaded("image", "MLFLOW/static-files/favicon.ico");
  await heard("events in", "/events/in");
  await heard("events out", "/events/out");
  await heard("logs out", "/logs/out");
  document.body.textContent = "done" + JSON.stringify(found);
})();
</script>"""
"""A page that tries whatever a page can; API and MLFLOW stand for the addresses."""


class _Stay(urllib.request.HTTPRedirectHandler):
    """Redirects are looked at and not followed."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow nothing."""


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve the pages in a folder on a port of their own; yield the address."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def ask(
    address: str, data: Any = None, method: str | None = None, **headers: str
) -> tuple[int, str, dict[str, str]]:
    """Return status, text and headers of an answer, whatever it is."""
    body = None if data is None else json.dumps(data).encode()
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(
        address, body, {"Content-Type": "application/json", **names}, method=method
    )
    try:
        with urllib.request.build_opener(_Stay).open(request, timeout=patient(60)) as response:
            return response.status, response.read().decode(), dict(response.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), dict(error.headers)


def attack(api: str, file: Path, **headers: str) -> list[int]:
    """Let the runner make a file, as a page or another user would try; return the statuses."""
    statuses = []

    def post(path: str, data: dict[str, Any]) -> str:
        deadline = time.monotonic() + patient(120)
        status, text, _ = ask(f"{api}/{path}", data, **headers)
        while status == HTTPStatus.SERVICE_UNAVAILABLE and time.monotonic() < deadline:
            status, text, _ = ask(f"{api}/{path}", data, **headers)  # SQLite was busy
        statuses.append(status)
        known = json.loads(text) if status == HTTPStatus.CREATED else {}
        return str(known.get("id", "00000000-0000-0000-0000-000000000000"))

    flow = post("flows/", {"name": file.name})
    deployment = {
        "name": file.name,
        "flow_id": flow,
        "entrypoint": "nowhere.py:nothing",
        "work_pool_name": "patchline",
        "job_variables": {"command": f"touch {file}"},
    }
    made = post("deployments/", deployment)
    post(f"deployments/{made}/create_flow_run", {"state": {"type": "SCHEDULED"}})
    return statuses
