#!/usr/bin/env python3
"""Writes tests/data/golden/megatron.json: index maps, blends and samples as Megatron-LM itself makes them.

Made with megatron-core 0.16.1 (its compiled helpers_cpp included), numpy 2.4.6, torch 2.15.0:

    pip install megatron-core==0.16.1 numpy==2.4.6 torch
    python tools/golden/megatron_data.py

Tokens are not stored. Token i of a file is (i * i + 13 * i + salt) % 89 % 11; 7 ends a document. Long arrays are
stored as the CRC-32 of their 32-bit (dataset_sample_index: 64-bit) little-endian entries.
"""
import json
import os
import random
import shutil
import tempfile
import warnings
import zlib

warnings.filterwarnings("ignore")
import numpy
import torch
from megatron.core.datasets import helpers_cpp
from megatron.core.datasets.blended_dataset import BlendedDataset
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
from megatron.core.datasets.utils import get_blend_from_list

EOD = 7
LONG = 40  # entries that are written out
OUT = os.path.join(os.path.dirname(__file__), "..", "..", "tests", "data", "golden", "megatron.json")


class Tokenizer:
    vocab_size, eod, eos = 31, EOD, EOD
    special_tokens_dict, unique_identifiers = {}, {}

    @property
    def pad(self):
        raise AttributeError


def write(prefix, lengths, salt):
    n = numpy.arange(sum(lengths), dtype=numpy.int64)
    tokens = (n * n + 13 * n + salt) % 89 % 11
    builder = IndexedDatasetBuilder(prefix + ".bin", dtype=numpy.uint16)
    at = 0
    for length in lengths:
        builder.add_item(torch.from_numpy(tokens[at : at + length]))
        builder.end_document()
        at += length
    builder.finalize(prefix + ".idx")


def build(directory, files, weights, case):
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory)
    words = []
    for k, lengths in enumerate(files):
        prefix = f"{directory}/f{k}"
        write(prefix, lengths, k)
        words += [weights[k], prefix] if weights else [prefix]
    config = GPTDatasetConfig(
        random_seed=case["seed"],
        sequence_length=case["seq_length"],
        blend=get_blend_from_list(words),
        split=case["split"] or "1,0,0",
        tokenizer=Tokenizer(),
        eod_mask_loss=case["eod_mask_loss"],
        reset_position_ids=case["reset_position_ids"],
        reset_attention_mask=case["reset_attention_mask"],
    )
    samples = case["samples"] or None
    sizes = [samples if weights else None] * 3
    sizes[case["which"]] = samples
    return BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()[case["which"]]


def stored(array, dtype):
    array = numpy.ascontiguousarray(array, dtype=dtype)
    if array.size <= LONG:
        return array.reshape(-1).tolist()
    return {"count": int(array.size), "crc32": zlib.crc32(array.tobytes())}


def result(dataset, rng):
    out = {"length": len(dataset), "shown": []}
    if isinstance(dataset, BlendedDataset):
        out["dataset_index"] = stored(dataset.dataset_index, "<i4")
        out["dataset_sample_index"] = stored(dataset.dataset_sample_index, "<i8")
    else:
        for name in ("document_index", "sample_index", "shuffle_index"):
            out[name] = stored(getattr(dataset, name), "<i4")
    for k in sorted(rng.sample(range(len(dataset)), min(3, len(dataset)))):
        sample = dataset[k]
        first = (~sample["attention_mask"][0]).int().argmax(dim=1)  # the first column that each row sees
        out["shown"].append(
            {
                "sample": k,
                "tokens": sample["tokens"].tolist(),
                "labels": sample["labels"].tolist(),
                "loss_mask": sample["loss_mask"].int().tolist(),
                "positions": sample["position_ids"].tolist(),
                "segments": sorted(set(first.tolist())),
            }
        )
    return out


def case(rng, **given):
    flags = {name: rng.random() < 0.5 for name in ("eod_mask_loss", "reset_position_ids", "reset_attention_mask")}
    base = {"samples": 0, "seed": rng.randrange(2**32), "seq_length": 8, "split": None, "which": 0, "weights": None}
    return base | flags | given


def lengths(rng, count, longest):
    return [rng.randint(0, longest) for _ in range(count - 1)] + [longest]


def running_sum(w):
    total = 0.0
    for x in w:
        total += x
    return total


def eight_lanes(w):
    """numpy's sum of up to 128 values, for any number of them."""
    if len(w) < 8:
        return running_sum(w)
    r = [running_sum(w[i : len(w) - len(w) % 8 : 8]) for i in range(8)]
    return running_sum([((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7])), *w[len(w) - len(w) % 8 :]])


def plain_halves(w):
    """numpy's sum with halves that are no multiples of 8."""
    return eight_lanes(w) if len(w) <= 128 else plain_halves(w[: len(w) // 2]) + plain_halves(w[len(w) // 2 :])


def telling_weights(rng, count):
    """Weights whose blend comes out differently with any other order of additions."""
    others = [running_sum] + ([eight_lanes, plain_halves] if count > 128 else [])

    def indexes(add):
        w = numpy.array(weights, dtype=numpy.float64)
        for _ in range(2):
            w = w / (numpy.sum(w) if add is None else add(w.tolist()))
        out = numpy.zeros(3000, dtype=numpy.int16), numpy.zeros(3000, dtype=numpy.int64)
        helpers_cpp.build_blending_indices(*out, w.tolist(), count, 3000, False)
        return out[0].tobytes()

    while True:
        weights = [rng.randint(1, 9) / 10 for _ in range(count)]
        right = indexes(None)
        if all(indexes(add) != right for add in others):
            return [str(w) for w in weights]


def cases(rng):
    vector = [10, 3, 7, 5, 12, 4]
    for samples in (0, 5, 12, 1000):
        yield case(rng, files=[vector], samples=samples, seed=1234)
    yield case(rng, files=[[5] * 10], seed=42)
    yield case(rng, files=[[5] * 10], seed=1234)
    for seed in (0, 1, 2**32 - 1):
        yield case(rng, files=[lengths(rng, 30, 20)], seq_length=16, samples=40, seed=seed)
    # around the threshold below which the last epoch is shuffled apart
    for samples in range(95, 150, 3):
        yield case(rng, files=[[11] * 40], samples=samples, seed=7)
    yield case(rng, files=[lengths(rng, 700, 90)], seq_length=32, samples=3000)
    for split, count in (("969, 30, 1", 400), ("99.0,.8,.2", 300), ("1,1,1", 11), ("0.5,.5,0", 5), ("8:1:1", 45), ("70 20 10", 25)):
        for which in range(2):
            yield case(rng, files=[lengths(rng, count, 30)], split=split, which=which, samples=60)
    yield case(rng, files=[lengths(rng, 40, 30)], split="0,0,3", which=2, samples=9)
    # blends: few and many parts (numpy sums 8 at a time, then in halves), one part, by lengths, exhaustive
    eight = [f"{rng.random():.3f}" for _ in range(8)]
    for weights in (["0.5", "0.25", "0.25"], ["0.7", "0.2", "0.1"], ["1.0"], ["3", "1e1", ".5", "0.0333"], eight):
        files = [lengths(rng, 12, 30) for _ in weights]
        yield case(rng, files=files, weights=weights, samples=200)
    for count in (8, 9, 20, 133, 300):
        files = [lengths(rng, 4, 30) for _ in range(count)]
        yield case(rng, files=files, weights=telling_weights(rng, count), samples=3000)
    yield case(rng, files=[lengths(rng, 60, 40) for _ in range(3)], weights=["2", "1", "1"], samples=500, split="8,1,1", which=1)
    for samples in (0, 30, 100000):
        yield case(rng, files=[lengths(rng, 10 * k, 30) for k in (2, 1, 3)], samples=samples)


def main():
    rng = random.Random(20261121)
    out = []
    with tempfile.TemporaryDirectory() as directory:
        for number, c in enumerate(cases(rng)):
            out.append(c | {"expected": result(build(f"{directory}/{number}", c["files"], c["weights"], c), rng)})
    with open(OUT, "w", encoding="ascii") as f:
        f.write("[\n" + ",\n".join(json.dumps(c) for c in out) + "\n]\n")
    print(len(out), "cases")


if __name__ == "__main__":
    main()
