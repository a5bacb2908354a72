"""Pipeline orders, layers of stages and groups of ranks according to megatron-core, for tests/parallel.

Made with megatron-core 0.16.1 (its pure functions; nothing is initialised). Each line is a case: the words of the
question, a colon, the answer.

- schedule P V M GROUP STAGE : F<micro batch><chunk letter> ... B<micro batch><chunk letter> ...
- layers LAYERS P V FIRST LAST EMBEDDING LOSS : first+count of every stage and chunk, stage by stage (FIRST, LAST 0: not
  given; EMBEDDING, LOSS 1: account_for_..._in_pipeline_split)
- groups TP CP EP DP PP AXES : the groups of those axes, ranks by commas

    python tools/golden/megatron_parallel.py > tests/parallel/golden/megatron.txt
"""
from types import SimpleNamespace

from megatron.core.parallel_state import RankGenerator
from megatron.core.pipeline_parallel.schedules import get_pp_rank_microbatches, get_schedule_table
from megatron.core.transformer.transformer_block import get_num_layers_to_build
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset


def schedule(p, v, m, group, stage):
    pipeline = SimpleNamespace(pp_group=SimpleNamespace(size=lambda: p, rank=lambda: stage),
                               virtual_pipeline_model_parallel_size=v)
    total, _, warm_up, _ = get_pp_rank_microbatches(m, v, group, p2p_communicator=pipeline)
    table = get_schedule_table(m, v, group)
    forward = lambda k: f"F{table[k][0]}{'abcdefgh'[table[k][1]]}"
    backward = lambda k: f"B{table[k][0]}{'abcdefgh'[v - 1 - table[k][1]]}"
    steps = [forward(k) for k in range(warm_up)]
    for k in range(total - warm_up):
        steps += [forward(k + warm_up), backward(k)]
    return steps + [backward(k) for k in range(total - warm_up, total)]


def layers(count, p, v, first, last, embedding, loss):
    config = SimpleNamespace(num_layers=count, pipeline_model_parallel_size=p, pipeline_model_parallel_layout=None,
                             virtual_pipeline_model_parallel_size=v if v > 1 else None,
                             num_layers_in_first_pipeline_stage=first or None,
                             num_layers_in_last_pipeline_stage=last or None,
                             account_for_embedding_in_pipeline_split=bool(embedding),
                             account_for_loss_in_pipeline_split=bool(loss))
    for stage in range(p):
        for chunk in range(v):
            offset = get_transformer_layer_offset(config, vp_stage=chunk, pp_rank=stage)
            yield f"{offset}+{get_num_layers_to_build(config, vp_stage=chunk, pp_rank=stage)}"


for p, v, m, group in [(2, 2, 4, 2), (2, 2, 5, 3), (2, 3, 6, 2), (3, 2, 7, 4), (4, 2, 8, 4), (4, 4, 8, 4), (4, 2, 4, 4),
                       (4, 3, 12, 6), (3, 4, 15, 5), (5, 2, 11, 6)]:
    for stage in range(p):
        print("schedule", p, v, m, group, stage, ":", *schedule(p, v, m, group, stage))
for case in [(16, 4, 1, 0, 0), (16, 4, 2, 0, 0), (12, 2, 1, 9, 0), (12, 2, 1, 0, 3), (12, 3, 1, 2, 4), (10, 4, 1, 1, 3),
             (12, 2, 1, 7, 5), (24, 4, 2, 4, 8), (26, 4, 2, 2, 0), (26, 4, 2, 0, 2), (12, 2, 3, 9, 0), (7, 1, 1, 0, 0)]:
    print("layers", *case, 0, 0, ":", *layers(*case, 0, 0))
for count, p, v, embedding, loss in [(15, 4, 2, 1, 0), (15, 4, 2, 0, 1), (14, 4, 2, 1, 1), (14, 4, 1, 1, 1), (11, 2, 3, 1, 0),
                                     (6, 4, 2, 1, 1), (3, 4, 1, 0, 1), (126, 16, 8, 1, 1), (126, 16, 4, 1, 1)]:
    print("layers", count, p, v, 0, 0, embedding, loss, ":", *layers(count, p, v, 0, 0, embedding, loss))
for sizes in [(2, 1, 1, 2, 4), (2, 2, 1, 3, 2), (1, 1, 1, 4, 1), (4, 1, 1, 1, 2), (2, 1, 2, 2, 2)]:
    tp, cp, ep, dp, pp = sizes
    generator = RankGenerator(tp=tp, cp=cp, ep=ep, dp=dp, pp=pp, order="tp-cp-ep-dp-pp")
    for axes in ["tp", "cp", "ep", "dp", "pp", "tp-pp", "cp-dp", "tp-dp"]:
        print("groups", *sizes, axes, ":", *(",".join(map(str, group)) for group in generator.get_ranks(axes)))
