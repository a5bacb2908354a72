"""chat: a conversation in a terminal, with libedit and without, and a question from a pipe."""
import contextlib
import ctypes
import json
import os
import pathlib
import pty
import re
import select
import signal
import stat
import subprocess
import tempfile
import termios
import time
import unittest

from model_support import CAMBIUM, EOS, floats, run, write_reciting_model, write_safetensors

ENDLESS = "Sing until I tell you that it is enough"  # the model's answer has no end within the test
VIRTUAL_TOKENS = 20
POSITIONS = 50000


def has_libedit():
    with contextlib.suppress(OSError):
        return bool(ctypes.CDLL("libedit.so.2"))
    return False


def tape():
    """The model's words at each position. The template "plain" has a token for each byte of a question, a line end, and a
    token at the end of an answer. So a question's answer stands at the place that follows from all that was said."""
    words = [ord("~")] * POSITIONS
    for place, text in ((2, "Yes"), (6, "Sir"), (10, "Again"), (VIRTUAL_TOKENS + 2, "Tuned")):
        words[place:place + len(text) + 1] = [*text.encode(), EOS]
    words[len(ENDLESS):] = [*b"la " * POSITIONS][:POSITIONS - len(ENDLESS)]
    return words


def write_adapter(directory):
    """Prompt tuning, which moves all words of a conversation to later places."""
    directory.mkdir(parents=True)
    (directory / "adapter_config.json").write_text(json.dumps({
        "peft_type": "PROMPT_TUNING", "task_type": "CAUSAL_LM", "num_virtual_tokens": VIRTUAL_TOKENS, "token_dim": 64,
        "num_layers": 1, "num_attention_heads": 4, "num_transformer_submodules": 1, "prompt_tuning_init": "RANDOM"}))
    write_safetensors(directory / "adapter_model.safetensors", {
        "prompt_embeddings": ("F32", (VIRTUAL_TOKENS, 64), floats([0.0] * (VIRTUAL_TOKENS * 64)))})


class Talk(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory(prefix="cambium-test-")
        cls.addClassCleanup(temporary.cleanup)
        cls.root = pathlib.Path(temporary.name)
        cls.model = cls.root / "model"
        write_reciting_model(cls.model, tape(), positions=POSITIONS)
        write_adapter(cls.root / "adapters" / "shift")

    def words(self, *more):
        return [CAMBIUM, "chat", "--model", self.model, "--chat-template", "plain", "--temperature", "0", *more]

    def begin(self, *more, state=None):
        """Starts a conversation on a terminal. Its lines are kept in the directory `state`."""
        child, self.terminal = pty.fork()
        if not child:
            os.execve(CAMBIUM, self.words(*more), os.environ | {
                "TERM": "dumb", "LC_ALL": "C", "XDG_STATE_HOME": str(state or self.root / "state" / self.id())})
        self.addCleanup(os.close, self.terminal)
        self.child, self.shown = child, ""
        self.addCleanup(lambda: self.child and self.end(0))
        self.wait_for("lists the commands")
        self.wait_for("> ")

    def end(self, patience=240):
        """Reads the rest of what is shown, and returns the exit status."""
        with contextlib.suppress(OSError):
            while select.select([self.terminal], [], [], patience)[0] and os.read(self.terminal, 4096):
                pass
        if not patience:
            os.kill(self.child, signal.SIGKILL)
        child, self.child = self.child, 0
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def type(self, text, wanted):
        os.write(self.terminal, text.encode())
        return self.wait_for(wanted)

    def wait_for(self, word):
        """Returns what is shown up to this word."""
        end = time.monotonic() + 240
        while word not in self.shown:
            self.assertLess(time.monotonic(), end, f"{word!r} not in {self.shown[-2000:]!r}")
            if select.select([self.terminal], [], [], 1)[0]:
                self.shown += os.read(self.terminal, 4096).decode(errors="replace")
        before, _, self.shown = self.shown.partition(word)
        return before

    def await_editor(self):
        """A line editor may show its prompt before it has taken over the terminal, which until then keeps Ctrl-D."""

    def ask(self, question, answer):
        self.type(question + "\r", answer + "\r\n")
        self.wait_for("> ")


class ControlCharacters(Talk):
    """A model would set the window's title, go back in the line and use C1's CSI."""
    WRITES = "\x1b]0;a\x07b\r\x00\x7f\x9b2Jé\tc\n.".encode()
    SHOWN = "^[]0;a^Gb^M^@^?<U+009B>2Jé\tc\r\n."

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        words = [ord("~")] * 100
        words[2:2 + len(cls.WRITES) + 1] = [*cls.WRITES, EOS]
        cls.model = cls.root / "hostile"
        write_reciting_model(cls.model, words, positions=100)

    def test_chat_shows_them(self):
        self.begin("--line-editor=false")
        self.assertEqual(self.type("Hi\r", "> "), "Hi\r\n" + self.SHOWN + "\r\n")
        self.type("/quit\r", "\n")
        self.assertEqual(self.end(), 0)

    def test_generate_shows_them_at_a_terminal_and_nowhere_else(self):
        for more in (), ("--stream", ), ("--echo", ), ("--stream", "--echo"):
            words = [CAMBIUM, "generate", "--model", self.model, "--prompt", "\x1b2i", "--temperature", "0", *more]
            written = subprocess.run(words, capture_output=True, check=True).stdout
            self.assertEqual(written, (b"\x1b2i" if "--echo" in more else b"") + self.WRITES + b"\n")
            child, terminal = pty.fork()
            if not child:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                os.execv(CAMBIUM, [str(word) for word in words])
            shown = b""
            with contextlib.suppress(OSError):
                while piece := os.read(terminal, 4096):
                    shown += piece
            os.close(terminal)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
            self.assertEqual(shown.decode(), ("^[2i" if "--echo" in more else "") + self.SHOWN + "\r\n")


class Reasoning(Talk):
    TEXT = "<think>\nHm.\n</think>\n\nYes."

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = cls.root / "thinker"
        write_reciting_model(cls.model, [*cls.TEXT.encode(), EOS], positions=100)
        cls.template = cls.root / "template"
        cls.template.write_text("{# <think> #}p")  # a prompt of one token

    def words(self, *more):
        return super().words("--chat-template", self.template, *more)

    def test_standard_output_has_the_answer_only(self):
        done = subprocess.run(self.words(), input=b"Hi\n", capture_output=True, timeout=120)
        self.assertEqual((done.returncode, done.stdout), (0, b"Yes.\n"), done.stderr)
        self.assertIn(b"<think>\nHm.\n</think>\n\n", done.stderr)
        done = subprocess.run(self.words("--max-new-tokens", "10"), input=b"Hi\n", capture_output=True, timeout=120)
        self.assertEqual((done.returncode, done.stdout), (0, b"\n"), done.stderr)
        self.assertIn(b"<think>\nHm\n</think>\n\n", done.stderr)

    def test_a_prompt_may_begin_it(self):
        self.template.write_text("<think>")
        self.addCleanup(self.template.write_text, "{# <think> #}p")
        write_reciting_model(self.model, [*b"......Hm.\n</think>\n\nYes.", EOS], positions=100)
        self.addCleanup(write_reciting_model, self.model, [*self.TEXT.encode(), EOS], positions=100)
        done = subprocess.run(self.words(), input=b"Hi\n", capture_output=True, timeout=120)
        self.assertEqual((done.returncode, done.stdout), (0, b"Yes.\n"), done.stderr)

    def test_it_is_dim_at_a_terminal_and_kept_apart(self):
        self.begin("--line-editor=false")
        self.assertEqual(self.type("Hi\r", "> "), "Hi\r\n\x1b[2mHm.\x1b[22m\r\n\r\nYes.\r\n")
        saved = self.root / "thought.jsonl"
        self.type(f"/save {saved}\r", "> ")
        self.assertEqual(json.loads(saved.read_text())["messages"][1], {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."})
        self.type("/quit\r", "\n")
        self.assertEqual(self.end(), 0)


class Terminal(Talk):
    EDITOR = "--line-editor=false"

    def test_turns_adapters_and_files(self):
        self.begin(self.EDITOR, "--adapter-root", self.root / "adapters")
        self.ask("Hi", "Yes")
        self.ask("So?", "Again")  # at the place after question, answer and question
        saved = self.root / f"{type(self).__name__}.jsonl"
        self.type(f"/save {saved}\r", "> ")
        self.ask("/reset", "")
        self.ask("Hi", "Yes")
        self.type("/adapter\r", "  shift\r\n")
        self.type("/adapter shift\r", "> ")
        self.type("/reset\r", "> ")
        self.ask("Hi", "Tuned")
        self.type("/adapter\r", "* shift\r\n")
        self.type("/reset\r", "> ")
        self.type("/adapter -\r", "> ")
        self.ask("é", "Yes")  # two bytes
        self.type(f"/save {saved}\r", "exists already")
        self.type("/adapter none\r", "there is no adapter 'none'")
        self.type("/rest\r", "did you mean /reset?")
        self.type("/help\r", "/quit")
        self.type("/quit\r", "\n")
        self.assertEqual(self.end(), 0)
        self.assertEqual(json.loads(saved.read_text()), {"messages": [
            {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"},
            {"role": "user", "content": "So?"}, {"role": "assistant", "content": "Again"}]})
        row = json.loads(run("data", "show", "--data", saved, "--tokenizer", self.model, "--chat-template", "plain")[0])
        self.assertEqual("".join(part["text"] for part in row["parts"] if part["is_trained"]), "Yes<|endoftext|>Again<|endoftext|>")

    def test_control_c_ends_an_answer_and_not_the_conversation(self):
        self.begin(self.EDITOR)
        self.type(ENDLESS + "\r", "la la la ")
        self.type("\x03", "> ")
        saved = self.root / f"{type(self).__name__}-interrupted.jsonl"
        self.type(f"/save {saved}\r", "> ")
        question, answer = json.loads(saved.read_text())["messages"]
        self.assertEqual(question["content"], ENDLESS)
        self.assertRegex(answer["content"], "^(la )+l?a?$")
        self.assertLess(len(answer["content"]), POSITIONS - len(ENDLESS) - 1)
        self.type("/reset\r", "> ")
        self.type("What I do not mean", "mean")  # a line that is dropped
        self.type("\x03", "> ")
        self.ask("Hi", "Yes")
        self.await_editor()
        self.type("\x04", "\n")
        self.assertEqual(self.end(), 0)

    def test_a_question_of_two_lines_and_one_that_does_not_fit(self):
        self.begin(self.EDITOR, "--max-model-len", "24")
        self.ask("Hi", "Yes")
        self.type("Is this too long to be asked?\r", "error: ")
        self.assertNotIn("the answer ends here", self.wait_for("> "))
        self.ask("So?", "Again")  # the one that failed is not part of the conversation
        self.type("/reset\r", "> ")
        self.type("H\\\r", ". ")
        self.ask("", "Yes")
        os.kill(self.child, signal.SIGTERM)
        self.assertEqual(self.end(), 0)


@unittest.skipUnless(has_libedit(), "no libedit")
class Edited(Terminal):
    EDITOR = "--line-editor"

    def await_editor(self):
        end = time.monotonic() + 240
        while termios.tcgetattr(self.terminal)[3] & termios.ICANON:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)

    def test_earlier_questions_come_back(self):
        self.begin(self.EDITOR)
        self.ask("Hi", "Yes")
        self.type("/reset\r", "> ")
        self.type("\x10\x10\r", "Yes\r\n")  # Ctrl-P, the line before
        self.wait_for("> ")
        self.type("/reset\r", "> ")
        self.type("i\x01H\r", "Yes\r\n")  # Ctrl-A, the begin of the line


    def talk_once(self, *words, state):
        self.begin(self.EDITOR, *words, state=state)
        self.ask("Hi", "Yes")
        self.type("/quit\r", "\n")
        self.assertEqual(self.end(), 0)

    def test_lines_come_back_in_the_next_conversation(self):
        state = self.root / "kept"
        file = state / "cambium" / "chat_history"
        self.talk_once(state=state)
        self.assertEqual((file.read_text(), stat.S_IMODE(file.stat().st_mode)), ("Hi\n/quit\n", 0o600))
        self.begin(self.EDITOR, state=state)
        self.type("\x10\x10\r", "Yes\r\n")
        self.end(0)  # killed
        self.assertEqual(file.read_text(), "Hi\n/quit\nHi\n")
        self.talk_once("--history=false", state=state)
        self.assertEqual(file.read_text(), "Hi\n/quit\nHi\n")
        file.write_text("".join(f"{i}\n" for i in range(2001)))
        file.chmod(0o644)
        self.talk_once(state=state)
        self.assertEqual(file.read_text(), "".join(f"{i}\n" for i in range(1001, 2001)) + "Hi\n/quit\n")
        self.assertEqual(stat.S_IMODE(file.stat().st_mode), 0o600)

    def test_a_place_that_cannot_be_written_keeps_no_lines(self):
        state = self.root / "lost" / "cambium" / "chat_history"
        state.mkdir(parents=True)  # a directory in the place of the file
        self.talk_once(state=self.root / "lost")
        self.talk_once(state="/dev/null")
        self.assertEqual(list(state.iterdir()), [])


class Pipe(Talk):
    def test_input_is_one_question(self):
        done = subprocess.run(self.words(), input=b"Hi\n", capture_output=True, timeout=120)
        self.assertEqual((done.returncode, done.stdout), (0, b"Yes\n"), done.stderr)
        done = subprocess.run(self.words("--system", "Be."), input=b"Hi\n", capture_output=True, timeout=120)
        self.assertEqual((done.returncode, done.stdout), (0, b"Sir\n"), done.stderr)

    def test_what_is_refused(self):
        done = subprocess.run(self.words(), input=b"\n", capture_output=True, timeout=120)
        self.assertEqual((done.returncode, done.stdout), (1, b""))
        self.assertIn(b"standard input has no question", done.stderr)
        _, errors = run("chat", "--model", self.model, input=b"Hi", expect=1)
        self.assertIn("by --chat-template", errors)
        _, errors = run("chat", "--model", self.model, "--adapter", self.root, "--chat-template", "plain", expect=1)
        self.assertRegex(errors, re.escape(str(self.root)))

    def test_a_signal_ends_the_answer(self):
        with subprocess.Popen(self.words(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
            program.stdin.write(ENDLESS.encode())
            program.stdin.close()
            program.stdout.read(6)
            program.send_signal(signal.SIGINT)
            rest, errors = program.stdout.read(), program.stderr.read().decode()
        self.assertRegex(rest, rb"^(la )*l?a?\n$")
        self.assertEqual(program.returncode, 1)
        self.assertIn("interrupted by SIGINT", errors)


if __name__ == "__main__":
    unittest.main()
