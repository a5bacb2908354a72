"""The server's page under axe (https://github.com/dequelabs/axe-core), which finds what keeps people from using a page. It
is a file of a package of PyPI."""
import pathlib
import subprocess
import sys
import tempfile
import unittest
import zipfile

from browser_support import Browser, needs_chromium
from model_support import TINY
from serve_support import Server

PACKAGE = "axe-playwright-python"
RUN = """const done = arguments[0];
axe.run().then((found) => done(found.violations.map((one) => [one.impact, one.id, one.nodes.map((node) => node.html)])),
    (error) => done([["critical", String(error), []]]));"""


def fetch(directory):
    done = subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries", "0", "--timeout", "20",
                           "--dest", directory, PACKAGE], capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise unittest.SkipTest(f"axe: the package {PACKAGE} cannot be fetched")
    with zipfile.ZipFile(next(pathlib.Path(directory).glob("*.whl"))) as wheel:
        name, = (name for name in wheel.namelist() if name.endswith("/axe.min.js"))
        return wheel.read(name).decode()


@needs_chromium
class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory(prefix="cambium-test-") as directory:
            cls.axe = fetch(directory)
        cls.server = cls.enterClassContext(Server(model=TINY))
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)

    def faults(self):
        self.browser.run(self.axe + "\nwindow.axe = axe;")
        found = self.browser.command("POST", self.browser.session + "/execute/async", {"script": RUN, "args": []})
        return [one for one in found if one[0] in ("serious", "critical")]

    def test_nothing_serious(self):
        for listener in "data", "control":
            for theme in "light", "dark":
                with self.subTest(listener, theme=theme):
                    self.browser.open(self.server.addresses[listener])
                    self.browser.wait("document.querySelectorAll('#targets input').length")
                    self.browser.run("setTheme(arguments[0]); document.getElementById('run').click();", theme)
                    self.browser.wait("document.getElementById('stop').disabled && document.querySelector('.column')")
                    self.browser.run("for (const one of document.querySelectorAll('details')) one.open = true;")
                    self.assertEqual(self.faults(), [])

    def test_a_fault_would_be_found(self):
        self.browser.open(self.server.addresses["data"])
        self.browser.wait("document.querySelectorAll('#targets input').length")
        self.browser.run("document.body.append(document.createElement('textarea'))")
        self.assertIn("label", [name for _, name, _ in self.faults()])


if __name__ == "__main__":
    unittest.main()
