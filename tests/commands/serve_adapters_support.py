"""A root of adapters and a server on it, for tests that change adapters."""
import pathlib
import tempfile
import unittest

from requests_support import BASE
from serve_support import Server
from serve_swap_support import write_contents


class AdapterRoot(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.top = pathlib.Path(temporary.name)
        self.root = self.top / "root"
        self.root.mkdir()
        write_contents(self.root)

    def serve(self, *words, root=None, model=BASE):
        return Server("--adapter-root", root or self.root, *words, model=model)

    def change(self, server, method, name, body=None, status=200):
        path = "/v1/adapters" if method == "POST" else f"/v1/adapters/{name}"
        answer = server.ask(method, path, {"name": name} | body if method == "POST" else body, listener="control")
        self.assertEqual(answer.status, status, (name, body, answer.body))
        return answer.json

    def states(self, server):
        return {a["name"]: a for a in server.ask("GET", "/v1/adapters", listener="control").json["adapters"]}
