"""pretrain under mpirun in a dozen layouts: the run and the weights of one rank. The short form has half of them, which name
each axis; tests/train/layout_test.c has all on threads."""
import array, json, struct, unittest

from mpi_support import needs_mpirun, start
from pretrain_support import LONG, Run, assert_same_run

MODEL = dict(model__num_layers=4, train__global_batch_size=8, train__micro_batch_size=1, optim__lr=1e-3)
UNTIED = dict(model__untie_embeddings_and_output_weights="true")
# ranks; the layout; more keys. What the other axes leave of the ranks is data parallelism.
SHORT = [
    (2, dict(tp=2, sp=True, recompute="full")),
    (3, dict(zero=True), dict(train__global_batch_size=6)),
    (4, dict(tp=2, sp=True, zero=True), UNTIED),
    (2, dict(pp=2, vp=2, recompute="selective"), dict(train__global_batch_size=2)),
    (3, dict(pp=3, first=1, last=2), UNTIED),
    (4, dict(pp=2, tp=2, sp=True, zero=True)),
]
LAYOUTS = SHORT if not LONG else SHORT + [
    (2, dict(zero=True, recompute="selective")),
    (4, dict(tp=4, sp=True, recompute="selective")),
    (4, dict(tp=2, zero=True)),
    (4, dict(), dict(train__micro_batch_size=2)),
    (2, dict(pp=2)),
    (4, dict(pp=4, recompute="full"), dict(train__global_batch_size=2)),
    (4, dict(pp=2, vp=2, zero=True)),
    (8, dict(pp=2, tp=2, zero=True, recompute="full"), UNTIED),
]


def layout_keys(tp=1, pp=1, vp=None, first=None, last=None, sp=False, zero=False, recompute=None):
    keys = dict(tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, virtual_pipeline_model_parallel_size=vp,
                decoder_first_pipeline_num_layers=first, decoder_last_pipeline_num_layers=last, sequence_parallel=sp and "true",
                use_distributed_optimizer=zero and "true", recompute_granularity=recompute,
                recompute_modules="layernorm,mlp_act" if recompute == "selective" else None)
    return {f"parallel__{key}": value for key, value in keys.items() if value}


def weights(run, name):
    """All values of a model's file, by the tensors' names."""
    (path,) = (run.directory / name).glob("iter_*/model.safetensors")
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    values = {}
    for tensor, entry in header.items():
        if tensor != "__metadata__":
            begin, end = entry["data_offsets"]
            values[tensor] = array.array("f", data[8 + length + begin:8 + length + end])
    return values


@needs_mpirun
class Processes(unittest.TestCase):
    def same_weights(self, ours, one):
        self.assertEqual(ours.keys(), one.keys())
        differences = sorted(abs(a - b) for tensor in one for a, b in zip(ours[tensor], one[tensor], strict=True))
        largest = max(abs(value) for values in one.values() for value in values)
        # As in tests/train/layout_test.c: where the gradients of an element cancel to their own rounding, it may be off by a step.
        self.assertLessEqual(differences[-1], MODEL["optim__lr"])
        self.assertLessEqual(differences[-1 - len(differences) // 10000], 1e-5 * largest)

    def test_a_dozen_layouts_give_the_run_of_one_rank(self):
        run = Run()
        known = set()
        for number, (ranks, layout, *more) in enumerate(LAYOUTS):
            # The micro batch is the layout's alone: one rank takes the global batch in ones.
            keys = dict(MODEL, **(more[0] if more else {}))
            one = "one-" + "-".join(f"{k}-{v}" for k, v in sorted(keys.items()) if k != "train__micro_batch_size" and MODEL.get(k) != v)
            if one not in known:
                run.run(one, **dict(keys, train__micro_batch_size=1))
                known.add(one)
            with self.subTest(ranks=ranks, **layout, **keys):
                process = start(run, ranks, f"layout{number}", **keys, **layout_keys(**layout))
                _, errors = process.communicate(timeout=300)
                self.assertEqual(process.returncode, 0, errors)
                self.assertIn(f"cambium: {ranks} ranks: tensor {layout.get('tp', 1)}, ", errors)
                assert_same_run(self, run.records(f"layout{number}"), run.records(one))
                self.same_weights(weights(run, f"layout{number}"), weights(run, one))


if __name__ == "__main__":
    unittest.main()
