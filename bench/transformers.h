/* Hugging Face's transformers, and PEFT, on the shape that we measure. Each of our steps is followed by one of theirs,
 * so that other programs affect both alike. */
#pragma once

#include "bench.h"
#include "peer.h"

struct bench_transformers_task {
    const struct model_config *model;
    const struct peft_config *adapter;       /* trained on a frozen base; NULL: the whole model is trained */
    int64_t micro_batch_size, micro_batches; /* of a step */
    int64_t tokens;                          /* of a sample or a prompt, without virtual tokens */
    int64_t threads;                         /* 0: all cores */
    const char *device;                      /* ours; NULL: the CPU. The peer computes on the same GPU, or on the CPU */
    int precision;                           /* enum precision */
    bool is_inference, has_dropout;
};

struct bench_transformers {
    struct bench_peer *peer; /* NULL: nothing is measured */
    double *seconds;         /* [measured] */
    int64_t measured;
    json_t *versions; /* as the peer reports them */
};

/* Starts its process with a model of random weights, in the Python `python`. It can make `measured` measurements. The
 * errors of bench_peer_open. */
int bench_transformers_open(const struct bench_transformers_task *task, const char *python, int64_t measured,
                            struct bench_transformers *peer);
/* Sends "step", "prefill" or "decode N". Both do nothing when no peer is open. */
int bench_transformers_warm_up(struct bench_transformers *peer, const char *word);
int bench_transformers_measure(struct bench_transformers *peer, const char *word);
/* Prints a summary, and frees it, with "peer" and with "our_speed_over_peer" for our `ours` seconds. */
int bench_transformers_print(struct bench_transformers *peer, double ours, json_t *summary);
void bench_transformers_close(struct bench_transformers *peer);
