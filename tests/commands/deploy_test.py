"""The contents of deploy/. The image has the packages that the program needs and is small. The unit and the manifests
name existing options, and give a drain the time that it takes."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from model_support import CAMBIUM, SANITIZED, SOURCE, run
from package_support import closure, files_of, installed, output, setup_list

DEPLOY = SOURCE / "deploy"
CONTAINERFILE = (DEPLOY / "Containerfile").read_text()
UNIT = (DEPLOY / "cambium.service").read_text()
IMAGE_BYTES = 120_000_000
# debian:bookworm-slim as a registry has it: its packages' files, without the documents, manuals and translations that it
# leaves out, and dpkg's lists of them.
BASE_BYTES = 74_800_000
# Packages that the base has anyway.
BASE = ("libc6", "libgcc-s1", "libstdc++6", "gcc-12-base", "zlib1g", "libpcre2-8-0", "debconf", "libcrypt1")


def listed(name):
    """The words of an ARG of the Containerfile."""
    return re.search(rf'^ARG {name}="([^"]*)"', CONTAINERFILE, re.M).group(1).replace("\\\n", " ").split()


def needed_libraries():
    """The shared libraries that the program itself requests, where the loader finds them."""
    names = re.findall(r"NEEDED.*\[(.*)\]", output("readelf", "-d", CAMBIUM))
    places = dict(re.findall(r"(\S+) => (/\S+)", output("ldd", CAMBIUM)))
    return [places[name] for name in names if name in places]


def packages_of(paths):
    """The installed package of each file; dpkg may know a file by the other name of a merged directory."""
    names = {path: {name for full in (path, os.path.realpath(path)) for name in (full, full.removeprefix("/usr"))} for path in paths}
    found = output("dpkg", "-S", *sorted(set().union(*names.values())))
    owners = {place: owner.split(":")[0] for owner, place in (line.split(": ", 1) for line in found.splitlines())}
    return {path: next(owners[name] for name in places if name in owners) for path, places in names.items()}


def size_of(packages):
    """Bytes of the installed files of packages, as the slim image keeps them."""
    files = {}
    for path in files_of(packages):
        if os.path.isfile(path) and not os.path.islink(path):
            status = os.stat(path)
            files[status.st_ino] = status.st_size
    return sum(files.values())


def carried_kernels():
    """Bytes of the CUDA kernels that this build's program carries. The image's program has none."""
    return sum(path.stat().st_size for path in (pathlib.Path(CAMBIUM).parent.parent / "kernels/cuda").glob("*.fatbin"))


@unittest.skipUnless(shutil.which("dpkg-query") and shutil.which("readelf") and not SANITIZED, "no Debian system, no readelf, or another program")
class Image(unittest.TestCase):
    def test_its_packages_are_those_that_the_program_needs(self):
        packages, mpi = set(setup_list("--runtime")), {"libopenmpi3"}
        needed = set(packages_of(needed_libraries()).values()) - {"libc6"}
        self.assertEqual(needed - packages - mpi, set(), "tools/setup --runtime lacks these packages")
        self.assertEqual(packages - needed, set(), "the program needs none of these packages")
        self.assertEqual(set(setup_list("--runtime", "--mpi")) - packages, mpi | {"openmpi-bin"})
        self.assertIn('packages="$(/setup --runtime "$@" --list) $ssh"', CONTAINERFILE)

    def test_it_is_small(self):
        packages = setup_list("--runtime")
        if missing := sorted({*packages, *listed("dropped")} - installed().keys()):
            self.skipTest(f"not installed here: {' '.join(missing)}")
        with tempfile.TemporaryDirectory(prefix="cambium-test-") as directory:
            stripped = pathlib.Path(directory) / "cambium"
            subprocess.run(["strip", "-o", stripped, CAMBIUM], check=True)
            program = stripped.stat().st_size - carried_kernels()
        added, dropped = size_of(closure(packages, BASE)), size_of(listed("dropped"))
        total = BASE_BYTES + added + program - dropped
        print(f"image: {total / 1e6:.1f} MB: base {BASE_BYTES / 1e6:.1f}, packages {added / 1e6:.1f}, program {program / 1e6:.1f}, "
              f"dropped {dropped / 1e6:.1f}")
        self.assertLessEqual(total, IMAGE_BYTES)
        self.assertGreater(added, 40e6, "what oneDNN alone takes")

    def test_its_stages_are_of_debian_slim(self):
        bases = re.findall(r"^FROM (\S+)", CONTAINERFILE, re.M)
        self.assertEqual(bases, ["debian:bookworm-slim", "debian:bookworm-slim", "scratch"])
        self.assertEqual(set(re.findall(r"-D(CAMBIUM_\w+)", CONTAINERFILE)) - {"CAMBIUM_TESTS", "CAMBIUM_MPI", "CAMBIUM_CUDA"}, set())
        self.assertIn("-DCAMBIUM_CUDA=OFF", CONTAINERFILE)
        for word in re.findall(r"set -- (--\w+)", CONTAINERFILE):
            self.assertIn(f"  {word} ", output("bash", SOURCE / "tools/setup", "--help"))


def seconds(name, text):
    """A number of seconds after a name, as `--name=5`, `name: 5` or `name=5`."""
    return float(re.search(rf"{name}[=: ]+(\d+)", text).group(1))


def default(option):
    """The value of an option of serve; 0 when it is absent."""
    found = re.search(rf"--{option} .*?default\s+(\d+)", run("serve", "--help")[0].decode(), re.S)
    return float(found.group(1)) if found else 0


class Unit(unittest.TestCase):
    def test_systemd_finds_nothing_wrong(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("no systemd-analyze")
        with tempfile.TemporaryDirectory(prefix="cambium-test-") as directory:
            path = pathlib.Path(directory) / "cambium.service"
            path.write_text(UNIT.replace("/usr/local/bin/cambium", os.path.abspath(CAMBIUM)).replace("User=cambium", "User=root"))
            done = subprocess.run(["systemd-analyze", "verify", "--man=no", path], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_its_comment_names_the_page_that_describes_it(self):
        page, = re.findall(r"docs/\w+\.md", UNIT)
        self.assertIn("deploy/cambium.service", (SOURCE / page).read_text())

    def test_every_option_is_one(self):
        started = re.search(r"^ExecStart=\S+ (.*?[^\\])$", UNIT, re.M | re.S).group(1).replace("\\\n", " ").split()
        _, errors = run(*started, expect=1)  # the files are not there
        self.assertRegex(errors, "/(etc|srv)/cambium/")

    def test_a_drain_has_its_time(self):
        self.assertGreaterEqual(seconds("TimeoutStopSec", UNIT), default("drain-timeout") + default("drain-delay") + 5)


class Manifests(unittest.TestCase):
    """Checks that need no schema; tests/interop/deploy_test.py has the others."""

    def words(self, name):
        """The arguments of a manifest's containers."""
        return re.findall(r"^ +- (--?[a-z].*|serve|finetune|pretrain)$", (DEPLOY / "kubernetes" / name).read_text(), re.M)

    def test_every_option_is_one(self):
        _, errors = run(*self.words("serve.yaml"), expect=1)
        self.assertRegex(errors, "/(etc/cambium|models)/")
        _, errors = run(*self.words("finetune.yaml"), expect=1)
        self.assertIn("/train/", errors)
        _, errors = run(*self.words("pretrain.yaml")[-2:], expect=1)
        self.assertIn("/train/run.yaml", errors)

    def test_a_drain_has_its_time(self):
        text = (DEPLOY / "kubernetes/serve.yaml").read_text()
        before = float(re.search(r'command: \["sleep", "(\d+)"\]', text).group(1))
        self.assertGreaterEqual(seconds("terminationGracePeriodSeconds", text),
                                before + seconds("--drain-delay", text) + seconds("--drain-timeout", text) + 5)
        for path in ("/health", "/ready", "/metrics"):
            self.assertIn(f"path: {path}\n", text + (DEPLOY / "kubernetes/servicemonitor.yaml").read_text())

    def test_the_image_without_mpi_is_not_asked_for_ranks(self):
        self.assertIn("image: cambium-mpi:latest", (DEPLOY / "kubernetes/pretrain.yaml").read_text())
        for name in ("serve.yaml", "finetune.yaml"):
            self.assertNotIn("mpi", (DEPLOY / "kubernetes" / name).read_text())


if __name__ == "__main__":
    unittest.main()
