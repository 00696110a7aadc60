"""A headless Chromium on a pipe: pages are opened from disk, asked by script, pointed at, typed into and pictured.

It speaks the DevTools protocol over two pipes (`--remote-debugging-pipe`), which needs no driver and no package.
"""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
PATIENCE_S = 30
_KEYS = {"Enter": 13, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9}


def find_chromium() -> str | None:
    """The browser of this machine: CHROMIUM, or the first of the usual names that is installed."""
    return os.environ.get("CHROMIUM") or next((path for name in NAMES if (path := shutil.which(name))), None)


def _high_pipe() -> tuple[int, int]:
    """A pipe whose descriptors are none of the first ten."""
    ends = os.pipe()
    first, second = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return first, second


class Chromium:
    """A browser process with one page."""

    def __init__(self, path: str) -> None:
        self._folder = tempfile.mkdtemp(prefix="chromium-")
        (theirs_in, self._to), (self._from, theirs_out) = _high_pipe(), _high_pipe()
        arguments = (
            "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
            "--disable-background-networking", "--disable-component-update", "--no-first-run",
            "--remote-debugging-pipe", f"--user-data-dir={self._folder}",
        )  # fmt: skip
        # The browser reads from descriptor 3 and writes to 4; a shell puts the pipes there.
        script = f'exec 3<&{theirs_in} 4>&{theirs_out} && exec "$0" "$@"'
        self._process = subprocess.Popen(
            ["bash", "-c", script, path, *arguments, "about:blank"],
            pass_fds=(theirs_in, theirs_out),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = next(each for each in self.call("Target.getTargets")["targetInfos"] if each["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def close(self) -> None:
        """Ends the process and removes its folder."""
        with contextlib.suppress(OSError):
            os.close(self._to)
            os.close(self._from)
        self._process.terminate()
        self._process.wait(PATIENCE_S)
        shutil.rmtree(self._folder, ignore_errors=True)

    # --- the protocol

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a command; events that come meanwhile are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        for answer in self._messages():
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
        raise TimeoutError(method)

    def _messages(self) -> Iterator[dict[str, Any]]:
        """What the browser says, as it comes, until it has been silent too long."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            while b"\0" in self._buffer:
                text, self._buffer = self._buffer.split(b"\0", 1)
                message = json.loads(text)
                if "method" in message:
                    self.events.append(message)
                yield message
            if select.select([self._from], [], [], 0.2)[0]:
                piece = os.read(self._from, 1 << 20)
                if not piece:
                    raise RuntimeError("the browser has ended")
                self._buffer += piece

    # --- what a person does

    def open(self, page: Path, *, width: int = 1280, height: int = 900, dark: bool = False, anchor: str = "") -> float:
        """Opens a file and waits until it is loaded; returns the seconds that took."""
        self.look(width, height, dark=dark)
        self.visit("about:blank")
        return self.visit(page.resolve().as_uri() + anchor)

    def visit(self, url: str) -> float:
        """Goes to an address and waits until it is loaded; returns the seconds that took."""
        self.events.clear()
        began = time.monotonic()
        self.call("Page.navigate", url=url)
        if not any(event["method"] == "Page.loadEventFired" for event in self.events):
            next(m for m in self._messages() if m.get("method") == "Page.loadEventFired")
        return time.monotonic() - began

    def look(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """Sets the size of the window, and whether the person prefers dark pages."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        wishes = {"prefers-color-scheme": "dark" if dark else "light", "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in wishes.items()]
        self.call("Emulation.setEmulatedMedia", features=features)

    def ask(self, script: str) -> Any:
        """The value of a script's expression in the page; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", script))
        return answer["result"].get("value")

    def wait_for(self, script: str) -> Any:
        """The value of a script's expression once it is true."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            if value := self.ask(script):
                return value
            time.sleep(0.05)
        raise TimeoutError(script)

    def click(self, selector: str) -> None:
        """Clicks with the mouse in the middle of an element."""
        find = f"document.querySelector({json.dumps(selector)})"
        self.ask(f"{find}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        box = self.ask(f"(r => [r.x + r.width / 2, r.y + r.height / 2])({find}.getBoundingClientRect())")
        self.click_at(*box)

    def click_at(self, x: float, y: float) -> None:
        """Clicks at a place of the window."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text: str) -> None:
        """Types into what has the focus."""
        self.call("Input.insertText", text=text)

    def press(self, key: str) -> None:
        """Presses a key by name."""
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            code = _KEYS[key]
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)
            text = {}

    def picture(self, path: Path, *, whole: bool = False) -> None:
        """A PNG of the window, or of the whole page."""
        clip: dict[str, Any] = {}
        if whole:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            area = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 12_000), "scale": 1}
            clip = {"captureBeyondViewport": True, "clip": area}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png", **clip)["data"]))

    # --- what it noticed

    def complaints(self) -> list[str]:
        """Errors, warnings and uncaught exceptions since the page was opened."""
        self.ask("1")  # what was said before comes before the answer
        texts: list[str] = []
        for event in self.events:
            params = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                texts.append(str(params["exceptionDetails"]))
            if event["method"] == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                texts.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
            if event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                texts.append(str(params["args"]))
        return texts

    def requests(self) -> list[str]:
        """The addresses asked for since the page was opened, the page's own first."""
        self.ask("1")
        return [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
