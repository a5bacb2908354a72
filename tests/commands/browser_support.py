"""Chromium, driven over WebDriver, which is HTTP and JSON (https://www.w3.org/TR/webdriver2)."""
import http.client
import json
import re
import shutil
import subprocess
import tempfile
import unittest

from serve_support import PATIENCE

needs_chromium = unittest.skipUnless(shutil.which("chromium") and shutil.which("chromedriver"), "chromium or its driver is not found")


class Browser:
    def __init__(self):
        words = ["chromedriver", "--port=0", "--allowed-ips="]
        self.driver = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for line in self.driver.stdout:
            if match := re.search(rb"started successfully on port (\d+)", line):
                break
        self.connection = http.client.HTTPConnection("127.0.0.1", int(match.group(1)), timeout=2 * PATIENCE)
        self.profile = tempfile.TemporaryDirectory(prefix="cambium-test-", ignore_cleanup_errors=True)
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,1000",
                     f"--user-data-dir={self.profile.name}", "--no-proxy-server"]
        session = self.command("POST", "/session", {"capabilities": {"alwaysMatch": {
            "goog:loggingPrefs": {"browser": "WARNING"}, "timeouts": {"script": 1000 * PATIENCE},
            "goog:chromeOptions": {"binary": shutil.which("chromium"), "args": arguments}}}})
        self.session = "/session/" + session["sessionId"]

    def command(self, method, path, body=None):
        self.connection.request(method, path, None if body is None else json.dumps(body), {"content-type": "application/json"})
        answer = json.loads(self.connection.getresponse().read())["value"]
        assert not (isinstance(answer, dict) and "error" in answer), answer
        return answer

    def open(self, address):
        self.command("POST", self.session + "/url", {"url": f"http://{address}/"})

    def leave(self):
        self.command("POST", self.session + "/url", {"url": "about:blank"})

    def resize(self, width=None):
        """A screen of this width, as a phone has it; None: the window again."""
        name = "Emulation.setDeviceMetricsOverride" if width else "Emulation.clearDeviceMetricsOverride"
        sizes = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": True} if width else {}
        self.command("POST", self.session + "/goog/cdp/execute", {"cmd": name, "params": sizes})

    def run(self, script, *arguments):
        return self.command("POST", self.session + "/execute/sync", {"script": script, "args": arguments})

    def wait(self, condition):
        """Until the expression is true in the page; its value."""
        script = f"""const done = arguments[0];
            const look = () => {{ const value = {condition}; if (value) done(value); else setTimeout(look, 10); }};
            look();"""
        return self.command("POST", self.session + "/execute/async", {"script": script, "args": []})

    def press(self, *keys):
        """Keys held down together."""
        actions = [{"type": "keyDown", "value": key} for key in keys] + [{"type": "keyUp", "value": key} for key in keys[::-1]]
        self.command("POST", self.session + "/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def log(self):
        return [entry["message"] for entry in self.command("POST", self.session + "/se/log", {"type": "browser"})]

    def close(self):
        self.command("DELETE", self.session)
        self.connection.close()
        self.driver.terminate()
        self.driver.wait()
        self.driver.stdout.close()
        self.profile.cleanup()


CONTROL, ENTER, ESCAPE, TAB, SPACE = "\ue009", "\ue007", "\ue00c", "\ue004", " "
