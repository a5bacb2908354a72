"""The rules of the house that a compiler does not check: who may include whom, sizes of files, what may not stand in
them, no state between calls, and a command line that explains itself."""
import os
import re
import subprocess
import unittest

ROOT = os.environ.get("CAMBIUM_SOURCE") or os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CAMBIUM = os.environ.get("CAMBIUM")

# A room and the rooms that it knows directly; what those know, it may use as well.
KNOWS = {
    "base": [],
    "kernels": ["base"],
    "config": ["base"],
    "comm": ["base", "kernels"],
    "tensor": ["base", "kernels"],
    "text": ["base"],
    "parallel": ["tensor", "comm"],
    "data": ["text", "config", "comm"],
    "model": ["parallel", "config"],
    "optim": ["parallel"],
    "ckpt": ["parallel", "text", "config"],
    "train": ["model", "data", "optim", "ckpt"],
    "peft": ["model", "ckpt"],
    "infer": ["model", "ckpt", "text", "peft"],
    "commands": ["train", "infer"],
}
# Libraries stay behind the room that wraps them.
LIBRARY_ROOMS = {
    "dnnl": {"kernels"},
    "oneapi": {"kernels"},
    "omp.h": {"kernels"},
    "immintrin.h": {"kernels"},
    "yaml.h": {"config"},
    "zlib.h": {"data", "text"},
    "protobuf-c": {"train"},
    "mpi.h": {"comm"},
}
# State that outlives a call, and why it may. Everything else travels in arguments.
STATE = {
    "base": {"serial": "numbers the temporary names of atomic writes"},
    "train": {"requested": "the wish of a signal, which its handler can leave nowhere else"},
}
MAX_LINES = 800


def closure(room):
    known = {room}
    for other in KNOWS[room]:
        known |= closure(other)
    return known


def room_directory(room):
    return os.path.join(ROOT, room if room == "kernels" else os.path.join("src", room))


def files_under(directory, endings):
    for where, subdirectories, names in os.walk(directory):
        subdirectories[:] = sorted(d for d in subdirectories if d not in ("build", "out", "__pycache__", ".git"))
        for name in sorted(names):
            if name.endswith(endings):
                yield os.path.join(where, name)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def name_of(path):
    return os.path.relpath(path, ROOT)


class Rooms(unittest.TestCase):
    def test_no_room_includes_a_room_it_may_not_know(self):
        wrong = []
        for room in KNOWS:
            allowed = closure(room)
            for path in files_under(room_directory(room), (".c", ".h")):
                for included in re.findall(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', read(path), re.M):
                    other = included.split("/")[0]
                    if other in KNOWS and "/" in included and other not in allowed:
                        wrong.append(f"{name_of(path)} includes {included}")
                    if ".." in included.split("/"):
                        wrong.append(f"{name_of(path)} includes {included}")
        self.assertFalse(wrong, "\n".join(wrong))

    def test_every_directory_of_src_is_a_room(self):
        for name in os.listdir(os.path.join(ROOT, "src")):
            if os.path.isdir(os.path.join(ROOT, "src", name)):
                self.assertIn(name, KNOWS)

    def test_libraries_stay_in_their_rooms(self):
        wrong = []
        for room in KNOWS:
            for path in files_under(room_directory(room), (".c", ".h")):
                for included in re.findall(r"^\s*#\s*include\s+<([^>]+)>", read(path), re.M):
                    for library, rooms in LIBRARY_ROOMS.items():
                        if included.startswith(library) and room not in rooms:
                            wrong.append(f"{name_of(path)} includes <{included}>")
        self.assertFalse(wrong, "\n".join(wrong))

    def test_a_public_header_opens_with_its_contract(self):
        for room in KNOWS:
            for path in files_under(room_directory(room), (".h",)):
                self.assertTrue(read(path).startswith("/*"), f"{name_of(path)} does not open with a comment")


class Files(unittest.TestCase):
    def test_no_file_is_longer_than_800_lines(self):
        long = []
        for top in ("src", "kernels", "tests", "tools", "bench", "docs", "cmake"):
            for path in files_under(os.path.join(ROOT, top), (".c", ".h", ".py", ".md", ".txt", ".cmake")):
                if os.sep + "golden" + os.sep in path or os.sep + "corpus" + os.sep in path:
                    continue
                lines = read(path).count("\n")
                if lines > MAX_LINES:
                    long.append(f"{name_of(path)}: {lines} lines")
        self.assertFalse(long, "\n".join(long))

    def test_no_file_holds_what_is_not_built(self):
        marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|^\s*#\s*if\s+0\b", re.M)
        found = []
        for top in ("src", "kernels", "bench"):
            for path in files_under(os.path.join(ROOT, top), (".c", ".h")):
                found += [f"{name_of(path)}: {match.group(0).strip()}" for match in marks.finditer(read(path))]
        self.assertFalse(found, "\n".join(found))

    def test_only_commands_end_the_process_and_nobody_reads_the_environment(self):
        calls = re.compile(r"(?<![\w>.])(_?exit|abort|quick_exit|getenv|secure_getenv|setlocale)\s*\(")
        found = []
        for room in KNOWS:
            for path in files_under(room_directory(room), (".c", ".h")):
                text = re.sub(r'/\*.*?\*/|//[^\n]*|"(\\.|[^"\\\n])*"', "", read(path), flags=re.S)
                for match in calls.finditer(text):
                    if room == "commands" and "exit" in match.group(1):
                        continue
                    if name_of(path) == "src/comm/launch.c" and match.group(1) == "getenv":
                        continue  # launchers of ranks say so there and nowhere else
                    if name_of(path) == "src/base/arena.c" and match.group(1) == "abort":
                        continue  # more taken than planned: an assertion that holds in every build
                    if name_of(path) == "src/comm/launch.c" and match.group(1) == "getenv":
                        continue  # a launcher says in the environment, and nowhere else, that there are several ranks
                    found.append(f"{name_of(path)}: {match.group(1)}")
        self.assertFalse(found, "\n".join(found))

    def test_comm_sees_devices_but_no_operations(self):
        for path in files_under(room_directory("comm"), (".c", ".h")):
            self.assertNotIn('"kernels/ops.h"', read(path), name_of(path))


@unittest.skipUnless(CAMBIUM and os.path.exists(CAMBIUM), "CAMBIUM does not name the built program")
class Program(unittest.TestCase):
    def run_cambium(self, *words):
        return subprocess.run([CAMBIUM, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)

    def commands(self):
        names = []
        for path in files_under(os.path.join(ROOT, "src", "commands"), (".c",)):
            names += re.findall(r"^int command_(\w+)\(int", read(path), re.M)
        return sorted(set(names) - {"exit_status"})

    def test_no_room_keeps_state_between_calls(self):
        """Variables in .data and .bss of the rooms' archives; thread-local and constant ones lie elsewhere."""
        build = os.path.dirname(CAMBIUM)
        if not os.path.exists(os.path.join(build, "libbase.a")):
            build = os.path.join(os.path.dirname(build), "src")
        found = []
        for room in KNOWS:
            archive = os.path.join(build, f"lib{room}.a")
            if room == "kernels":
                archive = os.path.join(os.path.dirname(build), "kernels", "libkernels.a")
            if not os.path.exists(archive):
                continue
            symbols = subprocess.run(["objdump", "-t", archive], capture_output=True, text=True, check=True).stdout
            for section, name in re.findall(r"^[0-9a-f]+ .{6}O (\S+)\t[0-9a-f]+ (?:\.hidden )?(\S+)$", symbols, re.M):
                is_state = section.startswith((".data", ".bss", "*COM*")) and not section.startswith(".data.rel.ro")
                if is_state and not name.startswith((".", "__")) and name.split(".")[0] not in STATE.get(room, {}):
                    found.append(f"{room}: {name} in {section}")
        self.assertFalse(found, "\n".join(found))

    def test_every_command_explains_itself(self):
        names = self.commands()
        self.assertGreater(len(names), 0)
        overview = self.run_cambium("--help")
        self.assertEqual(overview.returncode, 0)
        for name in names:
            with self.subTest(name):
                self.assertRegex(overview.stdout, rf"(?m)^  {name} ")
                run = self.run_cambium(name, "--help")
                self.assertEqual((run.returncode, run.stderr), (0, ""))
                self.assertTrue(run.stdout.startswith(f"usage: cambium {name}"), run.stdout[:80])
                self.assertLessEqual(max(map(len, run.stdout.splitlines())), 120)

    def test_bad_usage_is_one_line_and_status_2(self):
        for words in (("nonsense",), ("pretrian",), *((name, "--no-such-option") for name in self.commands())):
            with self.subTest(words):
                run = self.run_cambium(*words)
                self.assertEqual((run.returncode, run.stdout), (2, ""))
                self.assertEqual(run.stderr.count("\n"), 1, run.stderr)
                self.assertTrue(run.stderr.startswith("cambium: error: unknown "), run.stderr)
        self.assertIn("did you mean 'pretrain'", self.run_cambium("pretrian").stderr)

    def test_the_version_is_told(self):
        self.assertRegex(self.run_cambium("--version").stdout, r"^cambium \d+\.\d+\.\d+\n$")


class Tools(unittest.TestCase):
    def test_every_tool_explains_itself_and_refuses_what_it_does_not_know(self):
        for name in ("setup", "test", "quickstart", "quality"):
            with self.subTest(name):
                tool = os.path.join(ROOT, "tools", name)
                self.assertTrue(os.access(tool, os.X_OK))
                run = subprocess.run([tool, "--help"], capture_output=True, text=True, timeout=30)
                self.assertEqual((run.returncode, run.stderr), (0, ""))
                self.assertTrue(run.stdout.startswith(f"usage: tools/{name}"))
                self.assertLessEqual(max(map(len, run.stdout.splitlines())), 120)
        for name in ("setup", "quickstart", "quality"):
            run = subprocess.run([os.path.join(ROOT, "tools", name), "--nonsense"], capture_output=True, text=True)
            self.assertEqual(run.returncode, 2)
            self.assertIn("--nonsense", run.stderr)


if __name__ == "__main__":
    unittest.main()
