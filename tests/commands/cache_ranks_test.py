"""Index caches where hosts share no file system: the first rank of each host builds its own."""
import shutil
import subprocess
import unittest

from mpi_support import MPIRUN, needs_mpirun
from pretrain_support import Run, assert_same_run

ENTER = """#!/bin/sh
# Two ranks a host, with a name and a directory of caches of its own.
host=$((OMPI_COMM_WORLD_RANK / 2))
exec unshare --uts --mount sh -c 'hostname node$0 && mount --bind "$1/maps$0" "$1/maps" && shift && exec "$@"' $host {} "$@"
"""


def can_unshare():
    return shutil.which("unshare") and not subprocess.run(["unshare", "--uts", "--mount", "true"], capture_output=True).returncode


@needs_mpirun
@unittest.skipUnless(can_unshare(), "this user cannot make hosts of name spaces")
class Caches(unittest.TestCase):
    def test_each_host_builds_its_own(self):
        run = Run()
        run.run("one")
        for name in ("maps", "maps0", "maps1"):
            (run.directory / name).mkdir()
        enter = run.directory / "enter"
        enter.write_text(ENTER.format(run.directory))
        enter.chmod(0o755)
        command = run.command("hosts", data__data_cache_path=run.directory / "maps", train__micro_batch_size=1)
        done = subprocess.run([*MPIRUN, "-n", "4", enter, *command], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        for host in range(2):
            self.assertIn(f"on node{host}", done.stderr)
        assert_same_run(self, run.records("hosts"), run.records("one"))
        caches = [{p.name: p.read_bytes() for p in (run.directory / f"maps{host}").iterdir()} for host in range(2)]
        self.assertGreater(len(caches[0]), 0)
        self.assertEqual(caches[0], caches[1])
        self.assertTrue(all(name.endswith(".idxmap") for name in caches[0]), caches[0].keys())
        self.assertEqual(list((run.directory / "maps").iterdir()), [])


if __name__ == "__main__":
    unittest.main()
