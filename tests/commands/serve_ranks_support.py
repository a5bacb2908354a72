"""A server whose ranks are processes of mpirun: each of them can be found, and what ends it is told to rank 0."""
import os
import pathlib
import signal
import tempfile

from mpi_support import MPIRUN, rank_processes
from serve_support import Server


class RankServer(Server):
    def __init__(self, count, *words, model, **more):
        self.directory = tempfile.TemporaryDirectory()  # several mpirun that begin at once trip over each other's
        link = pathlib.Path(self.directory.name) / "model"  # a name of its own, to be found by
        link.symlink_to(model)
        self.count, self.link = count, link
        super().__init__(*words, model=link, launcher=(*MPIRUN, "-n", count), env={"TMPDIR": self.directory.name}, **more)
        self.ranks = self.find()
        assert len(self.ranks) == count, self.ranks

    def find(self):
        return rank_processes(str(self.link))

    def signal(self, number):
        """mpirun would kill all ranks a second after it was told to end."""
        os.kill(self.ranks[0], number)

    def __exit__(self, kind, *rest):
        try:
            if self.process.poll() is None and not kind:
                self.signal(signal.SIGTERM)
                self.wait()
            return super().__exit__(kind, *rest)
        finally:
            self.directory.cleanup()
