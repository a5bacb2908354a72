"""tools/quickstart without a build and without a training: a program in Cambium's place notes its calls, and reports a
speed that the test chooses. .ci/run runs the real thing."""
import json
import pathlib
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
import unittest

from model_support import SOURCE

LEAST_ITERATIONS, TOKENS, MINUTES = 200, 1024, 1.5
PROGRAM = r"""#!/bin/bash
printf '%q ' "$@" >>"$CALLS"
echo >>"$CALLS"
of() { # OPTION WORD ...
    local option=$1
    shift
    while [ "$1" != "$option" ]; do shift; done
    echo "$2"
}
case $1 in
tokenizer)
    mkdir -p "$(of --output "$@")"
    echo {} >"$(of --output "$@")/tokenizer.json"
    ;;
preprocess)
    echo >"$(of --output-prefix "$@")_text_document.idx"
    echo >"$(of --output-prefix "$@")_text_document.bin"
    ;;
pretrain)
    for word; do
        [[ $word != --log.metrics_file=* ]] || for i in {1..12}; do echo "{\"seconds\": $SPEED}"; done >"${word#*=}"
    done
    config=$(of --config "$@")
    save=$(sed -n 's/^    save: "\(.*\)"$/\1/p' "$config")
    [ -z "$save" ] || {
        at=$save/iter_$(printf %07d "$(sed -n 's/^    train_iters: //p' "$config")")
        mkdir -p "$at" && echo {} >"$at/config.json"
    }
    ;;
generate) echo "Once upon a time" ;;
esac
"""
CMAKE = """#!/bin/bash
[ "$1" != --build ] || for step in 1 2 3 4; do echo "$step/4 cc"; done
"""


class Quickstart(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="cambium-test-")
        self.addCleanup(temporary.cleanup)
        self.root = pathlib.Path(temporary.name) / "a tree"
        self.tool = self.root / "tools" / "quickstart"
        self.tool.parent.mkdir(parents=True)
        shutil.copy(SOURCE / "tools" / "quickstart", self.tool)
        self.program = self.script("build/release/src/cambium", PROGRAM)
        self.script("tools/setup", "#!/bin/sh\n")
        self.script("bin/cmake", CMAKE)
        self.text = self.root / "a text.txt"
        self.text.write_text("Once upon a time there was a text.\n")
        self.output, self.calls = self.root / "the output", self.root / "calls"

    def script(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def start(self, words, speed):
        """Runs a command whose program takes `speed` seconds for an iteration. Returns what it did, and its calls."""
        self.calls.write_text("")
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL,
                              env={"PATH": f"{self.root}/bin:/usr/bin:/bin", "CALLS": str(self.calls), "SPEED": str(speed)})
        return done, self.calls.read_text().splitlines()

    def quickstart(self, *words, speed):
        return self.start([self.tool, "--input", self.text, "--output", self.output, *words], speed)

    def test_it_says_how_long_the_training_takes_before_it_begins(self):
        done, calls = self.quickstart(speed=0.1)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, "Once upon a time\n")
        estimate = f"quickstart: {TOKENS / 0.1:.0f} tokens/s: the training takes {MINUTES} minutes, 900 iterations of {TOKENS} tokens\n"
        self.assertIn(estimate, done.stderr)
        self.assertLess(done.stderr.index(estimate), done.stderr.index("pretrain --config"))
        self.assertRegex(done.stderr, r"quickstart: building: 50%, \d+m \d\ds left\n")
        self.assertTrue((self.output / "model/iter_0000900/config.json").exists())

    def test_a_slow_machine_takes_longer_and_a_very_slow_one_is_told_what_would_do(self):
        enough = LEAST_ITERATIONS // 60 + 1
        done, calls = self.quickstart(speed=1)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"quickstart: this machine is too slow for {MINUTES} minutes, or busy: --minutes {MINUTES} makes a "
                      "worse model\n", done.stderr)
        self.assertIn(f"the training takes {enough} minutes, {enough * 60} iterations of {TOKENS} tokens\n", done.stderr)
        self.assertTrue((self.output / f"model/iter_{enough * 60:07}/config.json").exists())
        shutil.rmtree(self.output)
        done, calls = self.quickstart(speed=2)
        self.assertEqual(done.returncode, 1)
        enough = 2 * LEAST_ITERATIONS // 60 + 1
        self.assertTrue(done.stderr.endswith(f"quickstart: this machine is too slow for 6 minutes, or busy: --minutes {enough} will "
                                             f"do, or --minutes {MINUTES} for a worse model\n"), done.stderr)
        self.assertEqual([shlex.split(call)[0] for call in calls], ["tokenizer", "preprocess", "pretrain"])  # it measured
        self.assertFalse((self.output / "model").exists())
        for minutes in (enough, MINUTES):  # both suggestions work
            shutil.rmtree(self.output)
            done, calls = self.quickstart("--minutes", minutes, speed=2)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertTrue((self.output / f"model/iter_{max(int(minutes * 30) // 20, 1) * 20:07}/config.json").exists())

    def test_its_commands_work_when_they_are_pasted(self):
        done, calls = self.quickstart(speed=0.1)
        file = self.output / "commands.sh"
        self.assertTrue(file.stat().st_mode & stat.S_IXUSR)
        steps = [call for call in calls if "/probe/" not in call.replace("\\", "")]
        self.assertEqual([shlex.split(call)[0] for call in steps], ["tokenizer", "preprocess", "pretrain", "generate"])
        printed = [line.removeprefix("quickstart: ") for line in done.stderr.splitlines()]
        shown = [line for line in printed if line.startswith(str(self.program).replace(" ", "\\ "))]
        self.assertEqual(len(shown), len(steps))
        last = dict(line.split(": ", 1) for line in printed[-5:] if ": " in line)
        for command in (*shown, last["the chat"], last["the page, http://127.0.0.1:8000/ "],
                        last["a larger model, planned for a cluster"]):
            _, called = self.start(["bash", "-c", command], 0.1)
            self.assertEqual(called, [command.split("/cambium ", 1)[1] + " "], command)
        self.assertEqual(printed[-1], f"the files: {self.output}")
        again, called = self.start(["bash", "-c", last["to continue, all commands so far"]], 0.1)
        plan = last["a larger model, planned for a cluster"].split("/cambium ", 1)[1] + " "
        self.assertEqual((again.returncode, called), (0, [*steps, plan]), again.stderr)
        for command in (last["the chat"], last["the page, http://127.0.0.1:8000/ "]):  # for a terminal alone
            self.assertIn(f"\n[ ! -t 0 ] || {command}\n", file.read_text())

    def test_answers_are_shown_as_labelled_texts(self):
        script = (SOURCE / "tools/quickstart").read_text()
        functions = "".join(re.findall(r"(?ms)^(?:show\(\) \{\n.*?^\}|generation_in\(\) \{[^\n]*)\n", script))
        answer = {"adapters": [{"name": "a", "generation": 3}], "choices": [{"index": 0, "text": ' is "café"\\ \t and\nmore\x1b[2J' + "it's"}]}
        text = '  Love is "café"\\ \t and\n  more[2J' + "it's\n"
        protobuf = 'started {\n  seed: 1\n}\noutputs {\n  text: " is \\"caf\\303\\251\\"\\\\ \\t and\\nmore\\033[2Jit\\\'s"\n  token_ids: 7\n}\n'
        stream = "".join(f"data: {json.dumps({'choices': [{'index': 0, 'text': part}]})}\n\n" for part in ("a \n", 'b"'))
        for words, given, expected in (("show 'one, over HTTP'", json.dumps(answer, separators=(",", ":")), "one, over HTTP:\n" + text),
                                       ("show two", json.dumps(answer, ensure_ascii=False), "two:\n" + text), ("show three", protobuf, "three:\n" + text),
                                       ("show stream", stream, 'stream:\n  Lovea \n  b"\n'), ("generation_in", json.dumps(answer, separators=(",", ":")) + "\n", "3\n")):
            done = subprocess.run(["bash", "-c", functions + words], input=given, capture_output=True, text=True, timeout=60,
                                  env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"})
            self.assertEqual((done.stdout, done.returncode), (expected, 0), words + done.stderr)
        done = subprocess.run(["bash", "-c", functions + "show x"], input="{}", capture_output=True, text=True, timeout=60)
        self.assertEqual((done.stdout, done.returncode), ("", 1))  # no answer


if __name__ == "__main__":
    unittest.main()
