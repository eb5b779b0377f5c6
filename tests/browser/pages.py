"""The page in Debian's Chromium, and the server behind it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, urlencode

from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from folders import BINARY

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CHROMEDRIVER = shutil.which("chromedriver")
DESKTOP = (1440, 900)
PHONE = (390, 844)


class Server:
    """`palimpsest view` over some folders, at a free port of this machine, and the address that it printed: with its token."""

    def __init__(self, *words: object, port: int = 0, **variables: str) -> None:
        self.process = subprocess.Popen([str(BINARY), "view", *map(str, words), "--port", str(port)], env=os.environ | variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        told = []
        for line in self.process.stdout:
            told.append(line)
            found = re.search(r"http://127\.0\.0\.1:(\d+)/\S*", line)
            if found:
                self.address, self.port = found.group(), int(found[1])
                return
        raise AssertionError(f"palimpsest view ended: {''.join(told)[-2000:]}")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(10)


class Page:
    """A browser of its own, with what a test does and asks."""

    def __init__(self, size: tuple[int, int] = DESKTOP, dark: bool = False) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for flag in ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--enable-precise-memory-info"]:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(CHROMEDRIVER))
        self.driver.set_script_timeout(30)
        # Addresses without tokens at which the page was opened; one that is left may still ask for its stamp.
        self.opened: set[str] = set()
        self.resize(size)
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def command(self, name: str, **given: object) -> dict:
        return self.driver.execute_cdp_cmd(name, given)

    def resize(self, size: tuple[int, int], scale: float = 1) -> None:
        width, height = size
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=width < 600)

    def visit(self, address: str) -> None:
        """Loads an address that the page may request things from."""
        self.opened.add(re.split("[?#]", address)[0])
        self.driver.get("about:blank")
        self.driver.get(address)

    def open(self, address: str, **shown: object) -> None:
        """Opens the page of a server or file, by default with the table; lists are repeated keys."""
        shown = {"view": "table", **shown}
        self.visit(f"{address}#{urlencode(shown, doseq=True, quote_via=quote)}")
        self.wait("return !document.getElementById('overview-view').hidden || !document.getElementById('table-view').hidden || !document.getElementById('case-view').hidden || !document.getElementById('compare-view').hidden || !document.getElementById('error').hidden")

    def js(self, code: str, *given: object) -> object:
        return self.driver.execute_script(code, *given)

    def wait(self, code: str, *given: object, seconds: float = 15) -> object:
        """Until the script says something true, which it gives back."""
        end = time.monotonic() + seconds
        while True:
            found = self.js(code, *given)
            if found:
                return found
            assert time.monotonic() < end, f"not within {seconds} s: {code}\n{self.text('#error')}\n{self.js('return location.href')}"
            time.sleep(0.03)

    def until(self, holds: Callable[[], object], seconds: float = 15) -> object:
        end = time.monotonic() + seconds
        while True:
            found = holds()
            if found:
                return found
            assert time.monotonic() < end, f"not within {seconds} s; at {self.js('return location.href')}"
            time.sleep(0.05)

    def text(self, selector: str) -> str:
        """The text that is seen; nothing where there is no such element."""
        return self.js("return document.querySelector(arguments[0])?.innerText ?? ''", selector)

    def texts(self, selector: str) -> list[str]:
        return self.js("return [...document.querySelectorAll(arguments[0])].map((node) => node.innerText)", selector)

    def click(self, selector: str, text: str | None = None) -> None:
        """Clicks the first such element that is seen, with that text."""
        self.wait("""const node = [...document.querySelectorAll(arguments[0])].find((one) => one.getClientRects().length && (arguments[1] === null || one.innerText.trim() === arguments[1]));
          if (!node) return false; node.scrollIntoView({ block: 'center', behavior: 'instant' }); node.click(); return true;""", selector, text)

    def keys(self, *keys: str) -> None:
        """Types; what has the focus gets it."""
        chain = ActionChains(self.driver)
        for key in keys:
            chain.send_keys(key)
        chain.perform()

    def tab(self, times: int = 1) -> None:
        self.keys(*[Keys.TAB] * times)

    def table(self, title: str) -> tuple[list[str], list[list[str]]]:
        """The page's own table of the numbers of a picture, as the CSV that it gives: all digits."""
        found = self.js("""const picture = current.pictures.find((one) => one.spec.title.startsWith(arguments[0])); if (!picture) return null; const { head, rows } = picture.spec.table(); return [head, rows];""", title)
        assert found, f"no picture {title!r}"
        return found[0], found[1]

    def rows(self) -> int:
        return self.js("return store.order.length")

    def screenshot(self, path: Path) -> None:
        self.driver.save_screenshot(str(path))

    def troubles(self) -> list[str]:
        """What the console complained of, and requests that left the machine."""
        found = [f"{entry['level']}: {entry['message']}" for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                address = message["params"]["request"]["url"]
                if not address.startswith((*self.opened, "data:", "blob:", "about:", "chrome")):
                    found.append(f"a request to {address}")
        return found

    def close(self) -> None:
        self.driver.quit()
