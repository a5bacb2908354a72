"""Installing the program. `cmake --install` puts every file in its place. The Debian package of `cpack` runs in a root that
holds only the packages that it depends on, and leaves nothing there."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from model_support import CAMBIUM, SANITIZED, SOURCE, TINY, run
from package_support import closure, files_of, names_in, output, setup_list

BUILD = pathlib.Path(os.environ.get("CAMBIUM_PROGRAM", CAMBIUM)).resolve().parent.parent
GENERATE = ("--prompt-tokens", "1", "2", "3", "--max-new-tokens", "8", "--temperature", "0", "--precision", "fp32")
TOOLS = ("cpack", "dpkg", "dpkg-deb", "dpkg-shlibdeps", "file", "chroot")
MISSING = [tool for tool in TOOLS if not shutil.which(tool)] + (["root"] if os.geteuid() else [])


def call(*words, expect=0, **more):
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, timeout=600, **more)
    assert done.returncode == expect, f"exit status {done.returncode}, expected {expect}: {words}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def files_under(root):
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir() or path.is_symlink()}


def expected(zsh):
    """The files under a prefix."""
    pages = {f"share/man/man1/{path.name}" for path in (BUILD / "manual/man1").iterdir()}
    documents = {f"share/doc/cambium/{path.relative_to(SOURCE)}"
                 for path in [SOURCE / "README.md", *(SOURCE / "docs").rglob("*"), *(SOURCE / "deploy/kubernetes").rglob("*")] if path.is_file()}
    return pages | documents | {"bin/cambium", "lib/systemd/system/cambium.service", "lib/sysusers.d/cambium.conf",
                                "lib/tmpfiles.d/cambium.conf", "share/doc/cambium/copyright",
                                "share/bash-completion/completions/cambium", zsh}


@unittest.skipIf(SANITIZED, "a build with a sanitizer is not for installing")
class Prefix(unittest.TestCase):
    def test_every_file_has_its_place(self):
        with tempfile.TemporaryDirectory(prefix="cambium-test-") as directory:
            call("cmake", "--install", BUILD, "--prefix", "prefix", cwd=directory)
            prefix = pathlib.Path(directory) / "prefix"
            self.assertEqual(files_under(prefix), expected("share/zsh/site-functions/_cambium"))
            self.assertIn(f"\nExecStart={prefix.resolve()}/bin/cambium serve ", (prefix / "lib/systemd/system/cambium.service").read_text())
            self.assertRegex(call(prefix / "bin/cambium", "--version"), r"^cambium \d")
            self.assertIn("all rights are reserved by the owner", (prefix / "share/doc/cambium/copyright").read_text())
            if shutil.which("man"):
                place = call("man", "-M", prefix / "share/man", "-w", "cambium", "pretrain")
                self.assertEqual(place.split()[0], str(prefix / "share/man/man1/cambium-pretrain.1"))


    def test_a_build_of_the_program_alone_is_installed(self):
        """tools/quickstart makes such a build; installing makes the manual."""
        pages = BUILD / "manual/man1"
        pages.rename(pages.with_name("man1-kept"))
        try:
            with tempfile.TemporaryDirectory(prefix="cambium-test-") as directory:
                call("cmake", "--install", BUILD, "--prefix", directory)
                self.assertTrue((pathlib.Path(directory) / "share/man/man1/cambium-serve.1").is_file())
        finally:
            shutil.rmtree(pages, ignore_errors=True)
            pages.with_name("man1-kept").rename(pages)

    @unittest.skipUnless(shutil.which("systemd-sysusers") and shutil.which("systemd-tmpfiles"), "no systemd")
    def test_systemd_makes_the_user_and_the_directories(self):
        unit = (SOURCE / "deploy/cambium.service").read_text()
        with tempfile.TemporaryDirectory(prefix="cambium-test-") as directory:
            root = pathlib.Path(directory)
            call("cmake", "--install", BUILD, "--prefix", root / "usr")
            (root / "etc").mkdir()
            call("systemd-sysusers", f"--root={root}", "cambium.conf")
            call("systemd-tmpfiles", f"--root={root}", "--create", "cambium.conf")
            user = re.search(r"(?m)^User=(\w+)$", unit)[1]
            self.assertRegex((root / "etc/passwd").read_text(), rf"(?m)^{user}:")
            for path in re.findall(r" (/(?:srv|etc)/\S+)", unit):
                directory = root / path[1:]
                self.assertTrue((directory if path.startswith("/srv") else directory.parent).is_dir(), path)


@unittest.skipIf(SANITIZED, "a build with a sanitizer is not for installing")
@unittest.skipIf(MISSING, f"there is no {', '.join(MISSING)} here; 'tools/setup --package' installs the tools")
class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory(prefix="cambium-test-")
        cls.addClassCleanup(cls.directory.cleanup)
        call("cpack", "--config", BUILD / "CPackConfig.cmake", "-B", cls.directory.name)
        cls.package, = pathlib.Path(cls.directory.name).glob("cambium_*.deb")
        depends = output("dpkg-deb", "--field", cls.package, "Depends")
        cls.needed = {names[0] for names in names_in(depends)}

    def make_root(self, name, packages):
        """A root with the files of these packages alone, and dpkg's records of them."""
        root = pathlib.Path(self.directory.name) / name
        for folder in ("usr/bin", "usr/sbin", "usr/lib", "usr/lib64", "var/lib/dpkg/info", "var/lib/dpkg/updates"):
            (root / folder).mkdir(parents=True)
        for folder in ("bin", "sbin", "lib", "lib64"):
            (root / folder).symlink_to(f"usr/{folder}")
        for path in files_of(packages) if packages else []:
            place = root / path[1:]
            is_folder = os.path.isdir(path) and not os.path.islink(path)
            (place if is_folder else place.parent).mkdir(parents=True, exist_ok=True)
            if not is_folder and os.path.lexists(path) and not os.path.lexists(place):
                shutil.copy2(path, place, follow_symlinks=False)
        (root / "var/lib/dpkg/status").write_text(output("dpkg-query", "--status", *packages) if packages else "")
        for package in packages:
            (root / f"var/lib/dpkg/info/{package}.list").touch()
            (root / f"var/lib/dpkg/info/{package}:amd64.list").touch()
        return root

    def dpkg(self, root, *words, **more):
        return call("dpkg", f"--root={root}", *words, **more)

    def test_it_depends_on_what_setup_installs(self):
        has_mpi = "libopenmpi3" in self.needed
        runtime = set(setup_list("--runtime", *["--mpi"][:has_mpi]))
        self.assertEqual(self.needed - {"libc6"}, runtime - {"openmpi-bin"})
        self.assertEqual("openmpi-bin" in output("dpkg-deb", "--field", self.package, "Suggests"), has_mpi)

    def test_it_recommends_the_editor_of_lines(self):
        self.assertEqual(output("dpkg-deb", "--field", self.package, "Recommends").strip(), "libedit2")

    def test_it_runs_in_a_clean_root_and_leaves_nothing(self):
        root = self.make_root("clean", sorted(closure(self.needed | {"dash"})))  # dash: every Debian has its sh
        shutil.copytree(TINY, root / "model")
        before = files_under(root)
        self.dpkg(root, "--install", self.package)
        added = {name.removeprefix("usr/") for name in files_under(root) - before if name.startswith("usr/")}
        self.assertEqual(added, expected("share/zsh/vendor-completions/_cambium"))
        self.assertIn("\nExecStart=/usr/bin/cambium serve ", (root / "usr/lib/systemd/system/cambium.service").read_text())
        text = call("chroot", root, "/usr/bin/cambium", "generate", "--model", "/model", *GENERATE)
        self.assertIn(run("generate", "--model", TINY, *GENERATE)[0].decode(), text)
        self.assertIn("usage: cambium pretrain", call("chroot", root, "/usr/bin/cambium", "pretrain", "--help"))
        if shutil.which("man"):
            place = call("man", "-M", root / "usr/share/man", "-w", "cambium", "pretrain")
            self.assertEqual(place.split()[0], str(root / "usr/share/man/man1/cambium-pretrain.1"))
        self.dpkg(root, "--purge", "cambium")
        self.assertEqual({name for name in files_under(root) - before if not name.startswith("var/lib/dpkg/")}, set())

    def test_dpkg_refuses_it_without_its_dependencies(self):
        errors = self.dpkg(self.make_root("empty", []), "--install", self.package, expect=1)
        for package in self.needed:
            self.assertRegex(errors, rf"cambium depends on {re.escape(package)}\b")

    def test_the_program_is_stripped(self):
        with tempfile.TemporaryDirectory(prefix="cambium-test-") as directory:
            call("dpkg-deb", "--extract", self.package, directory)
            self.assertRegex(output("file", f"{directory}/usr/bin/cambium"), r"[^t] stripped$")


if __name__ == "__main__":
    unittest.main()
