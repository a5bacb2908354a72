"""README and docs: their commands work as they stand, links and anchors exist, and pages have the form that docs/README.md
promises. A fenced block marked `sh` is commands, and in one marked `console` lines after `$ ` are. All of them run on a
small model, but those of CANNOT_RUN."""
import itertools, json, os, pathlib, re, shlex, shutil, subprocess, tempfile, unittest

from gguf_support import byte_tokens, keys_of, tensors_of, write_gguf
import mpi_support  # root may start ranks
from model_support import CAMBIUM, PRECISIONS, SANITIZED, SOURCE, run, write_byte_tokenizer, write_reciting_model
from serve_support import PATIENCE, Server, write_prompt

MOST_COLUMNS, MOST_LINES_OF_README = 120, 160
INDEX = SOURCE / "docs/README.md"
PAGES = [SOURCE / "README.md", *sorted((SOURCE / "docs").glob("*.md"))]
KINDS = {"sh", "console", "yaml", "json", "text"}
# Commands that cannot run here, and why. Of those that begin or contain a command of Cambium, options are checked.
CANNOT_RUN = {
    r"file-\.\.\.": "the id of a file that was just uploaded: serve_tuning_test.py",
    r"^tools/(setup|quickstart|test|models|gpu)\b|^hf ": "the network, or many minutes: install_test.py, models_test.py, .ci/run",
    r"^cmake ": "a build of some minutes, and an installation: install_test.py",
    r"^mpirun .*(slot:PE|-H |cambium serve)": "many cores, several hosts, or a server of processes: tests/cluster, serve_faults_test.py",
    r"^sbatch ": "a cluster: tests/cluster/slurm_test.py",
    r"^podman ": "a network and containers: deploy_test.py",
    r"--device cuda": "a GPU: cuda_test.py has the commands on a stand-in",
    r"^(mpirun -n 2 )?cambium (bench|plan calibrate) |^tools/hosts |^python3 bench/": "minutes of measuring: bench_test.py, bench_serve_test.py",
}
# Keys that make a run of pretrain small. They stand after those of a page.
SMALL = {"pretrain": ["--model.num_layers=1", "--model.hidden_size=16", "--model.num_attention_heads=2", "--data.seq_length=16",
                      "--train.train_iters=2", "--train.eval_interval=2", "--train.eval_iters=1", "--train.micro_batch_size=1",
                      "--optim.lr_warmup_iters=1", "--checkpoint.save_interval=1"]}
TEMPLATE = ("{% for m in messages %}<|{{ 'user' if m['role'] == 'user' else 'answer' }}|>{{ m['content'] }}{% endfor %}"
            "{% if add_generation_prompt %}<|answer|>{% endif %}")
RECITED = b"Once upon a time there was a long text. " * 8


def name_of(page):
    return str(page.relative_to(SOURCE))


def blocks(page):
    """[(kind, lines)] of the fenced blocks of a page."""
    return [(kind, text.split("\n")[:-1]) for kind, text in re.findall(r"(?ms)^```(\w*)\n(.*?)^```$", page.read_text())]


def prose(page):
    """A page without its blocks and without code."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"(?ms)^```.*?^```$", "", page.read_text()))


def commands_of_sh(lines):
    """Commands of a block: a line that ends with a backslash or a pipe continues."""
    found, is_open = [], False
    for line in lines:
        if is_open:
            found[-1] += "\n" + line
        elif line.strip():
            found.append(line)
        is_open = re.search(r"(\\|\|)$", line) is not None
    return found


def commands_of_console(lines):
    """[(command, the lines that it printed)] of a session."""
    found, is_open = [], False
    for line in lines:
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif is_open:
            found[-1] = (found[-1][0] + "\n" + line, [])
        else:
            found[-1][1].append(line)
        is_open = line.endswith("\\")
    return found


def all_commands(page):
    """[(command, the lines that it printed, or None)] in their order."""
    found = []
    for kind, lines in blocks(page):
        if kind == "sh":
            found += [(command, None) for command in commands_of_sh(lines)]
        elif kind == "console":
            found += commands_of_console(lines)
    return found


def reason(command):
    return next((why for pattern, why in CANNOT_RUN.items() if re.search(pattern, command)), None)


def is_installed(program, command):
    """False if a command needs this program, which is not installed."""
    return program not in command or shutil.which(program) is not None


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"(?m)^#+ (.*)$", re.sub(r"(?ms)^```.*?^```$", "", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page):
    """Targets of the links of a page that are not on the network."""
    found = re.findall(r"\]\(([^)\s]+)\)", prose(page)) + re.findall(r"(?m)^\[\w+\]: (\S+)$", prose(page))
    return [link for link in found if "://" not in link]


def tasks():
    """Pages about a task: the first table of the index."""
    table = re.search(r"(?m)^\| to do \|.*\n((?:\|.*\n)+)", INDEX.read_text())[1]
    return [SOURCE / "docs" / name for name in re.findall(r"\]\((\S+?)\)", table)]


class Form(unittest.TestCase):
    def test_links_and_anchors_exist(self):
        count, wrong = 0, []
        for page in PAGES:
            for link in links(page):
                path, _, anchor = link.partition("#")
                target = (page.parent / path).resolve() if path else page
                count += 1
                if not target.exists() or anchor and anchor not in anchors(target):
                    wrong.append(f"{name_of(page)}: {link}")
        self.assertEqual(wrong, [])
        self.assertGreater(count, 50)

    def test_lines_fit_a_terminal(self):
        wrong = [f"{name_of(page)}:{number}: {len(line)} characters" for page in PAGES
                 for number, line in enumerate(page.read_text().split("\n"), 1) if len(line) > MOST_COLUMNS]
        self.assertEqual(wrong, [])

    def test_code_stands_on_one_line(self):
        wrong = [f"{name_of(page)}: {line}" for page in PAGES for line in prose(page).split("\n") if "`" in line]
        self.assertEqual(wrong, [])

    def test_readme_is_short(self):
        lines = (SOURCE / "README.md").read_text().splitlines()
        self.assertLessEqual(len(lines), MOST_LINES_OF_README)
        first_screen = "\n".join(lines[:40])
        for part in ("It is for", "Why use it", "One program where three are needed", "swapped under load", "Any layout resumes",
                     "Equal bits", "all rights are reserved by the owner", "It lacks", "tools/quickstart", "\n```console\n$ ", "| Cambium | other tools |", "tokenizers 1.1 |"):
            self.assertIn(part, first_screen)

    def test_mpi_is_installed_before_its_first_use(self):
        """tools/quickstart builds without it."""
        text = (SOURCE / "README.md").read_text()
        self.assertLess(text.index("tools/setup --mpi && cmake"), text.index("mpirun -n"))

    def test_the_index_names_every_page(self):
        named = {INDEX.parent / link for link in links(INDEX)} | {INDEX, SOURCE / "README.md"}
        self.assertEqual([name_of(page) for page in PAGES if page not in named], [])
        self.assertIn("docs/README.md", links(SOURCE / "README.md"))

    def test_a_page_about_a_task_opens_with_commands_and_ends_with_its_tests(self):
        self.assertGreater(len(tasks()), 8)
        for page in tasks():
            with self.subTest(name_of(page)):
                text = page.read_text()
                self.assertRegex(text, r"^# .+\n\n```(sh|console)\n")
                headings = re.findall(r"(?m)^## (.*)$", re.sub(r"(?ms)^```.*?^```$", "", text))
                self.assertEqual(headings, ["Options", "How it works", "Tests"])

    def test_commands_stand_in_marked_blocks(self):
        wrong = []
        for page in PAGES:
            text = page.read_text()
            self.assertEqual(len(re.findall(r"(?m)^ *```", text)), 2 * len(blocks(page)), f"{name_of(page)}: a block is not closed")
            wrong += [f"{name_of(page)}: a block marked '{kind}'" for kind, _ in blocks(page) if kind not in KINDS]
            wrong += [f"{name_of(page)}: {line}" for kind, lines in blocks(page) if kind not in ("sh", "console")
                      for line in lines if re.match(r"(cambium [a-z]|curl |tools/|mpirun )", line)]
            wrong += [f"{name_of(page)}: indented: {line}" for line in re.findall(r"(?m)^\n {4,}(?![-*] |\d+\. )\S.*$", prose(page))]
        self.assertEqual(wrong, [])


def write_rows(path, row):
    path.write_text(4 * (json.dumps(row) + "\n"))


def write_models(root):
    """A model that chats, under each name that the pages use, and as GGUF."""
    model = root / "model"
    write_reciting_model(model, RECITED, specials=("<|user|>", "<|answer|>"))
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings["chat_template"] = TEMPLATE
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    for name in ("smollm2", "smollm2-135m-instruct"):
        shutil.copytree(model, root / name)
    golden = SOURCE / "tests/model/golden/qwen2_tied"
    keys = keys_of(golden)
    write_gguf(root / "SmolLM2-135M-Instruct.Q4_1.gguf", keys | byte_tokens(61), tensors_of(golden))
    shutil.copytree(SOURCE / "tests/ckpt/golden/dcp/model", root / "step-1000")
    shutil.copy(SOURCE / "tests/model/golden/llama_biases_linear/config.json", root)
    for number, name in enumerate(("verse", "formal", "songs", "songs-v2", "menenius"), 1):
        write_prompt(root / "adapters" / name, number)


def write_workplace(root):
    """The files that commands of the pages name."""
    write_models(root)
    (root / "tokenizer").mkdir()
    write_byte_tokenizer(root / "tokenizer")
    for name in ("a.txt", "b.txt"):
        (root / name).write_bytes(RECITED)
    question = {"role": "user", "content": "Once"}
    for name in ("rows.jsonl", "valid.jsonl"):
        write_rows(root / name, {"prompt": "Once", "completion": " upon"})
    write_rows(root / "pairs.jsonl", {"prompt": "Once", "chosen": " upon", "rejected": " more"})
    write_rows(root / "texts.jsonl", {"text": "Once upon"})
    write_rows(root / "choices.jsonl", {"context": "Once", "choices": [" upon", " a"], "gold": 0})
    write_rows(root / "wikitext.jsonl", {"page": "Once upon"})
    write_rows(root / "hellaswag.jsonl", {"activity_label": "a", "ctx_a": "Once", "ctx_b": "", "endings": ["upon", "a"], "label": "0"})
    write_rows(root / "dictionary.jsonl", {"messages": [question, {"role": "assistant", "content": "upon"}]})
    (root / "talk.json").write_text(json.dumps([question]))
    (root / "keys").write_text("alice sk-alice\n")
    (root / "proto").symlink_to(SOURCE / "proto")
    (root / "run.yaml").write_text(trained_here(configuration(SOURCE / "README.md")))
    run("preprocess", "--input", *(root / name for name in ("a.txt", "b.txt")), "--tokenizer", root / "tokenizer",
        "--output-prefix", root / "corpus", "--append-eod")
    (root / "bin").mkdir()
    (root / "bin/cambium").write_text(f'#!/bin/sh\nexec "{CAMBIUM}" "$@"\n')
    (root / "bin/cambium").chmod(0o755)


def configuration(page, begin="tokenizer:"):
    """The first configuration of a page."""
    return next("\n".join(lines) + "\n" for kind, lines in blocks(page) if kind == "yaml" and lines[0].startswith(begin))


def trained_here(text):
    """A processor without bf16 trains in fp32."""
    return text if "bf16" in PRECISIONS else re.sub(r"(precision(?:=|: ))bf16", r"\1fp32", text)


def words_of_cambium(command):
    """The words after `cambium` of each call of it in a command, which may stand in quotes of another."""
    found = []
    for match in re.finditer(r"(?:^|[ /])cambium (?=[a-z])", command):
        rest = command[match.end():]
        if command[:match.end()].count("'") % 2:
            rest = rest[:rest.index("'")]
        words = shlex.shlex(rest, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        found.append(list(itertools.takewhile(lambda word: not re.fullmatch(r"[|&;<>()]+", word), words)))
    return [[word.strip() for word in words if word.strip()] for words in found]


class Session:
    """A page's commands, one after another in a directory of their own. A server runs until the next one begins."""

    def __init__(self, workplace, root):
        shutil.copytree(workplace, root, symlinks=True)
        self.root, self.server = root, None
        more_ranks_than_cores = {"OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none",
                                 "OMPI_MCA_mpi_yield_when_idle": "1"}
        self.environment = os.environ | more_ranks_than_cores | {
            "PATH": f"{root / 'bin'}:{os.environ['PATH']}", "TMPDIR": str(root / "bin")}  # launches trip over each other's files

    def end(self):
        if self.server:
            self.server.__exit__(None, None, None)
        self.server = None

    def serve(self, command):
        self.end()
        words = words_of_cambium(command)[0][1:]
        words = [str(self.root / word) if (self.root / word).exists() else word for word in words]
        words = [re.sub(r"=(\w+)$", rf"={self.root}/\1", word) if re.match(r"\w+=\w+$", word) else word for word in words]
        place = words.index("--model")
        self.server = Server(*words[:place], *words[place + 2:], model=words[place + 1]).__enter__()

    def text_of(self, command):
        if command.startswith("curl ") or "localhost:" in command:
            addresses = self.server.addresses
            command = command.replace("localhost:8000", addresses["data"]).replace("localhost:8001", addresses["control"])
            return command.replace("curl ", "curl --fail-with-body --silent --show-error ")
        command = re.sub(r"train_iters=\d+", "train_iters=2", trained_here(command))
        is_own = re.match(r"(mpirun -n \d+ )?cambium pretrain ", command) and "--init-from" not in command
        return re.sub(r"( +#[^']*)?$", " " + " ".join(SMALL["pretrain"]), command, count=1) if is_own else command

    def run(self, command, printed):
        """Runs a command. One that is seen to fail must fail; a file that a session shows first is written."""
        shown = re.fullmatch(r"cat (\S+)", command)
        if shown and printed and not (self.root / shown[1]).exists():
            (self.root / shown[1]).write_text("\n".join(printed) + "\n")
        if command.startswith("cambium serve "):
            return self.serve(command)
        done = subprocess.run(["bash", "-ec", self.text_of(command)], cwd=self.root, env=self.environment, capture_output=True,
                              timeout=300, input="Once\n", text=True, errors="replace")  # a chat asks this
        fails = any("cambium: error: " in line for line in printed or ())
        assert (done.returncode != 0) == fails, f"{command}\nstatus {done.returncode}\n{done.stdout[-1000:]}{done.stderr[-2000:]}"
        if "/v1/drain" in command:
            self.server.process.wait(PATIENCE)  # it ends by itself, and a signal just then would be its end
        return None


class Commands(unittest.TestCase):
    def test_each_reason_not_to_run_is_needed(self):
        commands = [command for page in PAGES for command, _ in all_commands(page)]
        self.assertEqual([pattern for pattern in CANNOT_RUN if not any(re.search(pattern, command) for command in commands)], [])
        self.assertGreater(sum(reason(command) is None for command in commands), 40)

    def test_options_of_commands_that_cannot_run_exist(self):
        calls = {tuple(words) for page in PAGES for command, _ in all_commands(page) if reason(command)
                 for words in words_of_cambium(command)}
        self.assertGreater(len(calls), 10)
        for words in sorted(calls):
            done = subprocess.run([CAMBIUM, *words, "--help"], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, 0, f"{' '.join(words)}\n{done.stderr}")

    @unittest.skipIf(SANITIZED, "other tests run these commands under a sanitizer")
    @unittest.skipUnless(shutil.which("curl"), "there is no curl")
    def test_commands_work_as_they_stand(self):
        with tempfile.TemporaryDirectory(prefix="cambium-test-") as directory:
            workplace = pathlib.Path(directory) / "workplace"
            workplace.mkdir()
            write_workplace(workplace)
            for page in PAGES:
                with self.subTest(name_of(page)):
                    session = Session(workplace, pathlib.Path(directory) / name_of(page).replace("/", "-"))
                    try:
                        for command, printed in all_commands(page):
                            if not reason(command) and is_installed("mpirun", command) and is_installed("protoc-c", command):
                                session.run(command, printed)
                    finally:
                        session.end()

    def test_configurations_are_accepted(self):
        self.assertEqual(configuration(SOURCE / "README.md"), configuration(SOURCE / "docs/pretraining.md"))
        with tempfile.TemporaryDirectory(prefix="cambium-test-") as directory:
            path, model = pathlib.Path(directory) / "run.yaml", pathlib.Path(directory) / "model"
            write_reciting_model(model, RECITED)
            (model.parent / "text.txt").write_bytes(RECITED)
            run("preprocess", "--input", model.parent / "text.txt", "--tokenizer", model, "--output-prefix", model.parent / "p")
            path.write_text(configuration(SOURCE / "docs/pretraining.md", "model:"))
            plan, _ = run("pretrain", "--config", path, "--dry-run", f"--tokenizer={model}", "--train.train_iters=1",
                          f"--data.data_path={model.parent / 'p_text_document'}", "--data.seq_length=64", "--optim.lr=1e-3")
            self.assertIn(b"num_query_groups: 4", plan)


if __name__ == "__main__":
    unittest.main()
