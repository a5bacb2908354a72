"""The page at / in Chromium: columns side by side, an adapter replaced, and that what a model writes never becomes part of
the page."""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from browser_support import CONTROL, ENTER, ESCAPE, SPACE, TAB, Browser, needs_chromium
from model_support import write_reciting_model
from serve_support import PATIENCE, Server, write_prompt

HOSTILE = """<img src=x onerror="document.title='owned'"><script>document.title='owned'</script> and no more. """
NAME = "<img src=x onerror=\"document.title='owned'\">"  # of the base
WRITTEN = "Object.fromEntries([...document.querySelectorAll('.column')].map(c => [c.dataset.model, c.querySelector('.written')?.textContent]))"
IDLE = "document.getElementById('stop').disabled && document.querySelector('.column')"


@needs_chromium
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

    def test_reasoning_and_calls_are_folded(self):
        self.open("data")
        self.choose(NAME)
        self.write(tokens=1)
        self.browser.run("""const written = document.querySelector('.written');
            foldDelta(written, {reasoning_content: 'Hm '}); foldDelta(written, {reasoning_content: '<b>!'});
            foldDelta(written, {tool_calls: [{index: 0, function: {name: 'f', arguments: ''}}]});
            foldDelta(written, {tool_calls: [{index: 0, function: {arguments: '{}'}}]});""")
        parts = self.browser.run("return [...document.querySelectorAll('.folded')].map(d => [d.open, d.children[0].textContent, d.children[1].textContent])")
        self.assertEqual(parts, [[False, "Reasoning", "Hm <b>!"], [False, "Call of f", "{}"]])
        self.check_is_whole()

    def test_it_fits_a_phone(self):
        """No part is wider than the screen: before and after answers, in both modes, with everything open."""
        self.addCleanup(self.browser.resize)
        self.addCleanup(self.browser.log)  # the base has no template, and a refusal must fit, too
        for width in (390, 320):
            self.browser.resize(width)
            for listener, mode in (("data", "completion"), ("data", "chat"), ("control", "completion"), ("control", "chat")):
                with self.subTest(width=width, listener=listener, mode=mode):
                    self.open(listener)
                    self.browser.run("document.querySelector('input[value=' + arguments[0] + ']').click()", mode)
                    self.choose(NAME, "one", "two", "three")
                    self.assertEqual(self.browser.run("return document.documentElement.scrollWidth"), width)
                    self.write()
                    self.browser.run("for (const part of document.querySelectorAll('details')) part.open = true")
                    self.assertEqual(self.browser.run("return document.documentElement.scrollWidth"), width)

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
    def test_the_last_request_is_a_command_and_a_program(self):
        self.open("data")
        self.choose(NAME)
        self.browser.run("""document.getElementById('prompt').value = "'";
            document.getElementById('temperature').value = 0;
            document.getElementById('max_tokens').value = 30;
            document.getElementById('run').click();""")
        self.browser.wait(IDLE)
        done = subprocess.run(["sh", "-c", self.browser.run("return document.getElementById('curl').textContent")], capture_output=True, timeout=PATIENCE)
        self.assertEqual(json.loads(done.stdout)["choices"][0]["text"], self.text[:30], done.stderr)
        program = self.browser.run("return document.getElementById('python').textContent")
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(done.stdout, self.text[:30] + "\n", done.stderr)

    def test_adapters_are_stacked_in_a_column(self):
        self.open("data")
        self.choose(NAME, "one", "two")
        self.browser.run("document.getElementById('stacked').click()")
        self.assertEqual(self.write(), {NAME: self.text[:60], "one + two": self.text[3:63]})  # the virtual tokens of both
        self.check_is_whole()

    def test_unlikely_tokens_are_shaded(self):
        self.open("data")
        self.choose(NAME)
        self.browser.run("document.getElementById('shaded').click()")
        self.assertEqual(self.write(), {NAME: self.text[:60]})
        pieces = self.browser.run("return [...document.querySelectorAll('.piece')].map(p => [p.textContent, p.dataset.shade, p.title])")
        self.assertEqual("".join(text for text, _, _ in pieces), self.text[:60])
        for _, shade, title in pieces:  # it recites
            self.assertEqual((shade, title.split()[0]), ("0", "probability"))
            self.assertGreater(float(title.split()[1]), 0.5)
        shades = "return [-0.1, -1, -2, -4, -9].map(l => makePiece('a', { token_logprobs: [l] }).dataset.shade)"
        self.assertEqual(self.browser.run(shades), ["0", "1", "2", "3", "4"])
        self.check_is_whole()

    def test_markdown_becomes_elements_of_text_alone(self):
        self.open("data")
        text = "# A *b*\n- one `<i>`\n- **two**\n3. three\n> said\n\nfirst\nsecond <img src=x>\n```js\nalert(1)\n# no\n```\n[l](javascript:alert(1))"
        shown = self.browser.run("""const shown = document.createElement('div');
            shown.append(...markdown(arguments[0]));
            return [shown.innerHTML, [...shown.querySelectorAll('*')].every(e => !e.attributes.length)];""", text)
        self.assertEqual(shown, ["<h3>A <em>b</em></h3><ul><li>one <code>&lt;i&gt;</code></li><li><strong>two</strong></li></ul>"
                                 "<ol><li>three</li></ol><blockquote><div>said</div></blockquote><p>first\nsecond &lt;img src=x&gt;</p>"
                                 "<pre><code>alert(1)\n# no\n</code></pre><p>[l](javascript:alert(1))</p>", True])
        self.check_is_whole()

    def test_tab_reaches_all_that_can_be_used(self):
        self.open("data")
        self.browser.wait("document.querySelectorAll('#targets input').length === 4")
        wanted = self.browser.run("""document.getElementById('prompt').focus();
            return [...document.querySelectorAll('button, input, textarea, summary, [tabindex]')]
                .filter(e => !e.disabled && e.checkVisibility() && !(e.type === 'radio' && !e.checked))
                .map((e, i) => e.dataset.place = String(i));""")
        reached = set()
        for _ in range(len(wanted) + 6):
            place = self.browser.run("return document.activeElement.dataset.place || ''")
            reached.add(place)
            if self.browser.run("return document.activeElement.id") == "shaded":
                self.browser.press(SPACE)
            self.browser.press(TAB)
        self.assertEqual(set(wanted) - reached, set())
        self.assertTrue(self.browser.run("return document.getElementById('shaded').checked"))

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
