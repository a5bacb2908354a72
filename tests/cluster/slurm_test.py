"""tools/slurm/pretrain.sbatch and `cambium serve` under a Slurm that this test starts: munge, slurmctld, and a slurmd
for each of two nodes. All run on this machine, with their own configuration, key, ports and state."""
import contextlib, http.client, os, pathlib, re, shlex, signal, socket, subprocess, tempfile, time, unittest

from cluster_support import need_programs, need_root, skip
from model_support import TINY
from mpi_support import is_held, rank_processes, wait_for_end
from pretrain_support import CAMBIUM, SOURCE, Run, timeless

NODES = ["node1", "node2"]
PROGRAMS = ["munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue"]
CONFIGURATION = """
ClusterName=cambium
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={root}/munge.socket
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
TmpFS={root}/tmp-%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
MpiDefault=pmix
ReturnToService=2
KillWait=30
MinJobAge=3600
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={nodes} NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs={cores} RealMemory=1000
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=60 State=UP
PartitionName=abrupt Nodes=ALL PriorityTier=1 PreemptMode=REQUEUE GraceTime=0 State=UP
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF State=UP
"""


def free_ports(count):
    """Consecutive ports that nobody listens on."""
    for first in range(20000 + os.getpid() % 5000, 30000, count):
        sockets = []
        try:
            for port in range(first, first + count):
                sockets.append(socket.socket())
                sockets[-1].bind(("127.0.0.1", port))
            return first
        except OSError:
            continue
        finally:
            for s in sockets:
                s.close()
    raise RuntimeError("no free ports")


class Slurm:
    def __init__(self):
        self.temporary = tempfile.TemporaryDirectory(prefix="cambium-slurm-", ignore_cleanup_errors=True)
        self.root = pathlib.Path(self.temporary.name)
        self.root.chmod(0o755)
        self.file = self.root / "slurm.conf"
        self.environment = dict(os.environ, SLURM_CONF=str(self.file), PATH=os.environ["PATH"] + ":/usr/sbin:/sbin", CAMBIUM=CAMBIUM)
        # Both nodes are this machine: they must not meet in its shared memory.
        self.environment.update(OMPI_MCA_btl="tcp,self", OMPI_MCA_btl_tcp_if_include="lo", OMPI_MCA_mpi_yield_when_idle="1")
        for name in list(self.environment):
            if name.startswith(("SLURM_", "SBATCH_", "PMI")) and name != "SLURM_CONF":
                del self.environment[name]  # of a job that this test may itself be in

    def sh(self, *words, check=True):
        done = subprocess.run(words, capture_output=True, text=True, env=self.environment, cwd=self.root, timeout=60)
        if check and done.returncode:
            raise RuntimeError(f"{' '.join(map(str, words))}: {(done.stderr + done.stdout).strip()}")
        return done.stdout.strip()

    def open(self):
        port = free_ports(1 + len(NODES))
        for name in ("state", *(f"{kind}-{node}" for kind in ("spool", "tmp") for node in NODES)):
            (self.root / name).mkdir()
        values = dict(host=socket.gethostname().split(".")[0], root=self.root, controller=port, first=port + 1, last=port + len(NODES),
                      nodes=",".join(NODES), cores=os.cpu_count())
        self.file.write_text(CONFIGURATION.format(**values))
        key = self.root / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        self.sh("munged", *(f"--{k}={self.root / v}" for k, v in (("socket", "munge.socket"), ("key-file", key.name), ("log-file", "munged.log"),
                                                                  ("pid-file", "munged.pid"), ("seed-file", "munged.seed"))))
        self.sh("slurmctld", "-f", self.file)
        for node in NODES:
            self.sh("slurmd", "-N", node, "-f", self.file)
        end = time.monotonic() + 60
        while self.sh("sinfo", "-h", "-N", "-p", "low", "-o", "%t", check=False).split() != ["idle"] * len(NODES):
            if time.monotonic() > end:
                raise RuntimeError(f"its nodes do not come up: {self.log()}")
            time.sleep(0.2)

    def log(self):
        lines = [line for path in self.root.glob("slurm*.log") for line in path.read_text().splitlines() if "error" in line or "fatal" in line]
        return lines[-1] if lines else "no error in the logs"

    def close(self):
        self.sh("scancel", "--user=root", "--signal=KILL", check=False)
        self.sh("scancel", "--user=root", check=False)
        end = time.monotonic() + 20
        while self.sh("squeue", "-h", check=False) and time.monotonic() < end:
            time.sleep(0.2)
        names = ["slurmctld", *(f"slurmd-{node}" for node in NODES), "munged"]  # munge is the last that is needed
        for name in names:
            file = self.root / f"{name}.pid"
            if file.exists():
                pid = int(file.read_text())
                try:
                    os.kill(pid, signal.SIGTERM)
                except ProcessLookupError:
                    continue
                wait_for_end([pid], 20)

    def submit(self, *words):
        return int(re.search(r"\d+$", self.sh("sbatch", *map(str, words)))[0])

    def job(self, job):
        """A job's state, how often it was started again, and why it is in this state."""
        fields = dict(f.split("=", 1) for f in self.sh("scontrol", "--oneliner", "show", "job", str(job)).split() if "=" in f)
        return fields["JobState"], int(fields["Restarts"]), fields["Reason"]

    def state(self, job):
        return self.job(job)[0]

    def output(self, job):
        file = self.root / f"cambium-{job}.out"
        return file.read_text() if file.exists() else ""

    def wait(self, job, condition, seconds=300):
        """Waits until the condition holds. Two such waits that are in vain end before CTest ends the test."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"waited in vain: job {job} is {self.job(job)}\n{self.output(job)}\n{self.log()}")
            time.sleep(0.05)


slurm = None


def setUpModule():
    global slurm
    need_root()
    need_programs(PROGRAMS, "--cluster")
    slurm = Slurm()
    try:
        slurm.open()
        slurm.sh("srun", "--mpi=pmix", "-N2", "-n2", "true")
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        slurm.close()
        skip(f"Slurm does not run on this machine ({error})")


def tearDownModule():
    slurm.close()


class Batch(unittest.TestCase):
    # It takes seconds, so that a test finds it at work.
    ITERATIONS = 150
    KEYS = dict(model__hidden_size=128, model__num_layers=4, data__seq_length=64, train__train_iters=ITERATIONS, train__micro_batch_size=4,
                train__global_batch_size=8, checkpoint__save_interval=30, log__log_interval=50, parallel__use_distributed_optimizer="true")

    @classmethod
    def setUpClass(cls):
        cls.run_ = Run()
        cls.run_.run("whole", ["--ranks", "2"], **cls.KEYS)

    def submit(self, name, partition="low"):
        arguments = [a for a in self.run_.command(name, **self.KEYS)[2:] if not a.startswith("--checkpoint.load")]
        return slurm.submit(f"--partition={partition}", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1", "--overcommit", "--time=20",
                            SOURCE / "tools/slurm/pretrain.sbatch", *arguments)

    def has_trained(self, name, iterations):
        metrics = self.run_.directory / f"{name}.jsonl"
        return metrics.exists() and metrics.read_text().count("\n") >= iterations

    def finished(self, job, name):
        def has_come_back():
            # Slurm waits two minutes; the test only until the nodes have cleared away what the first start left.
            if slurm.job(job)[2] == "BeginTime" and not list(slurm.root.glob("spool-*/*pmix*")):
                slurm.sh("scontrol", "update", f"jobid={job}", "StartTime=now")
            return "start 2, 2 ranks on node[1-2]" in slurm.output(job)

        slurm.wait(job, has_come_back)
        slurm.wait(job, lambda: slurm.state(job) in ("COMPLETED", "FAILED", "TIMEOUT"))
        output = slurm.output(job)
        self.assertEqual(slurm.job(job)[:2], ("COMPLETED", 1), output)
        self.assertIn(f"pretrain.sbatch: all {self.ITERATIONS} iterations are done", output)
        self.assertEqual(timeless(self.run_.records(name)), timeless(self.run_.records("whole")))
        return output

    def ranks(self, name):
        ranks = rank_processes(f"--checkpoint.save={self.run_.directory}/{name}", "SLURM_PROCID")
        self.assertEqual(sorted(ranks), [0, 1])
        return ranks

    def preempt(self, name, partition):
        """The job is held until Slurm tells it to end, so it cannot end before, however late the scheduler comes."""
        job = self.submit(name, partition)
        slurm.wait(job, lambda: self.has_trained(name, 2))
        ranks = self.ranks(name).values()
        for rank in ranks:
            os.kill(rank, signal.SIGSTOP)
        slurm.wait(job, lambda: all(map(is_held, ranks)))
        other = slurm.submit("--partition=high", "--nodes=2", "--exclusive", "--output=other.out", "--wrap=sleep 1")
        slurm.wait(job, lambda: not any(map(is_held, ranks)))
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):  # Slurm wakes them itself
                os.kill(rank, signal.SIGCONT)
        slurm.wait(job, lambda: slurm.job(job)[1] == 1)
        output = self.finished(job, name)
        self.assertEqual(slurm.state(other), "COMPLETED")
        self.assertIn("stopped by SIGTERM", output)
        saved = int(re.search(r"stopped by SIGTERM after iteration (\d+)", output)[1])
        self.assertLess(saved, self.ITERATIONS)
        self.assertIn(f"resuming from {self.run_.directory}/{name}/iter_{saved:07d} ", output)
        return output, saved

    def test_a_preempted_job_comes_back_and_ends_as_if_it_had_not_been(self):
        output, saved = self.preempt("preempted", "low")
        self.assertIn(f"saved at iteration {saved}; back into the queue", output)

    def test_a_job_that_is_preempted_without_grace_has_killwait_for_its_save(self):
        self.preempt("abrupt", "abrupt")

    def test_a_killed_rank_fails_the_job_which_goes_on_when_it_is_requeued(self):
        job = self.submit("killed")
        slurm.wait(job, lambda: len(self.run_.checkpoints("killed")) >= 1)
        ranks = self.ranks("killed")
        os.kill(ranks[1], signal.SIGKILL)
        self.assertEqual(wait_for_end(list(ranks.values()), 60), [])
        slurm.wait(job, lambda: slurm.state(job) == "FAILED")
        last = int(self.run_.checkpoints("killed")[-1].removeprefix("iter_"))
        self.assertIn("rank 1 on node2 ended by signal 9", slurm.output(job))
        self.assertIn(f"failed with status 137; 'scontrol requeue {job}' goes on from iteration {last}\n", slurm.output(job))
        slurm.sh("scontrol", "requeue", str(job))
        output = self.finished(job, "killed")
        self.assertIn(f"resuming from {self.run_.directory}/killed/iter_{last:07d} ", output)

    def test_what_cannot_be_is_refused_before_there_are_ranks(self):
        arguments = [a for a in self.run_.command("refused", **self.KEYS)[2:] if not a.startswith("--checkpoint")]
        for more, said in (([], "checkpoint.save is not given"), (["--parallel.tensor_model_parallel_size=4"], "needs 4 ranks")):
            job = slurm.submit("--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=1", "--overcommit", SOURCE / "tools/slurm/pretrain.sbatch",
                               *arguments, *more)
            slurm.wait(job, lambda: slurm.state(job) == "FAILED")
            self.assertIn(said, slurm.output(job))
            self.assertNotIn("srun", slurm.output(job))


class Serving(unittest.TestCase):
    def test_the_line_of_the_documents_serves_and_drains(self):
        line = re.search(r"(?m)^sbatch ((?:.*\\\n)*.*)$", (SOURCE / "docs/operating.md").read_text())[1].replace("\\\n", "")
        for there, here in (("cambium serve", f"{CAMBIUM} serve --control none"), ("out/gpt", str(TINY)), ("0.0.0.0:8000", "0.0.0.0:0"),
                            (" keys ", f" {slurm.root}/keys ")):
            self.assertIn(there, line)
            line = line.replace(there, here)
        (slurm.root / "keys").write_text("alice sk-alice\n")
        job = slurm.submit("--output=cambium-%j.out", "--overcommit", *shlex.split(line))
        slurm.wait(job, lambda: '"event":"ready"' in slurm.output(job))
        port = re.search(r'"listen":"0.0.0.0:(\d+)"', slurm.output(job))[1]
        for key, status in (("sk-alice", 200), ("sk-none", 401)):
            connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
            connection.request("POST", "/v1/completions", '{"prompt": [1, 2], "max_tokens": 4}',
                               {"content-type": "application/json", "authorization": "Bearer " + key})
            self.assertEqual(connection.getresponse().status, status)
            connection.close()
        slurm.sh("scancel", "--signal=TERM", str(job))
        slurm.wait(job, lambda: slurm.state(job) in ("COMPLETED", "FAILED", "CANCELLED"))
        self.assertEqual(slurm.state(job), "COMPLETED", slurm.output(job))
        self.assertIn(" info drain ", slurm.output(job))


if __name__ == "__main__":
    unittest.main()
