"""tiktoken and tokenizers for `cambium bench tokenizer`, on one thread: TOKENIZER_DIRECTORY TEXT_FILE.

First prints the versions that are here (null: not installed). Then it answers each line of its input, with seconds and the
result. A line is the name of a library ("encode the text") or "train N" ("learn N entries from the file, by tokenizers")."""
import importlib
import json
import os
import pathlib
import sys
import time

os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""


def find(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def read_vocabulary(directory):
    """Merges as pairs of names in GPT-2's byte alphabet."""
    if (directory / "tokenizer.json").exists():
        merges = json.loads((directory / "tokenizer.json").read_text(encoding="utf-8"))["model"]["merges"]
        return [tuple(pair.split(" ")) if isinstance(pair, str) else tuple(pair) for pair in merges]
    lines = (directory / "merges.txt").read_text(encoding="utf-8").split("\n")
    return [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]


def open_tiktoken(tiktoken, directory):
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    byte_of = {chr(b): b for b in printable}
    byte_of.update({chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in printable)})
    ranks = {bytes([b]): i for i, b in enumerate(byte_of.values())}
    for pair in read_vocabulary(directory):
        ranks.setdefault(bytes(byte_of[c] for c in "".join(pair)), len(ranks))
    return tiktoken.Encoding("peer", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={}).encode_ordinary


def open_tokenizers(tokenizers, directory):
    if (directory / "tokenizer.json").exists():
        whole = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    else:
        whole = tokenizers.ByteLevelBPETokenizer(str(directory / "vocab.json"), str(directory / "merges.txt"))
    return lambda text: whole.encode(text, add_special_tokens=False).ids


def train(tokenizers, path, entries):
    learner = tokenizers.Tokenizer(tokenizers.models.BPE())
    learner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    learner.train([path], tokenizers.trainers.BpeTrainer(
        vocab_size=entries, show_progress=False, special_tokens=["<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    return learner.get_vocab_size()


def timed(run):
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result


def main():
    directory, path = pathlib.Path(sys.argv[1]), sys.argv[2]
    found = {name: find(name) for name in ("tiktoken", "tokenizers")}
    print(json.dumps({name: module and getattr(module, "__version__", "unknown") for name, module in found.items()}), flush=True)
    text = pathlib.Path(path).read_bytes().decode("utf-8", "replace")
    openers, encoders = {"tiktoken": open_tiktoken, "tokenizers": open_tokenizers}, {}
    for line in sys.stdin:
        word, *rest = line.split()
        try:
            if word == "train":
                seconds, entries = timed(lambda: train(found["tokenizers"], path, int(rest[0])))
                answer = {"seconds": seconds, "vocab_size": entries}
            else:
                encoders[word] = encoders.get(word) or openers[word](found[word], directory)
                seconds, ids = timed(lambda: encoders[word](text))
                answer = {"seconds": seconds, "tokens": len(ids)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


main()
