#!/usr/bin/env python3
"""Writes tests/ckpt/golden/dcp/NAME/: small directories of PyTorch's distributed checkpoint, and next to each its tensors
as expected.safetensors. Made with torch 2.15.0 and safetensors 0.8.0 on a CPU (gloo for several ranks).

    python tools/golden/torch_checkpoints.py [OUTPUT]
"""
import pathlib
import pickle
import shutil
import struct
import sys
import warnings
import zlib

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.format_utils import torch_save_to_dcp
from torch.distributed.checkpoint.metadata import TensorProperties

warnings.filterwarnings("ignore")
OUTPUT = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "tests/ckpt/golden/dcp")


def numbers(*shape, dtype=torch.float32, seed=1):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator) == 1
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(0, 100, shape, generator=generator).to(dtype)


def flatten(value, name=()):
    """The tensors of a state dict under the names that dcp gives them."""
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, (list, tuple)) and any(isinstance(v, (torch.Tensor, dict, list)) for v in value):
        items = enumerate(value)
    else:
        return {".".join(name): value.detach().contiguous().clone()} if isinstance(value, torch.Tensor) else {}
    return {k: v for key, v in items for k, v in flatten(v, name + (str(key),)).items()}


def finish(directory, tensors):
    for path in list(directory.iterdir()):
        if path.name not in (".metadata",) and path.suffix != ".distcp":
            path.unlink() if path.is_file() else shutil.rmtree(path)
    save_file(tensors, directory / "expected.safetensors")


def one(name, state, **options):
    directory = OUTPUT / name
    dcp.save(state, storage_writer=FileSystemWriter(directory, **options))
    finish(directory, flatten(state))
    return directory


def repickle(directory, protocol, change=lambda metadata: None):
    path = directory / ".metadata"
    metadata = FileSystemReader(directory).read_metadata()
    metadata.storage_meta = None
    change(metadata)
    path.write_bytes(pickle.dumps(metadata, protocol=protocol))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(5, 7)
        self.norm = torch.nn.LayerNorm(7)
        self.second = torch.nn.Linear(7, 3, bias=False)

    def forward(self, x):
        return self.second(self.norm(self.first(x)))


def alone():
    one("floats", {str(t)[6:]: numbers(3, 4, dtype=t) for t in (torch.float32, torch.float64, torch.float16, torch.bfloat16)})
    one("integers", {str(t)[6:]: numbers(5, dtype=t) for t in (torch.int64, torch.int32, torch.int16, torch.int8)})
    one("unsigned", {str(t)[6:]: numbers(5, dtype=t) for t in (torch.uint8, torch.uint16, torch.uint32, torch.uint64)})
    one("bytes", {str(t)[6:]: numbers(2, 3, dtype=t) for t in (torch.bool, torch.float8_e4m3fn, torch.float8_e5m2)})
    one("scalars", {"a": torch.tensor(3.5), "b": torch.tensor(7), "c": torch.tensor(True), "d": numbers(1), "e": numbers(1, 1)})
    one("empty", {"a": torch.zeros(0), "b": torch.zeros(0, 3), "c": torch.zeros(3, 0), "d": numbers(2)})
    one("transposed", {"a": numbers(3, 5).t(), "b": numbers(70, 300).t(), "c": numbers(1, 5).t(), "d": numbers(4, 4, dtype=torch.bfloat16).t()})
    one("views", {"a": numbers(6, 4)[2:5], "b": numbers(6, 4)[:, 1:3], "c": numbers(20)[::3], "d": numbers(2, 3).expand(4, 2, 3)})
    one("nested", {"model": {"layers": [{"weight": numbers(2, 2)}, {"weight": numbers(2, 3)}]}, "list": [numbers(1), [numbers(2)]]})
    one("objects", {"step": 7, "name": "text", "rates": [0.1, 0.2], "none": None, "weights": numbers(3), "size": torch.Size([2]), "set": {1, 2}})
    one("names", {"ä.ö": numbers(2), "x" * 300: numbers(3), "a b/c": numbers(1), "日本": numbers(2, 2)})
    one("many", {f"t{i}": numbers(i % 4 + 1) for i in range(30)})
    one("dimensions", {"a": numbers(2, 3, 2, 1, 2), "b": numbers(1, 2, 1, 2, 1, 2, 1, 2)})
    one("parameters", Model().state_dict())
    one("gradients", {"a": torch.nn.Parameter(numbers(3, 3)), "b": numbers(2).requires_grad_()})
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    model(numbers(2, 5)).sum().backward()
    optimizer.step()
    one("optimizer", {"model": model.state_dict(), "optim": optimizer.state_dict()})
    one("file_each", {"a": numbers(3), "b": numbers(2, 2), "c": 1}, single_file_per_rank=False)
    one("threads", {f"t{i}": numbers(3, i + 1) for i in range(5)}, thread_count=2)
    one("channels", {"a": numbers(2, 3, 4, 5)})
    torch.save({"model": Model().state_dict(), "step": 3}, OUTPUT / "whole.pt")
    torch_save_to_dcp(OUTPUT / "whole.pt", OUTPUT / "from_torch_save")
    finish(OUTPUT / "from_torch_save", flatten(torch.load(OUTPUT / "whole.pt")))
    (OUTPUT / "whole.pt").unlink()
    for protocol in (2, 3, 4, 5):
        repickle(one(f"protocol_{protocol}", {"a": numbers(3, 300), "b": {"c": numbers(2)}, "d": "text"}), protocol)
    old_properties(one("old_properties", {"a": numbers(3, 4), "b": numbers(2, dtype=torch.bfloat16)}))
    source = load_file("tests/model/golden/llama_biases_linear/model.safetensors")
    one("model", {"module": source, "optim": {"state": {name: {"exp_avg": torch.zeros(1)} for name in source}}, "step": 3})
    bare = one("no_version", {"a": numbers(3, 4)})
    repickle(bare, 4, lambda m: [m.__dict__.pop(name) for name in ("storage_meta", "version", "planner_data")])
    zip64(one("zip64", {"a": numbers(3, 4)}))


def old_properties(directory):
    """TensorProperties as they were before they had strides: a state of five."""
    new = TensorProperties.__getstate__
    TensorProperties.__getstate__ = lambda self: new(self)[:5]
    repickle(directory, 2)
    TensorProperties.__getstate__ = new


def zip64(directory):
    """The archive of the one tensor again, with the sizes and the directory of zip64."""
    import io
    import zipfile
    path = directory / "__0_0.distcp"
    records = zipfile.ZipFile(io.BytesIO(path.read_bytes()))
    content, central = b"", b""
    for info in records.infolist():
        data, name = records.read(info), info.filename.encode()
        central += struct.pack("<IHHHHHHIIIHHHHHII", 0x02014b50, 45, 45, 0, 0, 0, 0, zlib.crc32(data), 0xffffffff, 0xffffffff, len(name), 28,
                               0, 0, 0, 0, 0xffffffff) + name + struct.pack("<HHQQQ", 1, 24, len(data), len(data), len(content))
        content += struct.pack("<IHHHHHIIIHH", 0x04034b50, 45, 0, 0, 0, 0, zlib.crc32(data), len(data), len(data), len(name), 0) + name + data
    end64 = struct.pack("<IQHHIIQQQQ", 0x06064b50, 44, 45, 45, 0, 0, len(records.infolist()), len(records.infolist()), len(central), len(content))
    locator = struct.pack("<IIQI", 0x07064b50, 0, len(content) + len(central), 1)
    end = struct.pack("<IHHHHIIH", 0x06054b50, 0, 0, 0xffff, 0xffff, 0xffffffff, 0xffffffff, 0)
    path.write_bytes(content + central + end64 + locator + end)

    def change(metadata):
        for info in metadata.storage_data.values():
            info.length = path.stat().st_size
    repickle(directory, 4, change)


# ---- several ranks ----

def on_ranks(rank, size, port, name, output):
    global OUTPUT
    OUTPUT = pathlib.Path(output)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    state, whole = CASES[name][1](size)
    dcp.save(state, storage_writer=FileSystemWriter(OUTPUT / name))
    dist.barrier()
    if rank == 0:
        finish(OUTPUT / name, flatten(whole() if callable(whole) else whole))
    dist.destroy_process_group()


def placed(shape, placements, mesh_shape=None, dtype=torch.float32):
    def make(size):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import distribute_tensor
        mesh = init_device_mesh("cpu", mesh_shape or (size,))
        whole = {"a": numbers(*shape, dtype=dtype), "b": numbers(3)}
        return {"a": distribute_tensor(whole["a"], mesh, placements), "b": whole["b"]}, whole
    return make


def fully_sharded(with_optimizer):
    def make(size):
        from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import DTensor
        torch.manual_seed(1)
        model = Model()
        fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
        state = {"model": get_model_state_dict(model)}
        if with_optimizer:
            optimizer = torch.optim.AdamW(model.parameters())
            model(numbers(2, 5)).sum().backward()
            optimizer.step()
            state = dict(zip(("model", "optim"), get_state_dict(model, optimizer)))
        gather = lambda v: v.full_tensor() if isinstance(v, DTensor) else v
        deep = lambda v: {k: deep(x) for k, x in v.items()} if isinstance(v, dict) else [deep(x) for x in v] if isinstance(v, list) else gather(v)
        whole = deep(state)
        return state, whole
    return make


def cases():
    from torch.distributed.tensor import Replicate, Shard
    return {
        "rows": (2, placed((4, 3), [Shard(0)])),
        "rows_uneven": (3, placed((7, 3), [Shard(0)])),
        "rows_empty": (4, placed((5, 2), [Shard(0)])),
        "rows_fewer_than_ranks": (3, placed((2, 2), [Shard(0)])),
        "columns": (2, placed((3, 6), [Shard(1)])),
        "columns_uneven": (3, placed((3, 7), [Shard(1)])),
        "columns_long": (2, placed((70, 70), [Shard(1)])),
        "last_of_three": (2, placed((2, 3, 5), [Shard(2)])),
        "middle_of_three": (2, placed((2, 3, 5), [Shard(1)], dtype=torch.bfloat16)),
        "replicated": (2, placed((3, 4), [Replicate()])),
        "grid": (4, placed((5, 7), [Shard(0), Shard(1)], (2, 2))),
        "grid_of_rows": (4, placed((9, 2), [Shard(0), Shard(0)], (2, 2))),
        "grid_replicated": (4, placed((5, 7), [Replicate(), Shard(1)], (2, 2))),
        "fsdp2": (2, fully_sharded(False)),
        "fsdp2_uneven": (3, fully_sharded(False)),
        "fsdp2_optimizer": (2, fully_sharded(True)),
    }


CASES = cases()

if __name__ == "__main__":
    shutil.rmtree(OUTPUT, ignore_errors=True)
    OUTPUT.mkdir(parents=True)
    alone()
    for number, (name, (size, _)) in enumerate(CASES.items()):
        mp.spawn(on_ranks, (size, 29600 + number, name, str(OUTPUT)), nprocs=size)
    print(len(list(OUTPUT.iterdir())), "directories")
