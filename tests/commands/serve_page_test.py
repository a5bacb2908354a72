"""The page at / in Chromium: columns side by side, an adapter replaced, and that what a model writes never becomes part of
the page. The browser is driven over WebDriver, which is HTTP and JSON (https://www.w3.org/TR/webdriver2)."""
import http.client
import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from model_support import write_reciting_model
from serve_support import PATIENCE, Server, write_prompt

HOSTILE = """<img src=x onerror="document.title='owned'"><script>document.title='owned'</script> and no more. """
NAME = "<img src=x onerror=\"document.title='owned'\">"  # of the base


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


CONTROL, ENTER, ESCAPE = "\ue009", "\ue007", "\ue00c"
WRITTEN = "Object.fromEntries([...document.querySelectorAll('.column')].map(c => [c.dataset.model, c.querySelector('.written')?.textContent]))"
IDLE = "document.getElementById('stop').disabled && document.querySelector('.column')"


@unittest.skipUnless(shutil.which("chromium") and shutil.which("chromedriver"), "chromium or its driver is not found")
class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(prefix="cambium-test-")
        cls.addClassCleanup(cls.temporary.cleanup)
        root = pathlib.Path(cls.temporary.name)
        cls.text = HOSTILE * 3
        write_reciting_model(root / "base", cls.text.encode(), positions=len(cls.text) + 30)
        for name, tokens in (("one", 1), ("two", 2), ("three", 3)):
            write_prompt(root / "adapters" / name, tokens)
        cls.server = cls.enterClassContext(Server("--model-name", NAME, "--adapter-root", root / "adapters", model=root / "base"))
        cls.browser = Browser()
        cls.addClassCleanup(cls.browser.close)

    def open(self, listener="control"):
        self.browser.open(self.server.addresses[listener])
        self.browser.wait("document.querySelectorAll('#targets input').length === 4")

    def choose(self, *names):
        self.browser.run("for (const box of document.querySelectorAll('#targets input'))"
                         " if (box.checked !== arguments[0].includes(box.value)) box.click();", names)

    def write(self, tokens=60):
        self.browser.run("""document.getElementById('prompt').value = 'a';
            document.getElementById('temperature').value = 0;
            document.getElementById('max_tokens').value = arguments[0];
            document.getElementById('run').click();""", tokens)
        self.browser.wait(IDLE)
        return self.browser.run("return " + WRITTEN)

    def check_is_whole(self):
        """Nothing of what came is an element, and no rule was broken."""
        self.assertEqual(self.browser.run("return document.title"), "Cambium")
        self.assertEqual(self.browser.run("return document.images.length + document.scripts.length"), 1)
        self.assertEqual(self.browser.log(), [])  # nor was anything asked for that is not there

    def test_the_base_and_adapters_write_side_by_side(self):
        self.open()
        self.choose(NAME, "one", "two")
        self.assertEqual(self.write(), {NAME: self.text[:60], "one": self.text[1:61], "two": self.text[2:62]})
        figures = self.browser.run("return [...document.querySelectorAll('[data-model=one] footer b')].map(b => b.textContent)")
        self.assertEqual((figures[0], figures[3]), ("60", "length"))
        self.assertGreater(float(figures[1]), 0)
        lefts = self.browser.run("return [...document.querySelectorAll('.column')].map(c => c.getBoundingClientRect().left)")
        self.assertEqual(len(set(lefts)), 3)
        self.browser.run("navigator.clipboard.writeText = (text) => { window.copied = text; }; document.querySelector('[data-model=one] button').click()")
        self.assertEqual(self.browser.run("return window.copied"), self.text[1:61])
        self.check_is_whole()

    def test_what_a_model_writes_is_text(self):
        self.open("data")
        self.choose(NAME)
        self.assertEqual(self.write(tokens=len(self.text)), {NAME: self.text})
        self.check_is_whole()

    def test_an_adapter_is_replaced(self):
        self.open()
        self.browser.wait("document.querySelector('#adapters tr[data-adapter=one]')")
        for directory, skipped in (("three", 3), ("one", 1)):
            self.browser.run("""const row = document.querySelector('#adapters tr[data-adapter=one]');
                row.querySelector('input').value = arguments[0];
                document.getElementById('outcome').textContent = '';
                row.querySelector('button').click();""", directory)
            outcome = self.browser.wait("/done|:/.test(document.getElementById('outcome').textContent) && document.getElementById('outcome').textContent")
            self.assertEqual(outcome, "Replace one: done.")
            self.choose("one", "two")
            self.assertEqual(self.write(), {"one": self.text[skipped:skipped + 60], "two": self.text[2:62]})
        self.check_is_whole()

    def test_an_adapter_is_loaded_and_unloaded(self):
        self.open()
        self.browser.run("""document.getElementById('load_name').value = 'again';
            document.getElementById('load_path').value = 'two';
            document.querySelector('#load button').click();""")
        self.browser.wait("document.querySelector('#adapters tr[data-adapter=again]')")
        self.choose("again")
        self.assertEqual(self.write(), {"again": self.text[2:62]})
        self.browser.run("document.querySelectorAll('#adapters tr[data-adapter=again] button')[1].click()")
        self.browser.wait("!document.querySelector('#adapters tr[data-adapter=again]')")
        self.browser.run("""document.getElementById('load_name').value = 'none';
            document.getElementById('load_path').value = 'nowhere';
            document.querySelector('#load button').click();""")
        outcome = self.browser.wait("/^Load none: /.test(document.getElementById('outcome').textContent) && document.getElementById('outcome').textContent")
        self.assertNotIn("done", outcome)
        self.assertEqual(len(self.browser.log()), 1)  # the refusal

    def test_control_and_figures_are_where_they_are_offered(self):
        self.open()
        self.browser.wait("!document.getElementById('control').hidden && !document.getElementById('figures').hidden")
        self.browser.wait("document.querySelector('[data-figure=\"Pages held\"]').textContent === '0 %'")
        self.open("data")
        self.browser.wait("document.getElementById('state').dataset.state === 'ready'")
        self.assertEqual(self.browser.run("return [document.getElementById('control').hidden, document.getElementById('figures').hidden]"),
                         [True, True])

    def test_it_asks_for_nothing_that_is_not_there(self):
        """On either port, with a key and without one: the console says nothing."""
        keys = pathlib.Path(self.temporary.name) / "keys"
        keys.write_text("ann sk-ann\n")
        for words in (), ("--api-key-file", keys, "--control-key-file", keys), ("--metrics-on-data",), ("--metrics-on-data", "--metrics-key-file", keys):
            with Server(*words) as server:
                for listener in "data", "control":
                    self.browser.open(server.addresses[listener])
                    self.browser.wait("document.getElementById('state').dataset.state === 'ready' && document.querySelector('#targets *')")
                    if "--api-key-file" in words:
                        self.assertEqual(self.browser.run("return document.getElementById('targets').textContent"), "This server wants a key.")
                        self.browser.run("""document.getElementById('key').value = 'sk-ann';
                            document.getElementById('key').dispatchEvent(new Event('change'));""")
                    self.browser.wait("document.querySelector('#targets input')")
                    figures = listener == "control" or words == ("--metrics-on-data",)
                    self.browser.wait(f"document.getElementById('figures').hidden === {str(not figures).lower()}")
                    self.browser.wait(f"document.getElementById('control').hidden === {str(listener == 'data').lower()}")
                    self.browser.run("sessionStorage.clear()")
                    self.assertEqual(self.browser.log(), [], (words, listener))
                self.browser.leave()  # the page asks again and again, also a server that has ended

    def test_it_opens_in_chat_where_the_model_has_a_template(self):
        template = pathlib.Path(self.temporary.name) / "chat.jinja"
        template.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
        with Server("--chat-template", template, model=pathlib.Path(self.temporary.name) / "base") as server:
            self.browser.open(server.addresses["data"])
            self.browser.wait("document.querySelectorAll('#targets input').length === 1")
            state = "return [document.querySelector('input[value=chat]').checked, document.getElementById('prompt').value, document.getElementById('system_field').hidden]"
            self.assertEqual(self.browser.run(state), [True, "", False])
            self.browser.run("const send = window.fetch; window.fetch = (...words) => { if (words[1].body) window.asked = words[1].body; return send(...words); }")
            for system, skipped in ("", 0), ("s", 1):  # a byte of the prompt more is a byte of the text less
                self.browser.run("""document.getElementById('clear').click();
                    document.getElementById('system').value = arguments[0];
                    document.getElementById('prompt').value = 'a';
                    document.getElementById('temperature').value = 2;
                    document.getElementById('top_k').value = 1;
                    document.getElementById('max_tokens').value = 20;
                    document.getElementById('run').click();""", system)
                self.browser.wait(IDLE)
                self.assertEqual(self.browser.run("return document.querySelector('.turn[data-role=assistant]').textContent"), self.text[skipped:skipped + 20])
                self.assertEqual(self.browser.run(state), [True, "", False])
                self.assertEqual(json.loads(self.browser.run("return window.asked"))["top_k"], 1)
            self.browser.run("document.querySelector('input[value=completion]').click()")
            self.assertEqual(self.browser.run("return [document.getElementById('system_field').hidden, document.getElementById('prompt').value !== '']"), [True, True])
            self.browser.leave()
        self.open()
        self.assertEqual(self.browser.run(state)[0], False)

    @unittest.skipUnless(shutil.which("curl"), "curl is not found")
    def test_the_last_request_is_a_command(self):
        self.open("data")
        self.choose(NAME)
        self.browser.run("""document.getElementById('prompt').value = "'";
            document.getElementById('temperature').value = 0;
            document.getElementById('max_tokens').value = 30;
            document.getElementById('run').click();""")
        self.browser.wait(IDLE)
        done = subprocess.run(["sh", "-c", self.browser.run("return document.getElementById('curl').textContent")], capture_output=True, timeout=PATIENCE)
        self.assertEqual(json.loads(done.stdout)["choices"][0]["text"], self.text[:30], done.stderr)

    def test_keys_are_enough(self):
        self.open("data")
        self.choose(NAME)
        self.browser.run("document.getElementById('max_tokens').value = 60; document.getElementById('prompt').focus()")
        self.browser.press(CONTROL, ENTER)
        self.browser.wait("document.querySelector('.written')?.textContent.length")
        self.browser.press(ESCAPE)
        self.browser.wait(IDLE)

    def test_the_browser_is_told_to_run_nothing_else(self):
        answer = self.server.ask("GET", "/")
        policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
        self.assertEqual((policy["default-src"], policy["frame-ancestors"], policy["connect-src"]), ("'none'", "'none'", "'self'"))
        for tag in ("script", "style"):
            self.assertRegex(policy[tag + "-src"], r"^'sha256-[A-Za-z0-9+/]{43}='$")
        self.assertEqual(answer.headers["content-type"], "text/html; charset=utf-8")
        self.assertNotRegex(answer.body.decode(), r"(?i)(src|href)=[\"']?https?:|innerHTML|outerHTML|insertAdjacentHTML|document\.write")
        self.assertEqual(self.browser.run("return performance.getEntriesByType('resource').every(e => new URL(e.name).origin === location.origin)"), True)


if __name__ == "__main__":
    unittest.main()
