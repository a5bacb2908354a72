"""Two hosts on one machine: network namespaces joined by a veth pair, Open MPI over TCP between them.

Each has a network, a host name and a directory for index caches of its own."""
import os, pathlib, subprocess, tempfile

SUBNET = "10.77.0"
HOSTS = [f"{SUBNET}.1", f"{SUBNET}.2"]


def sh(*words, check=True):
    done = subprocess.run(words, capture_output=True, text=True)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


class Network:
    """Two namespaces of this process's name, and the script that runs a command in one of them.

    `rate`: what the link between them is held to, as tc writes it ("1gbit"); None: what the machine gives.
    `parts_cores`: each has half of this machine's cores; else all."""

    def __init__(self, rate=None, parts_cores=False):
        self.rate = rate
        self.names = [f"cambium{os.getpid()}-{i}" for i in range(2)]
        self.temporary = tempfile.TemporaryDirectory(prefix="cambium-hosts-")
        self.cache = pathlib.Path(self.temporary.name) / "cache"
        self.cache.mkdir()
        self.enter = pathlib.Path(self.temporary.name) / "enter"
        cores = sorted(os.sched_getaffinity(0))
        half = len(cores) // 2
        parts = [cores[:half], cores[half:]] if parts_cores and half else [cores, cores]
        lists = [",".join(map(str, part)) for part in parts]
        spaces = "\n".join(f"    {address}) space={name} cores={part} ;;" for address, name, part in zip(HOSTS, self.names, lists))
        # Called by Open MPI as `enter HOST COMMAND...`, as it would call ssh.
        self.enter.write_text(f"""#!/bin/bash
case $1 in
{spaces}
    *) echo "no host $1" >&2; exit 1 ;;
esac
shift
exec taskset -c $cores ip netns exec $space unshare --uts --mount sh -c 'hostname {SUBNET.replace(".", "-")}-${{0##*-}} && mount -t tmpfs cache {self.cache} && eval "$*"' $space "$@"
""")
        self.enter.chmod(0o755)

    def open(self):
        a, b = self.names
        for name in self.names:
            sh("ip", "netns", "add", name)
        sh("ip", "link", "add", "veth0", "netns", a, "type", "veth", "peer", "name", "veth0", "netns", b)
        for name, address in zip(self.names, HOSTS):
            sh("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "veth0")
            sh("ip", "-n", name, "link", "set", "lo", "up")
            sh("ip", "-n", name, "link", "set", "veth0", "up")
            if self.rate:
                sh("tc", "-n", name, "qdisc", "add", "dev", "veth0", "root", "tbf", "rate", self.rate,
                   "burst", "256kb", "latency", "50ms")
        said = sh(str(self.enter), HOSTS[1], "hostname")
        if not said.strip().endswith("-1"):
            raise RuntimeError(f"a host name of its own cannot be given: {said}")

    def close(self):
        for name in self.names:
            sh("ip", "netns", "del", name, check=False)

    def sent(self):
        """Bytes that have left the first host."""
        return int(sh(str(self.enter), HOSTS[0], "cat", "/sys/class/net/veth0/statistics/tx_bytes"))

    def launcher(self, ranks_a_host, mpirun):
        subnet = f"{SUBNET}.0/24"
        mca = {"plm_rsh_agent": str(self.enter), "btl": "tcp,vader,self", "btl_tcp_if_include": subnet, "oob_tcp_if_include": subnet}
        return [str(self.enter), HOSTS[0], *mpirun, *(w for k, v in mca.items() for w in ("--mca", k, v)),
                "-H", ",".join(f"{host}:{ranks_a_host}" for host in HOSTS),
                *(["-x", "OMP_WAIT_POLICY"] if "OMP_WAIT_POLICY" in os.environ else [])]
