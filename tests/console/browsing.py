"""Headless Chromium, driven by Selenium: pages at several sizes and colours, judged by axe, kept as pictures."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

T = TypeVar("T")

PATIENCE: Final = 60.0
_AXE: Final = Path(".cache/axe-core-4.14.1/package/axe.min.js")
_RULES: Final = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
WIDE: Final = (1280, 900)
NARROW: Final = (360, 740)


class Browser:
    """A browser. base: where the console answers."""

    def __init__(self, base: str) -> None:
        options = ChromeOptions()
        options.binary_location = "/usr/bin/chromium"
        for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--force-prefers-reduced-motion"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver: Any = Chrome(options=options, service=ChromeService("/usr/bin/chromedriver"))
        self.base = base
        self._axe = _AXE.read_text("utf-8")

    def close(self) -> None:
        """End it."""
        self.driver.quit()

    def look(self, size: tuple[int, int], *, dark: bool) -> None:
        """Use a size of the window, and colours as a user's system asks for them."""
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        colours = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": colours})

    def open(self, path: str) -> None:
        """Go to a page."""
        self.driver.get(self.base + path)

    def run(self, script: str, *arguments: Any) -> Any:
        """Return what a script of the driver returns."""
        return self.driver.execute_script(script, *arguments)

    def press(self, *keys: str) -> None:
        """Press keys, on whatever has the focus."""
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def fill(self, **fields: str) -> None:
        """Write into fields by their names, and choose from lists."""
        for name, value in fields.items():
            [field] = self.driver.find_elements(
                By.CSS_SELECTOR, f'main [name="{name}"]:not([type=hidden]):not([hidden])'
            )
            if field.tag_name != "select":
                field.clear()
            field.send_keys(value)

    def submit(self) -> None:
        """Send the form of the page."""
        self.driver.find_element(By.CSS_SELECTOR, "main button.primary, main button.danger").click()

    def text(self) -> str:
        """Return what the page says."""
        return str(self.run("return document.querySelector('main').innerText"))

    def until(self, condition: Callable[[], T], what: str) -> T:
        """Return the first result that is true. Raises AssertionError after `PATIENCE` seconds."""
        end = time.monotonic() + PATIENCE
        while True:
            found = condition()
            if found:
                return found
            assert time.monotonic() < end, f"{what} did not come; the page says:\n{self.text()}"
            time.sleep(0.1)

    def problems(self) -> list[str]:
        """Return what axe finds on the page, what the browser reports, and whether the page is too wide."""
        found = self.driver.execute_async_script(
            self._axe
            + """
            const [values, done] = arguments;
            axe.run(document, {runOnly: {type: "tag", values}}).then(done, error => done({error: String(error)}));
            """,
            _RULES,
        )
        assert "violations" in found, found
        wrong = [
            f"{one['id']}: {one['help']}: {node['html'][:200]}" for one in found["violations"] for node in one["nodes"]
        ]
        logged = self.driver.get_log("browser")
        wrong += [one["message"] for one in logged if one["level"] in ("SEVERE", "WARNING")]
        width, most = self.run("return [document.documentElement.scrollWidth, innerWidth]")
        return wrong + ([f"the page is {width} pixels wide in a window of {most}"] if width > most else [])

    def keep(self, path: Path) -> None:
        """Keep a picture of the window."""
        assert self.driver.save_screenshot(str(path))


ESCAPE: Final = Keys.ESCAPE
ENTER: Final = Keys.ENTER
