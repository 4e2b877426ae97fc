"""A headless Chromium, driven over a pipe by the DevTools protocol, without a library."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ["chromium", "chromium-browser", "google-chrome", "chrome"]


class Browser:
    """One page. `problems` lists exceptions of the page's scripts and violations of the content security policy."""

    def __init__(self, timeout=60):
        found = [path for path in map(shutil.which, NAMES) if path]
        if not found:
            raise RuntimeError("there is no Chromium here: deploy/install-deps.sh --tests installs it")
        self.timeout = timeout
        self.profile = tempfile.mkdtemp(prefix="trainerd-browser-")
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()

        def descriptors():  # the browser reads 3 and writes 4
            high = [os.dup2(fd, fd + 100) for fd in (to_read, to_write)]
            for fd, place in zip(high, (3, 4)):
                os.dup2(fd, place)
                os.set_inheritable(place, True)

        self.process = subprocess.Popen(
            [found[0], "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--no-first-run", "--disable-extensions", "--disable-background-networking", "--disable-component-update",
             "--hide-scrollbars", "--user-data-dir=" + self.profile, "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False, preexec_fn=descriptors,
            start_new_session=True)
        os.close(to_read)
        os.close(to_write)
        self._number, self._bytes, self._session = 0, b"", None
        self.problems, self.requests = [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(domain + ".enable")

    def close(self):
        try:
            self._session = None
            self.call("Browser.close")
        except (OSError, TimeoutError, EOFError):
            self.process.kill()
        self.process.wait()
        os.close(self._write)
        os.close(self._read)
        shutil.rmtree(self.profile, ignore_errors=True)

    def _message(self, end):
        while b"\0" not in self._bytes:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._read], [], [], left)[0]:
                raise TimeoutError("the browser does not answer")
            part = os.read(self._read, 1 << 20)
            if not part:
                raise EOFError("the browser has ended")
            self._bytes += part
        text, self._bytes = self._bytes.split(b"\0", 1)
        return json.loads(text)

    def _hear(self, message):
        method, params = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(params["exceptionDetails"].get("exception", {}).get("description") or params["exceptionDetails"]["text"])
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.problems.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def call(self, method, **params):
        self._number += 1
        request = {"id": self._number, "method": method, "params": params}
        if self._session:
            request["sessionId"] = self._session
        os.write(self._write, json.dumps(request).encode() + b"\0")
        end = time.monotonic() + self.timeout
        while True:
            message = self._message(end)
            if message.get("id") == self._number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self._hear(message)

    def open(self, url, width=1280, height=900, dark=False):
        """Loads a page in a window of the given size."""
        self.call("Page.navigate", url="about:blank")  # the page before may still send requests
        self.wait_for("document.readyState === 'complete' && location.href === 'about:blank'")
        self.problems.clear()
        self.requests.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        failed = self.call("Page.navigate", url=url).get("errorText")
        if failed:
            raise RuntimeError(f"{url}: {failed}")
        self.wait_for("document.readyState === 'complete'")

    def run(self, script):
        """The value of an expression in the page."""
        done = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise RuntimeError(f"{script}: {done['exceptionDetails']}")
        return done["result"].get("value")

    def wait_for(self, condition, timeout=None):
        """Waits until an expression in the page is true. Returns its value."""
        end = time.monotonic() + (timeout or self.timeout)
        while True:
            value = self.run(condition)
            if value:
                return value
            if time.monotonic() > end:
                raise TimeoutError(f"never true: {condition}\nproblems: {self.problems}\n{(self.run('document.body.innerText') or '')[:2000]}")
            time.sleep(0.05)

    def drag(self, x0, x1, y):
        """Drags the mouse with the left button down."""
        for kind, x, buttons in (("mousePressed", x0, 1), ("mouseMoved", (x0 + x1) / 2, 1), ("mouseMoved", x1, 1), ("mouseReleased", x1, 0)):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left" if kind != "mouseMoved" else "none", buttons=buttons, clickCount=1)

    def move(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def picture(self, path, whole=True):
        """A PNG of the window, or of the whole page."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))
