"""The rules of the house that a compiler does not check. They cover includes, sizes of files, forbidden contents and
state between calls, plain English, and a command line that explains itself."""
import os
import re
import subprocess
import tempfile
import unittest

import house_english
from house_cycles import archives_under, cycles_of
from house_support import (MOST_PARAMETERS, ROOM_LIST, ROOMS, ROOT, files_under, functions_with_many_parameters, name_of, read,
                           sources)

CAMBIUM = os.environ.get("CAMBIUM")

# Libraries stay within the room that wraps them.
LIBRARY_ROOMS = {
    "dnnl": {"kernels"},
    "oneapi": {"kernels"},
    "omp.h": {"kernels"},
    "immintrin.h": {"ckpt", "kernels"},
    "yaml.h": {"config", "planner"},
    "zlib.h": {"ckpt", "data", "text", "serve"},
    "protobuf-c": {"train", "serve"},
    "pcre2.h": {"peft", "text", "unicode"},
    "utf8proc.h": {"unicode"},
    "mpi.h": {"comm"},
    "openssl/ssl.h": {"http"},
    "nghttp2": {"http", "bench"},
    "event2": {"http", "serve", "bench"},
}
# State that outlives a call, and why it may. Everything else travels in arguments.
STATE = {
    "base": {"serial": "numbers the temporary names of atomic writes",
             "is_json": "the form of messages on standard error: every thread's, and said once, before ranks start",
             "requested": "the wish of a signal, which its handler can leave nowhere else"},
    "kernels": {"waits": "OpenMP's threads, and whether they spin, are the process's"},
}
# Calls that end the process or read the environment, and why these may.
ENDING_AND_ENVIRONMENT = {
    ("src/base/arena.c", "abort"): "more taken than planned: an assertion that holds in every build",
    ("src/tensor/loans.c", "abort"): "a weight that stays on loan: an assertion of the builds that count loans",
    ("kernels/cpu/waits.c", "getenv"): "a user of OpenMP has said how its threads wait, and is not overruled",
    ("src/comm/launch.c", "getenv"): "a launcher says in the environment, and nowhere else, that there are several ranks",
    ("src/comm/watch.c", "_exit"): "a rank has died or is stopped: the thread that would pass an error up may sit in MPI",
    ("bench/process.c", "_exit"): "a child process that could not become another program",
    ("bench/report.c", "_exit"): "the end of a child process that was started to be measured",
    ("src/commands/line_history.c", "getenv"): "XDG_STATE_HOME and HOME, as every program that keeps lines of a person",
    ("bench/training.c", "getenv"): "TMPDIR, as every program that needs files for a while",
    ("src/commands/verify_layout.c", "getenv"): "TMPDIR, as every program that needs files for a while",
}
CGROUP_FILES = {"src/base/cgroup.h", "src/base/cores.c"}  # a controller's name is "cpu" too
# Names of a family of models stand in its file alone, or in those of its variants; who else may say some of them, and why.
FAMILY_FILES = {"src/model/" + name for name in ("gpt2.c", "llama.c", "llama_like.c", "llama_like.h", "mistral.c", "qwen2.c", "qwen3.c",
                                                 "phi3.c", "rope.c")}
FAMILY_WORDS = re.compile(r"\w*gpt2_\w*|\w*GPT2\w*|\bc_attn\b|\bc_fc\b|\bc_proj\b|\bwte\b|\bwpe\b|\bln_[12f]\b|"
                          r"\blm_head\b|\btransformer\.|\"gpt2\"|\b(?:q|k|v|o|qkv|gate|up|gate_up|down)_proj\b|\bself_attn\b|"
                          r"\bembed_tokens\b|\b(?:input|post_attention)_layernorm\b|\brope_(?:theta|scaling|parameters)\b|"
                          r"\"(?:llama|mistral|qwen[23]|phi3)\"|\b(?:Llama|Mistral|Qwen[23]|Phi3)\w+|\brms_norm_eps\b|"
                          r"\bnum_key_value_heads\b|\bsliding_window\b")
FAMILY_EXCEPTIONS = {
    "peft/rows.c": {"c_attn", "down_proj"},  # examples in the help
    "src/text/save.c": {"is_gpt2", "GPT2Tokenizer"},  # a class of tokenizers
    "src/text/tool_format.c": {'"mistral"'},  # a format of calls
    "src/pretrained/gguf_config.c": {"sliding_window"},  # a key of GGUF
    "src/convert/to_gguf.c": {"sliding_window"},
    "src/pretrained/gguf_tokenizer.c": {'"gpt2"', '"llama"', '"qwen2"'},  # kinds of tokenizers
}
MAX_LINES = 800
# Cycles that a room still has, and why. Numbers may only fall: a room that has fewer gets the smaller one here.
CYCLES = {
    "infer": 1,  # the engine, its images and the link to its followers
    "peft": 1,  # files, images and merging
    "train": 1,  # the trainer, its ranks and its saves
}


def closure(room):
    """The rooms that a room may use, and single headers of others."""
    known = {room}
    for other in ROOMS[room][1]:
        known |= closure(other) if other in ROOMS else {other}
    return known


def includes(path, brackets):
    opening, closing = brackets
    return re.findall(rf"^\s*#\s*include\s+[{opening}]([^{closing}]+)[{closing}]", read(path), re.M)


class Rooms(unittest.TestCase):
    def test_the_list_of_rooms_is_whole(self):
        listed = len(re.findall(r'^ +"', read(ROOM_LIST), re.M))
        self.assertEqual(len(ROOMS), listed, "a row of cmake/rooms.cmake is not NAME FOLDER KNOWS # PURPOSE")
        before = set()
        for room, (folder, knows) in ROOMS.items():
            self.assertTrue(os.path.isdir(folder), f"the room {room} has no folder")
            for other in knows:
                self.assertIn(other.split("/")[0], before, f"{room} knows {other}, which does not stand before it")
            before.add(room)

    def test_the_picture_of_the_rooms_is_that_of_the_list(self):
        run = subprocess.run([os.path.join(ROOT, "tools", "rooms"), "--check"], capture_output=True, text=True)
        self.assertEqual((run.returncode, run.stdout, run.stderr), (0, "", ""))

    def test_planted_faults_fit_the_source(self):
        run = subprocess.run([os.path.join(ROOT, "tools", "faults"), "--list"], capture_output=True, text=True)
        self.assertEqual((run.returncode, run.stderr), (0, ""))

    def test_every_folder_with_sources_is_a_room(self):
        folders = {folder for folder, _ in ROOMS.values()}
        for parent in (ROOT, os.path.join(ROOT, "src")):
            for name in sorted(os.listdir(parent)):
                path = os.path.join(parent, name)
                if name.startswith(".") or name in ("build", "out", "src", "tests", "tools"):
                    continue
                if os.path.isdir(path) and any(files_under(path, (".c", ".h"))):
                    self.assertIn(path, folders, f"{name_of(path)} is no room of cmake/rooms.cmake")

    def test_no_room_includes_a_room_it_may_not_know(self):
        wrong = []
        for room, path in sources():
            for included in includes(path, '""') + includes(path, "<>"):
                other = included.split("/")[0]
                if other in ROOMS and "/" in included and not {other, included} & closure(room):
                    wrong.append(f"{name_of(path)} includes {included}")
                if ".." in included.split("/"):
                    wrong.append(f"{name_of(path)} includes {included}")
        self.assertFalse(wrong, "\n".join(wrong))

    def test_no_file_sees_both_threads_parts_of_a_call(self):
        """A file of serve/ runs on the loop's thread or on the engine's: what both see is in call_shared.h."""
        parts = {"call_loop.h": set(), "call_engine.h": set()}
        headers = {os.path.basename(path): set(includes(path, '""')) for room, path in sources()
                   if room == "serve" and path.endswith(".h")}
        for room, path in sources():
            seen, waiting = set(), list(includes(path, '""')) if room == "serve" else []
            while waiting:
                name = waiting.pop()
                waiting += headers.get(name, set()) - seen if name not in seen else []
                seen.add(name)
            for part in parts:
                if part in seen:
                    parts[part].add(name_of(path))
        self.assertTrue(all(parts.values()), parts)
        self.assertFalse(set.intersection(*parts.values()))

    def test_libraries_stay_in_their_rooms(self):
        wrong = []
        for room, path in sources():
            for included in includes(path, "<>"):
                for library, rooms in LIBRARY_ROOMS.items():
                    if included.startswith(library) and room not in rooms:
                        wrong.append(f"{name_of(path)} includes <{included}>")
        self.assertFalse(wrong, "\n".join(wrong))

    def test_a_header_opens_with_its_contract(self):
        for _, path in sources():
            if path.endswith(".h"):
                self.assertTrue(read(path).startswith("/*"), f"{name_of(path)} does not open with a comment")


class Files(unittest.TestCase):
    def test_every_skip_says_its_name_and_reason(self):
        wrong = [name_of(path) for path in files_under(os.path.join(ROOT, "tests"), (".c", ".h"))
                 if re.search(r"(?<!\w)skip\(\)", read(path)) and not path.endswith("support/test.h")]
        self.assertEqual(wrong, [], "test_skip says what is not tested, and why")

    def test_no_file_is_longer_than_800_lines(self):
        long = []
        for top in [folder for folder, _ in ROOMS.values()] + [
            os.path.join(ROOT, top) for top in ("tests", "tools", "docs", "cmake")
        ]:
            for path in files_under(top, (".c", ".h", ".py", ".md", ".txt", ".cmake")):
                if os.sep + "golden" + os.sep in path or os.sep + "corpus" + os.sep in path:
                    continue
                lines = read(path).count("\n")
                if lines > MAX_LINES:
                    long.append(f"{name_of(path)}: {lines} lines")
        self.assertFalse(long, "\n".join(long))

    def test_no_file_holds_what_is_not_built(self):
        marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|^\s*#\s*if\s+0\b", re.M)
        found = []
        for _, path in sources():
            found += [f"{name_of(path)}: {match.group(0).strip()}" for match in marks.finditer(read(path))]
        self.assertFalse(found, "\n".join(found))

    def test_only_commands_end_the_process_and_nobody_reads_the_environment(self):
        calls = re.compile(r"(?<![\w>.])(_?exit|abort|quick_exit|getenv|secure_getenv|setlocale)\s*\(")
        found = []
        for room, path in sources():
            text = re.sub(r'/\*.*?\*/|//[^\n]*|"(\\.|[^"\\\n])*"', "", read(path), flags=re.S)
            for match in calls.finditer(text):
                if room == "commands" and "exit" in match.group(1):
                    continue
                if (name_of(path), match.group(1)) in ENDING_AND_ENVIRONMENT:
                    continue
                found.append(f"{name_of(path)}: {match.group(1)}")
        self.assertFalse(found, "\n".join(found))

    def test_no_backend_and_no_number_of_a_device_is_named_above_the_kernels(self):
        marks = re.compile(r'"(?:cpu|late)(?::\w+)?"|\bdevice_open\([^,;]*,\s*\d+\s*,')
        found = [f"{name_of(path)}: {match.group(0)}" for room, path in sources()
                 if room != "kernels" and name_of(path) not in CGROUP_FILES for match in marks.finditer(read(path))]
        self.assertFalse(found, "\n".join(found))

    def test_a_familys_names_stand_in_its_file_alone(self):
        found = []
        for _, path in sources():
            name = name_of(path)
            words = set() if name in FAMILY_FILES else set(FAMILY_WORDS.findall(read(path)))
            found += [f"{name}: {word}" for word in sorted(words - FAMILY_EXCEPTIONS.get(name, set()))]
        self.assertFalse(found, "\n".join(found))
        for name in FAMILY_FILES:
            self.assertGreater(len(set(FAMILY_WORDS.findall(read(os.path.join(ROOT, name))))), 2, name)

    def test_comments_name_only_files_that_exist(self):
        tops = [folder for folder, _ in ROOMS.values()] + [os.path.join(ROOT, "tests")]
        names = {os.path.basename(path) for top in tops for path in files_under(top, (".c", ".h"))}
        wrong = []
        for _, path in sources():
            for comment in re.findall(r"/\*.*?\*/|//[^\n]*", read(path), re.S):
                for name in re.findall(r"\b([\w-]+\.[ch])\b(?!\.\w)", comment):
                    if name not in names:
                        wrong.append(f"{name_of(path)} names {name}")
        self.assertFalse(wrong, "\n".join(wrong))


# Names in documents that stand for ones that a reader will make.
MADE_UP = re.compile(r"NAME|gain|made_up", re.I)
FILE = re.compile(r"[\w/.-]+(/|\.(c|h|py|cmake|html))|(docs|src|tests|tools|kernels)/.*")


def code_spans(path):
    """The texts in backquotes of a document; blocks of code have none."""
    page = re.sub(r"^```.*?^```", "", read(path), flags=re.M | re.S)
    return [span for span in re.findall(r"`([^`]+)`", re.sub(r"\n\s*", " ", page)) if not MADE_UP.search(span)]


class Documents(unittest.TestCase):
    """Documents name only files that exist; docs/reading.md only functions, structs and other identifiers that do."""

    @classmethod
    def setUpClass(cls):
        tests = files_under(os.path.join(ROOT, "tests"), (".c", ".h", ".py"))
        code = {path: re.sub(r"/\*.*?\*/|//[^\n]*", "", read(path), flags=re.S)
                for path in [path for _, path in sources()] + list(tests)}
        text = "\n".join(code.values())
        cls.files = {os.path.basename(path) for path in code}
        cls.names = set(re.findall(r"\w+", text))
        cls.functions = set(re.findall(r"^[a-z][\w *]*?(\w+)\(", text, re.M))
        cls.structs = set(re.findall(r"\bstruct (\w+) \{", text))

    def exists(self, span):
        """Whether a text in backquotes names something that exists, or names nothing of the code."""
        word = span.split(" ")[-1 if span.startswith(("struct ", "const struct ")) else 0]
        if word.endswith("()"):
            return word[:-2] in self.functions
        if FILE.fullmatch(word):
            return os.path.exists(os.path.join(ROOT, word)) or word in self.files
        if span.startswith("struct "):
            return word in self.structs
        return not re.fullmatch(r"\w+_\w+(\.\w+)?", word) or set(word.split(".")) <= self.names

    def test_the_guides_names_exist(self):
        found = [span for span in code_spans(os.path.join(ROOT, "docs", "reading.md")) if not self.exists(span)]
        self.assertFalse(found, "docs/reading.md names these, which do not exist: " + ", ".join(found))

    def test_files_that_documents_name_exist(self):
        found = [f"{name_of(path)}: {span}" for path in house_english.files_of("docs") for span in code_spans(path)
                 if re.fullmatch(r"(src|tests|kernels|peft|serve|bench|deploy|proto|tools)/\S+|[\w-]+\.[ch]", span)
                 and not self.exists(span)]
        self.assertFalse(found, "\n".join(found))


# Names of methods that are words of other things as well: options of commands, keys of rows.
OTHER_WORDS = {"adapter", "prompt", "prefix"}


class Methods(unittest.TestCase):
    """A method of peft/ is a row of peft/methods.h and what stands in its own files; nobody else asks which one it is."""

    TABLE = os.path.join(ROOT, "peft", "methods.h")

    def rows(self):
        rows = re.findall(r'^ +ROW\((\w+), "(\w+)", (\w+)\)', read(self.TABLE), re.M)
        self.assertEqual(len(rows), len(re.findall(r"^ +ROW\(", read(self.TABLE), re.M)))
        self.assertGreater(len(rows), 0)
        return rows

    def test_the_model_names_no_method(self):
        names = re.compile("|".join({name for _, name, _ in self.rows()} - OTHER_WORDS), re.I)
        found = [f"{name_of(path)}: {match.group(0)}" for room, path in sources() if room == "model"
                 for match in names.finditer(read(path))]
        self.assertFalse(found, "\n".join(found))

    def test_a_method_is_named_in_its_own_files_alone(self):
        table, rows = self.TABLE, self.rows()
        code = {path: re.sub(r"/\*.*?\*/|//[^\n]*", "", read(path), flags=re.S) for _, path in sources()}
        found = []
        for number, name, method in rows:
            own = [path for path in code if re.search(rf"^const struct peft_method {method}\b", code[path], re.M)]
            self.assertEqual(len(own), 1, f"{method} has no file, or several")
            stem = os.path.splitext(own[0])[0]
            literal = "" if name in OTHER_WORDS else rf'|"{name}"'
            calls = "" if name in OTHER_WORDS else rf"|\b{name}_\w+\("
            words = re.compile(rf"\b{number}\b|\b{method}\b{literal}{calls}")
            for path in code:
                if path != table and not re.fullmatch(re.escape(stem) + r"(_\w+|-internal)?\.[ch]", path):
                    found += [f"{name_of(path)}: {match.group(0)}" for match in words.finditer(code[path])]
        self.assertFalse(found, "\n".join(found))


FAULTY_HEADER = """/* What this does is unknown. It stands behind a word, so many times. Its kin goes on until it is told to stop. */
/* A sentence of {words}. */
#define MESSAGE "It goes on. A value is {{\\"key\\": [{words}]}}. A sentence of {words}."
int covered(int argument);
int covered_too(void);

struct other {{
    int (*take_news)(void);
}};
int bare(void);
static inline int bare_too(void) {{
    return 0;
}}

/* ---- a heading ---- */

int under_a_heading(void);

int too_far_from_it(void);
""".format(words=" ".join(["word"] * house_english.MOST_WORDS))
FAULTY_TOOL = """#!/bin/bash
# Who runs this is unknown.
usage() {{
    cat <<'EOF'
usage: tool

  --first   an option that goes on
  --second  a sentence of {words}
EOF
}}
""".format(words=" ".join(["word"] * house_english.MOST_WORDS))


# Words of house_english.TRANSLATED. A commit may lower a number, and never raise it.
TRANSLATED = {"code": 97, "docs": 7}


class English(unittest.TestCase):
    def test_the_english_is_plain(self):
        for group in ("code", "tools", "tests", "docs"):
            for fault, found in house_english.count(group).items():
                with self.subTest(f"{fault} in {group}"):
                    self.assertFalse(found, "\n".join(f"{name}: {text}" for name, text in found))

    def test_fewer_words_read_as_translated(self):
        for group, most in TRANSLATED.items():
            found = house_english.translated(group)
            with self.subTest(group):
                self.assertLessEqual(len(found), most, "\n".join(f"{name}: {text}" for name, text in found))

    def test_each_fault_is_found(self):
        faults = self.faults_of(FAULTY_HEADER, ".h")
        self.assertEqual({fault: len(found) for fault, found in faults.items()},
                         {"openings": 1, "behind": 1, "so many": 1, "home-made words": 4, "long sentences": 2,
                          "bare prototypes": 3})
        self.assertEqual(faults["bare prototypes"], ["bare", "bare_too", "too_far_from_it"])
        self.assertEqual({fault: len(found) for fault, found in self.faults_of(FAULTY_TOOL, "").items() if found},
                         {"openings": 1, "home-made words": 1, "long sentences": 1})
        page = '<p title="What is this">It goes on.</p><script>\n// Who asks for this is unknown.\nsay("He was told so");</script>'
        self.assertEqual({fault: len(found) for fault, found in self.faults_of(page, ".html").items() if found},
                         {"openings": 2, "home-made words": 2})

    def faults_of(self, text, suffix):
        with tempfile.NamedTemporaryFile("w", suffix=suffix) as file:
            file.write(text)
            file.flush()
            return house_english.count_file(file.name)


# Functions with more parameters than MOST_PARAMETERS. A commit may lower this number, and never raise it.
MANY_PARAMETERS = 36
FAULTY_SOURCE = """
static int six(int a, int b, int c, int (*d)(int, int), int e, int f) {
    return seven(a, b, c, d, e, f, 0);
}
/* int seven_in_a_comment(int a, int b, int c, int d, int e, int f, int g); */
int seven(int a, int b, int c, int (*d)(int, int), int e,
          int f, int g);
static inline struct view *LEVEL(eight)(int a, int b, int c, int d, int e, int f, int g, int h) {
"""


class Parameters(unittest.TestCase):
    """More than six arguments become a struct."""

    def test_functions_take_fewer_parameters(self):
        found = {(room, name): count
                 for room, path in sources() for name, count in functions_with_many_parameters(read(path)).items()}
        places = "\n".join(f"{room}: {name} has {count}" for (room, name), count in sorted(found.items()))
        self.assertLessEqual(len(found), MANY_PARAMETERS, f"functions with more than {MOST_PARAMETERS} parameters:\n{places}")

    def test_each_such_function_is_found(self):
        self.assertEqual(functions_with_many_parameters(FAULTY_SOURCE), {"seven": 7, "eight": 8})


class Weights(unittest.TestCase):
    """Only a store's storage knows where values lie: everyone else borrows, or goes through ranges."""

    def test_a_stores_values_are_named_in_tensor_and_in_storages_alone(self):
        found, rows = [], 0
        tests = [(None, path) for path in files_under(os.path.join(ROOT, "tests"), (".c", ".h"))]
        for room, path in list(sources()) + tests:
            code = re.sub(r"/\*.*?\*/|//[^\n]*", "", read(path), flags=re.S)
            is_row = bool(re.search(r"^(static )?const struct storage \w+ = ", code, re.M))
            rows += is_row
            if is_row or room == "tensor":
                continue
            names = set(re.findall(r"\bstruct param_store \**(\w+)", code)) | {"store"}
            owner = rf"(?:(?<![.>])\b(?:{'|'.join(sorted(names))})|\bstore|_store\([^()]*\))"
            for match in re.finditer(rf"{owner}(?:->|\.)(held|weights|gradients|dtype)\b", code):
                found.append(f"{name_of(path)}: {match.group(0)}")
        self.assertFalse(found, "\n".join(found))
        self.assertGreater(rows, 1)


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
        build = os.path.dirname(os.path.dirname(CAMBIUM))
        found = []
        for room in ROOMS:
            if room == "commands":
                continue  # the program itself
            archives = [path for path in files_under(build, (f"lib{room}.a",))]
            self.assertEqual(len(archives), 1, f"lib{room}.a")
            symbols = subprocess.run(["objdump", "-t", archives[0]], capture_output=True, text=True, check=True).stdout
            for section, name in re.findall(r"^[0-9a-f]+ .{6}O (\S+)\t[0-9a-f]+ (?:\.hidden )?(\S+)$", symbols, re.M):
                is_state = section.startswith((".data", ".bss", "*COM*")) and not section.startswith(".data.rel.ro")
                if is_state and not name.startswith((".", "__")) and name.split(".")[0] not in STATE.get(room, {}):
                    found.append(f"{room}: {name} in {section}")
        self.assertFalse(found, "\n".join(found))

    def test_files_of_a_room_call_each_other_in_few_cycles(self):
        build = os.path.dirname(os.path.dirname(CAMBIUM))
        found = {room: cycles_of(path) for room, path in archives_under(build) if room in ROOMS}
        self.assertEqual(set(found), set(ROOMS) - {"commands"})
        counts = {room: len(cycles) for room, cycles in found.items() if cycles}
        self.assertEqual(counts, CYCLES, "\n".join(f"{room}: {', '.join(cycle)}"
                                                   for room, cycles in found.items() for cycle in cycles))

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
        for name in ("setup", "test", "quickstart", "quality", "rooms", "gpu", "faults"):
            with self.subTest(name):
                tool = os.path.join(ROOT, "tools", name)
                self.assertTrue(os.access(tool, os.X_OK))
                run = subprocess.run([tool, "--help"], capture_output=True, text=True, timeout=30)
                self.assertEqual((run.returncode, run.stderr), (0, ""))
                self.assertTrue(run.stdout.startswith(f"usage: tools/{name}"))
                self.assertLessEqual(max(map(len, run.stdout.splitlines())), 120)
        for name in ("setup", "quickstart", "quality", "rooms", "gpu", "faults"):
            run = subprocess.run([os.path.join(ROOT, "tools", name), "--nonsense"], capture_output=True, text=True)
            self.assertEqual(run.returncode, 2)
            self.assertIn("--nonsense", run.stderr)


if __name__ == "__main__":
    unittest.main()
