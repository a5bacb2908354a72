"""A server whose ranks are processes of mpirun: each of them can be found, and rank 0 learns why it ends."""
import os
import pathlib
import signal
import tempfile
import time

from mpi_support import MPIRUN, rank_processes
from serve_support import PATIENCE, Server


class RankServer(Server):
    def __init__(self, count, *words, model, **more):
        self.directory = tempfile.TemporaryDirectory()  # several mpirun that begin at once trip over each other's
        self.link = pathlib.Path(self.directory.name) / "model"  # a name of its own, to be found by
        self.link.symlink_to(model)
        self.count, self.ranks = count, {}
        super().__init__(*words, model=self.link, launcher=(*MPIRUN, "-n", count), env={"TMPDIR": self.directory.name}, **more)

    def find_ranks(self):
        end = time.monotonic() + PATIENCE
        while len(self.ranks) != self.count:
            assert time.monotonic() < end, self.ranks
            self.ranks = rank_processes(str(self.link))

    def await_ready(self):
        super().await_ready()
        self.find_ranks()

    def signal(self, number):
        """mpirun would kill all ranks a second after it was told to end."""
        os.kill(self.ranks[0], number)

    def __exit__(self, kind, *rest):
        try:
            if self.process.poll() is None and not kind:
                self.stop()
            super().__exit__(kind, *rest)
        finally:
            self.directory.cleanup()
