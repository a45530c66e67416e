"""A headless Chromium, driven by the DevTools protocol over a pipe.

Only the browser has to be installed: a pipe needs neither a driver nor a WebSocket library.
"""

import base64
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Self

from devtools.processes import wait_until

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
#: Chromium reads commands from descriptor 3 and writes answers to 4.
TRAMPOLINE = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); "
    "os.execv(sys.argv[3], sys.argv[3:])"
)
OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--no-first-run", "--no-default-browser-check", "--disable-extensions", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars"),
    *("--disable-features=Translate,MediaRouter", "--remote-debugging-pipe", "about:blank"),
)
#: Long enough for the busiest machine: this only ends a hang.
PATIENCE_SECONDS = 60.0


def chromium() -> str | None:
    """The path of a Chromium: the value of CHROMIUM, else the first one on PATH."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class BrowserFailed(Exception):
    """The browser refused a command, or a script in it failed."""


class Browser:
    """A context manager: entering starts the browser, leaving kills it."""

    def __init__(self, program: str) -> None:
        self._program = program
        self._answers: dict[int, SimpleQueue[Any]] = {}
        self._last_id = 0
        self._lock = threading.Lock()
        self._pages: dict[str, Page] = {}

    def __enter__(self) -> Self:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        from_us, to_us = os.pipe(), os.pipe()
        theirs = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (from_us[0], to_us[1])]
        command = [sys.executable, "-c", TRAMPOLINE, *map(str, theirs), self._program]
        command += [f"--user-data-dir={self._profile.name}", *OPTIONS]
        self._process = subprocess.Popen(
            command, pass_fds=theirs, stderr=subprocess.DEVNULL, start_new_session=True
        )
        for fd in (*theirs, from_us[0], to_us[1]):
            os.close(fd)
        self._to_it = os.fdopen(from_us[1], "wb", buffering=0)
        self._from_it = os.fdopen(to_us[0], "rb")
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._to_it.close()
        self._reader.join()
        self._from_it.close()
        self._profile.cleanup()

    def _read(self) -> None:
        text = b""
        while part := self._from_it.read1(65_536):
            *messages, text = (text + part).split(b"\0")
            for message in map(json.loads, messages):
                if "id" in message:
                    self._answers.pop(message["id"]).put(message)
                elif page := self._pages.get(message.get("sessionId", "")):
                    page.events.append((message["method"], message["params"]))

    def call(self, method: str, session: str = "", **parameters: Any) -> Any:
        """Send a command and return its result. Raises BrowserFailed."""
        with self._lock:
            self._last_id += 1
            answer: SimpleQueue[Any] = SimpleQueue()
            self._answers[self._last_id] = answer
            message: dict[str, Any] = {"id": self._last_id, "method": method, "params": parameters}
            message |= {"sessionId": session} if session else {}
            self._to_it.write(json.dumps(message).encode() + b"\0")
        try:
            said = answer.get(timeout=PATIENCE_SECONDS)
        except Empty:
            raise BrowserFailed(f"{method}: no answer") from None
        if "error" in said:
            raise BrowserFailed(f"{method}: {said['error']['message']}")
        return said["result"]

    def page(self, *, width: int = 1280, height: int = 800, dark: bool = False) -> "Page":
        """Open a page with its own cookies."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        page = self._pages[attached["sessionId"]] = Page(self, attached["sessionId"])
        page.prepare(width, height, dark=dark)
        return page


class Page:
    """One tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        #: The protocol's events so far: their names and parameters.
        self.events: list[tuple[str, Mapping[str, Any]]] = []

    def call(self, method: str, **parameters: Any) -> Any:
        """Send the page a command and return its result. Raises BrowserFailed."""
        return self._browser.call(method, self._session, **parameters)

    def prepare(self, width: int, height: int, *, dark: bool) -> None:
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setTimezoneOverride", timezoneId="UTC")

    def resize(self, width: int, height: int) -> None:
        is_phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=is_phone,
        )

    def go(self, url: str) -> None:
        """Load a page, and wait until it is complete."""
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'", f"{url} to be loaded")

    def run(self, script: str) -> Any:
        """Evaluate an expression, which may be a promise, and return its value. Raises BrowserFailed."""
        said = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in said:
            raise BrowserFailed(str(said["exceptionDetails"]))
        return said["result"].get("value")

    def until(self, condition: str, what: str) -> None:
        """Wait until an expression is true. Raises TimeoutError."""
        wait_until(
            lambda: self.run(f"Boolean({condition})"),
            what,
            every=0.05,
            ignoring=BrowserFailed,  # while another page is being loaded
        )

    def text(self, selector: str) -> str:
        """The visible text of an element."""
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def click(self, selector: str) -> None:
        """Click an element once it exists, is visible and is enabled."""
        found = f"document.querySelector({json.dumps(selector)})"
        self.until(f"{found} && !{found}.disabled && {found}.checkVisibility()", selector)
        self.run(f"{found}.click()")

    def type(self, selector: str, text: str) -> None:
        """Type into an element that takes text."""
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        self.call("Input.insertText", text=text)

    def press(self, key: str, *, shift: bool = False) -> None:
        """Press a key: Tab, Enter, Escape or Space."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27, "Space": 32}
        text = {"Enter": "\r", "Space": " "}.get(key, "")
        said = {
            "key": " " if key == "Space" else key,
            "code": key,
            "windowsVirtualKeyCode": codes[key],
        }
        for kind in ("keyDown", "keyUp"):
            typed = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, modifiers=8 * shift, **said, **typed)

    def screenshot(self, file: Path, *, height: int = 0) -> None:
        """Save the visible part as a PNG; with a height, that much of the page from its top."""
        size = self.call("Page.getLayoutMetrics")["cssLayoutViewport"]
        clip = {"x": 0, "y": 0, "width": size["clientWidth"], "height": height, "scale": 1}
        more = {"clip": clip, "captureBeyondViewport": True} if height else {}
        data = self.call("Page.captureScreenshot", format="png", **more)["data"]
        file.write_bytes(base64.b64decode(data))

    def complaints(self) -> list[str]:
        """Script errors, violations of the content security policy, and failed loads."""
        said = []
        for method, facts in [*self.events]:
            if method == "Runtime.exceptionThrown":
                said.append(str(facts["exceptionDetails"]))
            elif method == "Log.entryAdded" and facts["entry"]["level"] == "error":
                said.append(f"{facts['entry']['text']} {facts['entry'].get('url', '')}")
        return said

    def requests(self) -> list[str]:
        """The URLs that the page requested."""
        sent = [facts for method, facts in [*self.events] if method == "Network.requestWillBeSent"]
        return [facts["request"]["url"] for facts in sent]
