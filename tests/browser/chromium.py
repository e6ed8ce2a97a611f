"""Debian's Chromium without a window, driven through ChromeDriver; it asks no other machine."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.patience import patient, until

if TYPE_CHECKING:
    from selenium.webdriver.chrome.webdriver import WebDriver

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    # A mouse that can hover: without one, the charts draw their tools over the curves.
    "--blink-settings=primaryHoverType=2,availableHoverTypes=2",
)
_PATIENCE_SECONDS = patient(120.0)
_BLANK_SECONDS = patient(20.0)
"""After so long, a person loads a page again that shows nothing."""
_CLOSED_ASSISTANT = """
    localStorage.setItem('mlflow.assistant.panelOpen_v1', 'false');
    localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true');
"""
_HIDING = """
    const words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (words.nextNode())
        if (words.currentNode.data.includes(arguments[0])) words.currentNode.data = '';
"""


def missing() -> str:
    """Return why there is no browser here; empty if there is one."""
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"{' and '.join(absent)} not installed (Debian: chromium-driver)" if absent else ""


class Browser:
    """One window."""

    def __init__(self, driver: WebDriver) -> None:
        self._driver = driver

    def open(self, address: str, *texts: str) -> str:
        """Open a page and wait until it shows all the texts; return its whole text.

        Raises:
            AssertionError: with what the page shows instead.
        """
        self._driver.get("about:blank")  # an address that differs after the # alone is no new page
        self._driver.get(address)
        return self.assert_shows(*texts)

    def assert_shows(self, *texts: str) -> str:
        """Assert that the page comes to show all the texts, its frames included; return its text.

        Raises:
            AssertionError: with what the page shows instead.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        reload = time.monotonic() + _BLANK_SECONDS
        while True:
            shown = self.text()
            absent = [text for text in texts if text not in shown]
            if not absent:
                return shown
            if not shown.strip() and time.monotonic() > reload:
                self._driver.refresh()  # a busy server has left out a part of the page's script
                reload = time.monotonic() + _BLANK_SECONDS
            if time.monotonic() > deadline:
                address = self._driver.current_url
                raise AssertionError(f"{absent} not on {address}, which shows:\n{shown}")
            time.sleep(0.2)

    def text(self) -> str:
        """Return what the page says, in its frames too."""
        from selenium.common.exceptions import WebDriverException

        parts = [self._words()]
        for frame in self._driver.find_elements("tag name", "iframe"):
            try:
                self._driver.switch_to.frame(frame)
                parts.append(self._words())
            except WebDriverException:
                continue  # the frame went while it was looked at
            finally:
                self._driver.switch_to.default_content()
        return "\n".join(parts)

    def sign_in(self, link: str) -> None:
        """Open a link that `patchline up` printed, which both UIs then know this browser by."""
        self._driver.get(link)
        assert "/patchline/login" not in self._driver.current_url, self.text()

    def tab(self) -> str:
        """Go to a new tab; return the one before, for `back_to`."""
        before = self._driver.current_window_handle
        self._driver.switch_to.new_window("tab")
        return before

    def back_to(self, tab: str) -> None:
        """Go to a tab that is open."""
        self._driver.switch_to.window(tab)

    def address(self) -> str:
        """Return the address of the page."""
        return self._driver.current_url

    def click(self, link: str) -> None:
        """Click on a link."""
        self._driver.find_element("link text", link).click()

    def follow(self, link: str) -> None:
        """Go where a link leads, in this window."""
        self.assert_shows(link)
        address = self._driver.find_element("link text", link).get_attribute("href")
        self.open(str(address))

    def press(self, button: str) -> None:
        """Press a button with the mouse: menus do not open otherwise."""
        self.assert_shows(button)
        self._driver.find_element("xpath", f'//button[normalize-space(.)="{button}"]').click()

    def submit(self, button: str, form: str) -> None:
        """Press a button until the form with a text has closed: a busy server may refuse it."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while form in self.text():
            self.press(button)
            again = time.monotonic() + _BLANK_SECONDS
            while form in self.text() and time.monotonic() < again:
                time.sleep(0.2)
            assert time.monotonic() < deadline, f"{form!r} stays open:\n{self.text()}"

    def take(self, item: str, role: str) -> None:
        """Take an item of an open menu (`menuitem`) or list (`option`)."""
        self._driver.find_element(
            "xpath", f'//*[@role="{role}"][normalize-space(.)="{item}"]'
        ).click()

    def write(self, label: str, text: str) -> None:
        """Write into the box under a label of a form."""
        box = f'//label[normalize-space(.)="{label}"]/following::textarea[1]'
        self._driver.find_element("xpath", box).send_keys(text)

    def wait_for(self, selector: str, at_least: int = 1) -> None:
        """Wait until a CSS selector finds so many elements."""
        until(lambda: self.count(selector) >= at_least, f"too few of {selector}")

    def count(self, selector: str) -> int:
        """Return how many elements a CSS selector finds."""
        return len(self._driver.find_elements("css selector", selector))

    def close_assistant(self, server: str) -> None:
        """Close the panel that MLflow opens on the first visit."""
        self.open(server, "Experiments")
        self._driver.execute_script(_CLOSED_ASSISTANT)

    def hide(self, text: str) -> None:
        """Leave out what the page says with this text in it."""
        self._driver.execute_script(_HIDING, text)

    def attribute(self, selector: str, name: str) -> str:
        """Return an attribute of the first element that a CSS selector finds."""
        return str(self._driver.find_element("css selector", selector).get_attribute(name))

    def press_keys(self, selector: str, *names: str) -> None:
        """Press keys, by their names in Selenium, on the first element of a CSS selector."""
        from selenium.webdriver.common.keys import Keys

        element = self._driver.find_element("css selector", selector)
        for name in names:
            element.send_keys(getattr(Keys, name))

    def type_keys(self, selector: str, text: str) -> None:
        """Type a text on the first element that a CSS selector finds."""
        self._driver.find_element("css selector", selector).send_keys(text)

    def choose_files(self, selector: str, files: Sequence[Path]) -> None:
        """Choose files in the input that a CSS selector finds."""
        chosen = "\n".join(str(file.resolve()) for file in files)
        self._driver.find_element("css selector", selector).send_keys(chosen)

    def barriers(self, axe: str) -> list[str]:
        """Return what the source of axe finds on the page that keeps people out."""
        self._driver.execute_script(axe)
        script = (
            "const done = arguments[0]; axe.run(document).then(found => done(found.violations))"
        )
        found = self._driver.execute_async_script(script)
        return [f"{each['id']}: {each['nodes'][0]['target']}" for each in found]

    def answer_of(self, script: str) -> Any:
        """Return what a script hands to its only argument, a function."""
        return self._driver.execute_async_script(script)

    def overflow(self) -> int:
        """Return by how many pixels the page is wider than the window."""
        script = "return document.documentElement.scrollWidth - window.innerWidth"
        return max(0, int(self._driver.execute_script(script)))

    def console(self) -> list[str]:
        """Return the messages in the console since the last call."""
        entries = self._driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [str(entry["message"]) for entry in entries]

    def picture(self, file: Path) -> None:
        """Save what the window shows as a PNG file."""
        self._driver.save_screenshot(str(file))

    def size(self, width: int, height: int) -> None:
        """Make the page this large."""
        self._driver.set_window_size(width, height)
        inner = self._driver.execute_script("return [window.innerWidth, window.innerHeight]")
        self._driver.set_window_size(2 * width - inner[0], 2 * height - inner[1])

    def prefer(self, scheme: str) -> None:
        """Ask pages for a color scheme, `light` or `dark`."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def _words(self) -> str:
        script = "return document.body ? document.body.innerText : ''"
        return str(self._driver.execute_script(script))


@contextmanager
def browser(width: int = 1400, height: int = 900) -> Iterator[Browser]:
    """Start a browser with an empty profile, and close it."""
    os.environ["SE_OFFLINE"], os.environ["SE_AVOID_STATS"] = "true", "true"
    from selenium.webdriver import Chrome
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = Options()
        options.binary_location = str(shutil.which("chromium"))
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        for flag in (*_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
        driver.set_script_timeout(_PATIENCE_SECONDS)
        driver.set_page_load_timeout(_PATIENCE_SECONDS)
        try:
            window = Browser(driver)
            window.size(width, height)
            yield window
        finally:
            driver.quit()
