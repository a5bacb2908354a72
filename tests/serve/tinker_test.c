/* Tinker's API over a tuner and calls that this test makes up: order, futures, refusals, saved weights, samples. */
#include "serve/fake_exchange.h"
#include "serve/fake_server.h"
#include "serve/fake_tuner.h"

#include "serve/keys.h"
#include "serve/tinker_answer.h"
#include "tinker-internal.h"

#include <jansson.h>

static struct server server;
static struct serve_options options;
static struct tinker_options asked;
static char *root;
static struct worker *worker;
static const char *key; /* sent as X-API-Key */

/* ---- the options of a run ---- */

struct described {
    struct tinker_described base;
    struct tuning_run_options options;
    struct run_config config;
};

static void free_described(struct tinker_described *described) {
    free(described);
}

static int describe(const struct server *of, const struct tinker_shape *shape, int64_t longest,
                    struct tinker_described **made) {
    struct described *described = calloc(1, sizeof *described);
    (void)of;
    described->base = (struct tinker_described){.options = &described->options, .free = free_described};
    described->config.data.seq_length = longest;
    described->options.config = &described->config;
    *made = &described->base;
    return shape->rank == 7 ? status_fail(STATUS_USAGE, "peft.r: 7 is not liked here") : STATUS_OK;
}

static char published[80];
static struct registry_change publication; /* under way, if it has a function */

static void on_change(const struct registry_change *change) {
    snprintf(published, sizeof published, "%s", change->name);
    adapter_files_free(change->files);
    publication = *change;
}

static void end_publication(void) {
    struct registry_change ended = publication;
    publication = (struct registry_change){0};
    ended.on_done(ended.context, &(struct error){0}, &(struct registry_adapter){.name = published});
}

static int start(void **state) {
    (void)state;
    options = fake_options;
    options.limits.body_bytes = 1 << 20;
    server = fake_server();
    server.options = &options;
    server.model.vocab = TUNER_VOCAB;
    test_ok(loop_open(&server.loop));
    server.base = loop_base(server.loop);
    server.driver = (struct driver *)server.loop;
    root = test_directory();
    test_ok(worker_open(server.loop, 64, &worker));
    asked = (struct tinker_options){.server = &server,
                                    .root = root,
                                    .worker = worker,
                                    .describe = describe,
                                    .hold_seconds = 1000,
                                    .silence_seconds = 1000,
                                    .keep_seconds = 1000};
    test_ok(tinker_open(&asked, &server.tinker));
    memset(tuner_log, 0, sizeof tuner_log);
    fake_on_change = on_change;
    return 0;
}

/* Runs the loop until nothing is under way. */
static void settle(void) {
    while (!tinker_is_idle(server.tinker)) {
        tuner_work(server.loop);
        if (publication.on_done)
            end_publication();
        else
            event_base_loop(server.base, EVLOOP_ONCE);
    }
}

#include "serve/tinker_asking.h"

static int stop(void **state) {
    (void)state;
    tinker_stop(server.tinker);
    settle();
    worker_stop(worker);
    tinker_close(server.tinker);
    worker_close(worker);
    assert_int_equal(tuner_runs, 0);
    keys_close(server.keys[LISTENER_DATA]);
    loop_close(server.loop);
    free(root);
    key = NULL;
    return 0;
}

/* ---- tests ---- */

static void sessions_live_by_heartbeats(void **state) {
    (void)state;
    json_t *answer = tell("POST", "client/config", made("{'sdk_version':'0.38.0'}"), 200);
    assert_true(json_is_false(json_object_get(answer, "pjwt_auth_enabled")));
    json_decref(answer);
    answer = tell("GET", "get_server_capabilities", "", 200);
    assert_int_equal(json_array_size(json_object_get(answer, "supported_models")), 2);
    json_decref(answer);
    begin_session();
    post("session_heartbeat", made("{'session_id':'%s'}", session));
    begin_model(0, 4);
    settle();
    assert_int_equal(tuner_runs, 1);
    assert_null(tell("POST", made("sessions/%s/finish", session), made("{'reason':{'type':'success'}}"), 204));
    settle();
    assert_int_equal(tuner_runs, 0);
    json_decref(tell("POST", "session_heartbeat", made("{'session_id':'%s'}", session), 410));
    begin_session();
    begin_model(0, 4);
    settle();
    server.tinker->options.silence_seconds = -1; /* its client has died long ago */
    tinker_tick(server.tinker);
    settle();
    assert_int_equal(tuner_runs, 0);
    json_decref(tell("POST", "session_heartbeat", made("{'session_id':'%s'}", session), 410));
}

static void a_session_may_end_while_it_works(void **state) {
    (void)state;
    begin_session();
    begin_model(0, 4);
    settle();
    send_pass(1, 5, "cross_entropy", false);
    send_pass(2, 5, "cross_entropy", false);
    assert_null(tell("POST", made("sessions/%s/finish", session), made("{'reason':{'type':'interrupted'}}"), 204));
    settle();
    assert_int_equal(tuner_runs, 0);
    assert_string_equal(tuner_log, "OOPC"); /* the open was tried twice, with less the second time */
}

/* The chunks of a call come last first. */
static void requests_are_done_in_order_of_their_numbers(void **state) {
    (void)state;
    begin_session();
    begin_model(0, 4);
    settle();
    step(3);
    send_pass(2, 6, "cross_entropy", false);
    settle();
    assert_string_equal(tuner_log, "OO");
    send_pass(1, 5, "cross_entropy", false);
    settle();
    assert_string_equal(tuner_log, "OOPPU");
    assert_true(fabs(loss_of(1) - 2 * log(TUNER_VOCAB)) < 1e-5);
    json_t *answer = fetch_json(made("%s:3", model));
    double norm = json_number_value(json_object_get(json_object_get(answer, "metrics"), "grad_norm:mean"));
    assert_true(fabs(norm - 2.383) < 0.001); /* of counts (1, 1, 2, 0 ...), less 4/50 each */
    json_decref(answer);
    /* The same again, and its answer was lost. */
    send_pass(2, 6, "cross_entropy", false);
    step(3);
    settle();
    assert_string_equal(tuner_log, "OOPPU");
    assert_true(loss_of(2) > 0);
    send_pass(4, 5, "cross_entropy", true);
    settle();
    assert_true(loss_of(4) < 2 * log(TUNER_VOCAB));
    step(5); /* a forward has no gradients */
    settle();
    failed(made("%s:5", model), "user", "there was no forward_backward");
    json_decref(tell("POST", "optim_step", made("{'model_id':'%s','seq_id':0}", model), 400));
    json_decref(tell("POST", "optim_step", made("{'model_id':'%s:train:9','seq_id':1}", session), 404));
}

static void faults_fail_their_future_and_nothing_else(void **state) {
    (void)state;
    begin_session();
    begin_model(0, 4);
    send_pass(1, TUNER_VOCAB, "cross_entropy", false);
    send_pass(2, 5, "gspo", false);
    send_pass(3, 5, "cross_entropy", false);
    post("optim_step", made("{'model_id':'%s','seq_id':4,'adam_params':{'beta1':1.5}}", model));
    post("optim_step", made("{'model_id':'%s','seq_id':5,'optim_params':{'type':'dimuon'}}", model));
    step(6);
    settle();
    failed(made("%s:1", model), "user", "data[0].target_tokens[0]: 50 is outside the vocabulary of 50");
    failed(made("%s:2", model), "user", "loss_fn: \"gspo\" is none of cross_entropy");
    failed(made("%s:4", model), "user", "adam_params.beta1");
    failed(made("%s:5", model), "user", "adam_params: expected those of adamw");
    assert_true(loss_of(3) > 0);
    json_decref(fetch_json(made("%s:6", model)));
    begin_model(1, 7);
    send_pass(1, 5, "cross_entropy", false);
    settle();
    failed(made("%s:0", model), "user", "peft.r: 7 is not liked here");
    failed(made("%s:1", model), "user", "was not created");
    begin_model(2, 1000);
    settle();
    failed(made("%s:0", model), "user", "lora_config.rank");
    post("create_model",
         made("{'session_id':'%s','model_seq_id':3,'base_model':'other','lora_config':{'rank':4}}", session));
    settle();
    failed(made("%s:train:3:0", session), "user", "base_model: \"other\" is not served here");
    struct fake fake;
    ask(&fake, "POST", "forward_backward", "\xff\xff", 2);
    assert_int_equal(fake.status, 400);
    fake_close(&fake);
}

/* A fetch waits for its result, is told to ask again, or leaves. */
static void a_fetch_waits(void **state) {
    struct fake first, second, third;
    (void)state;
    begin_session();
    begin_model(0, 4);
    send_pass(1, 5, "cross_entropy", false);
    const char *body = made("{'request_id':'%s:1'}", model);
    ask(&first, "POST", "retrieve_future", body, strlen(body));
    ask(&second, "POST", "retrieve_future", body, strlen(body));
    ask(&third, "POST", "retrieve_future", body, strlen(body));
    assert_int_equal(first.begun + second.begun + third.begun, 0);
    fake_close(&third);
    LIST_FIRST(&server.tinker->waiters)->until = 0; /* the second one's */
    tinker_tick(server.tinker);
    assert_non_null(strstr(strbuf_text(&second.body), "try_again"));
    fake_close(&second);
    assert_int_equal(first.begun, 0);
    settle();
    assert_non_null(strstr(strbuf_text(&first.head), "x-protobuf"));
    fake_close(&first);
    server.tinker->options.keep_seconds = -1;
    tinker_tick(server.tinker);
    json_decref(tell("POST", "retrieve_future", body, 404));
}

/* Saves the present weights of `model` and returns the path. */
static const char *save(int64_t seq, const char *name, const char *more) {
    json_decref(tell("POST", "save_weights",
                     made("{'model_id':'%s','seq_id':%lld,'path':'%s'%s}", model, (long long)seq, name, more), 200));
    json_t *answer = fetch_json(made("%s:%lld", model, (long long)seq));
    const char *path = text_of(answer, "path");
    json_decref(answer);
    return path;
}

static void saved_weights_come_back(void **state) {
    char first[80], path[200];
    (void)state;
    begin_session();
    begin_model(0, 4);
    memcpy(first, model, sizeof first);
    send_pass(1, 5, "cross_entropy", false);
    step(2);
    snprintf(path, sizeof path, "%s", save(3, "a", ",'user_metadata':{'of':'me'}"));
    assert_string_equal(path, made("tinker://%s/weights/a", model));
    send_pass(4, 5, "cross_entropy", true);
    settle();
    double loss = loss_of(4);
    post("save_weights", made("{'model_id':'%s','seq_id':5,'path':'a'}", model));
    post("save_weights", made("{'model_id':'%s','seq_id':6,'path':'../b'}", model));
    settle();
    failed(made("%s:5", model), "user", "there are weights a already");
    failed(made("%s:6", model), "user", "path: expected a name");
    save(7, "a", ",'overwrite':true");
    /* A new model continues, in another session too. */
    begin_session();
    post("load_weights", made("{'session_id':'%s','model_seq_id':0,'path':'%s','optimizer':true}", session, path));
    settle();
    snprintf(model, sizeof model, "%s:train:0", session);
    json_t *answer = fetch_json(made("%s:0", model));
    assert_string_equal(text_of(answer, "model_id"), model);
    json_decref(answer);
    send_pass(1, 5, "cross_entropy", true);
    settle();
    assert_true(fabs(loss_of(1) - loss) < 1e-6);
    answer = tell("POST", "get_info", made("{'model_id':'%s'}", model), 200);
    assert_int_equal(json_integer_value(json_object_get(answer, "lora_rank")), 4);
    json_decref(answer);
    /* An older client loads into a model that it has. */
    begin_model(1, 2);
    post("load_weights", made("{'model_id':'%s','seq_id':1,'path':'%s','optimizer':false}", model, path));
    post("load_weights",
         made("{'model_id':'%s','seq_id':2,'path':'tinker://none/weights/a','optimizer':false}", model));
    send_pass(3, 5, "cross_entropy", true);
    settle();
    failed(made("%s:2", model), "user", "there are no weights a of the run none");
    assert_true(fabs(loss_of(3) - loss) < 1e-6);
    post("unload_model", made("{'model_id':'%s'}", model));
    send_pass(5, 5, "cross_entropy", true);
    settle();
    failed(made("%s:5", model), "user", "is unloaded");
    /* Their facts come from the disk. */
    answer = tell("POST", "weights_info", made("{'tinker_path':'%s'}", path), 200);
    assert_string_equal(text_of(answer, "base_model"), "tiny");
    assert_true(json_is_true(json_object_get(answer, "train_unembed")));
    json_decref(answer);
    answer = tell("GET", "checkpoints?limit=5&offset=0", "", 200);
    const json_t *one = json_array_get(json_object_get(answer, "checkpoints"), 0);
    assert_string_equal(text_of(one, "tinker_path"), path);
    assert_string_equal(text_of(one, "checkpoint_type"), "training");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(answer, "cursor"), "total_count")), 1);
    json_decref(answer);
    answer = tell("GET", made("training_runs/%s", first), "", 200);
    assert_string_equal(text_of(json_object_get(answer, "last_checkpoint"), "checkpoint_id"), "weights/a");
    json_decref(answer);
    answer = tell("GET", "training_runs", "", 200);
    assert_int_equal(json_array_size(json_object_get(answer, "training_runs")), 3);
    json_decref(answer);
    json_decref(tell("DELETE", made("training_runs/%s/checkpoints/weights/a", first), "", 200));
    json_decref(tell("DELETE", made("training_runs/%s/checkpoints/weights/a", first), "", 404));
    json_decref(tell("DELETE", made("training_runs/..%%2f..%%2fetc/checkpoints/weights/a"), "", 404));
    json_decref(tell("POST", "weights_info", made("{'tinker_path':'%s'}", path), 404));
}

static void objects_belong_to_their_key(void **state) {
    char path[PATH_MAX];
    (void)state;
    snprintf(path, sizeof path, "%s/keys", root);
    test_ok(file_write_atomic(path, "one tml-1 tune\ntwo tml-2 tune\nthree tml-3\n", 42));
    test_ok(keys_open(path, &server.keys[LISTENER_DATA]));
    json_decref(tell("POST", "create_session", "{}", 401));
    key = "tml-3"; /* may not tune */
    json_decref(tell("POST", "create_session", "{}", 403));
    key = "tml-1";
    begin_session();
    begin_model(0, 4);
    settle();
    char saved[200];
    snprintf(saved, sizeof saved, "%s", save(1, "mine", ""));
    key = "tml-2";
    json_decref(tell("POST", "session_heartbeat", made("{'session_id':'%s'}", session), 410));
    json_decref(tell("POST", "get_info", made("{'model_id':'%s'}", model), 404));
    json_decref(tell("POST", "retrieve_future", made("{'request_id':'%s:0'}", model), 404));
    json_decref(tell("POST", "weights_info", made("{'tinker_path':'%s'}", saved), 404));
    json_t *answer = tell("GET", "training_runs", "", 200);
    assert_int_equal(json_array_size(json_object_get(answer, "training_runs")), 0);
    json_decref(answer);
}

/* ---- samples ---- */

static char sampler[100];

/* Sends an asample, whose answer comes when the engine has taken it. */
static void sample(struct fake *fake, int64_t seq, const char *more) {
    const char *body = made("{'num_samples':2,'prompt':{'chunks':[{'tokens':[1,2,3],'type':'encoded_text'}]},"
                            "'sampling_params':{'max_tokens':4,'seed':7,'temperature':1.0,'top_k':-1,'top_p':1.0,"
                            "'stop':[9]},'sampling_session_id':'%s','seq_id':%lld%s}",
                            sampler, (long long)seq, more);
    ask(fake, "POST", "asample", body, strlen(body));
}

static TinkerPublic__SampleResponse *sampled(int64_t seq) {
    struct strbuf bytes = fetch(made("%s:%lld", sampler, (long long)seq), "application/x-protobuf");
    TinkerPublic__SampleResponse *answer =
        tinker_public__sample_response__unpack(NULL, bytes.length, (uint8_t *)bytes.data);
    assert_non_null(answer);
    strbuf_free(&bytes);
    return answer;
}

static void begin_sampler(int64_t number, const char *more) {
    json_t *answer =
        tell("POST", "create_sampling_session",
             made("{'session_id':'%s','sampling_session_seq_id':%lld%s}", session, (long long)number, more), 200);
    snprintf(sampler, sizeof sampler, "%s", text_of(answer, "sampling_session_id"));
    json_decref(answer);
}

static void a_sample_is_a_call(void **state) {
    struct call_piece pieces[] = {{.choice = -1, .token_count = 1},
                                  {.choice = -1, .first_token = 1, .token_count = 2},
                                  {.choice = 1, .first_token = 3, .token_count = 1},
                                  {.choice = 0, .first_token = 4, .token_count = 1}};
    struct call_token tokens[] = {{.id = 1},
                                  {.id = 2, .has_logprob = true, .logprob = -0.5f, .top_count = 1},
                                  {.id = 3, .has_logprob = true, .logprob = -0.25f, .first_top = 1, .top_count = 2},
                                  {.id = 8, .has_logprob = true, .logprob = -1, .first_top = 3, .top_count = 1},
                                  {.id = 5, .has_logprob = true, .logprob = -2}};
    struct call_top tops[] = {{2, -0.5f}, {3, -0.25f}, {4, -3}, {8, -1}};
    struct call_end ends[] = {
        {.choice = 0, .is_stop = true, .has_token = true, .token = {.id = 9, .has_logprob = true, .logprob = -0.125f}},
        {.choice = 1}};
    struct call_update update = {.pieces = pieces, .tokens = tokens, .tops = tops, .ends = ends};
    struct fake fake;
    (void)state;
    begin_session();
    begin_sampler(0, ",'base_model':'tiny'");
    sample(&fake, 4, ",'prompt_logprobs':true,'topk_prompt_logprobs':2,'topk_sample_logprobs':1");
    assert_int_equal(fake.begun, 0);
    assert_non_null(fake_call);
    const struct ask *settings = &fake_call->request.ask;
    assert_int_equal(settings->choices, 2);
    assert_int_equal(settings->max_tokens, 4);
    assert_int_equal(settings->sampling.seed, 7);
    assert_int_equal(settings->stop_ids[0], 9);
    assert_int_equal(settings->prompt_logprobs, 2);
    assert_int_equal(fake_call->request.prompts[0].ids.count, 3);
    update.is_accepted = true;
    update.piece_count = 3;
    fake_call->on_update(fake_call, &update);
    assert_non_null(
        strstr(strbuf_text(&fake.body), made("'sample_sequence_ids':['%s:4:0','%s:4:1']", sampler, sampler)));
    fake_close(&fake);
    sample(&fake, 4, ""); /* its answer was lost: the same request */
    assert_int_equal(fake.status, 200);
    fake_close(&fake);
    update = (struct call_update){.pieces = pieces + 3,
                                  .piece_count = 1,
                                  .tokens = tokens,
                                  .tops = tops,
                                  .ends = ends,
                                  .end_count = 2,
                                  .is_done = true};
    fake_call->on_update(fake_call, &update);
    TinkerPublic__SampleResponse *answer = sampled(4);
    assert_int_equal(answer->n_sequences, 2);
    assert_int_equal(answer->sequences[0]->stop_reason, TINKER_PUBLIC__STOP_REASON__STOP_REASON_STOP);
    assert_int_equal(answer->sequences[0]->tokens.len, 2 * sizeof(int32_t));
    assert_int_equal(((int32_t *)answer->sequences[0]->tokens.data)[1], 9);
    assert_int_equal(answer->sequences[1]->stop_reason, TINKER_PUBLIC__STOP_REASON__STOP_REASON_LENGTH);
    const float *logprobs = (float *)answer->prompt_logprobs.data;
    assert_true(isnan(logprobs[0]) && logprobs[1] == -0.5f && logprobs[2] == -0.25f);
    const TinkerPublic__TopkLogprobs *top = answer->topk_prompt_logprobs;
    assert_int_equal(top->k, 2);
    assert_int_equal(top->length, 3);
    assert_int_equal(((int32_t *)top->token_ids.data)[5], 4);
    assert_true(((float *)top->logprobs.data)[3] == -99999);
    tinker_public__sample_response__free_unpacked(answer, NULL);
}

static void samples_fail_are_refused_and_cancelled(void **state) {
    struct call_update update = {.is_done = true};
    struct fake fake;
    (void)state;
    begin_session();
    begin_sampler(0, "");
    sample(&fake, 0, ",'prompt_alt_tokens_k':3");
    assert_int_equal(fake.status, 200);
    fake_close(&fake);
    failed(made("%s:0", sampler), "user", "prompt_alt_tokens_k: it is not supported");
    sample(&fake, 1, "");
    error_set(&update.error, ERROR_OVERLOADED, NULL, "the queue is full");
    fake_call->on_update(fake_call, &update);
    assert_int_equal(fake.status, 429);
    fake_close(&fake);
    sample(&fake, 1, ""); /* again, as its client does */
    error_set(&update.error, ERROR_CONTEXT_LENGTH, "prompt", "the prompt is too long");
    fake_call->on_update(fake_call, &update);
    assert_int_equal(fake.status, 200);
    fake_close(&fake);
    failed(made("%s:1", sampler), "user", "the prompt is too long");
    sample(&fake, 2, "");
    update = (struct call_update){.is_accepted = true};
    fake_call->on_update(fake_call, &update);
    fake_close(&fake);
    post("cancel_future", made("{'request_id':'%s:2'}", sampler));
    assert_null(fake_call);
    failed(made("%s:2", sampler), "user", "cancelled");
    sample(&fake, 3, "");
    fake_close(&fake); /* its client leaves; the sample goes with the session */
    sample(&fake, 4, "");
    assert_null(tell("POST", made("sessions/%s/finish", session), made("{'reason':{'type':'success'}}"), 204));
    assert_int_equal(fake.status, 499);
    fake_close(&fake);
    json_decref(
        tell("POST", "create_sampling_session", made("{'session_id':'%s','sampling_session_seq_id':0}", session), 404));
}

/* Targets of the prompt are draws without a choice, of equal ids together. */
static void targets_are_forced_draws(void **state) {
    struct call_token tokens[] = {{.id = 7, .has_logprob = true, .logprob = -1},
                                  {.id = 7, .has_logprob = true, .logprob = -2}};
    struct call_piece pieces[] = {{.prompt = 0, .token_count = 1}, {.prompt = 1, .first_token = 1, .token_count = 1}};
    struct call_end end = {.has_token = true, .token = {.id = 2, .has_logprob = true, .logprob = -3}};
    struct call_update done = {.is_done = true},
                       two = {.pieces = pieces, .piece_count = 2, .tokens = tokens, .is_done = true};
    struct call_update last = {.ends = &end, .end_count = 1, .is_done = true};
    struct fake fake;
    (void)state;
    begin_session();
    begin_sampler(0, "");
    sample(&fake, 0, ",'target_prompt_logprobs':{'data':[7,-1,2,7],'dtype':'int64','shape':[2,2]}");
    done.is_accepted = true;
    fake_call->on_update(fake_call, &done);
    fake_close(&fake);
    assert_int_equal(fake_call->request.ask.bias[0].id, 2);
    assert_int_equal(fake_call->request.prompt_count, 1);
    assert_int_equal(fake_call->request.prompts[0].ids.count, 2);
    fake_call->on_update(fake_call, &last);
    assert_int_equal(fake_call->request.ask.bias[0].id, 7);
    assert_int_equal(fake_call->request.prompt_count, 2);
    fake_call->on_update(fake_call, &two);
    TinkerPublic__SampleResponse *answer = sampled(0);
    const TinkerPublic__Tensor *tensor = answer->target_prompt_logprobs;
    assert_int_equal(tensor->shape[1], 2);
    const float *values = (float *)tensor->dense.data;
    assert_true(values[0] == -1 && isnan(values[1]) && values[2] == -3 && values[3] == -2);
    tinker_public__sample_response__free_unpacked(answer, NULL);
    sample(&fake, 1,
           ",'target_prompt_logprobs':{'data':[7],'dtype':'int64','shape':[2,2],"
           "'sparse_crow_indices':[0,0,1],'sparse_col_indices':[2]}");
    fake_close(&fake);
    failed(made("%s:1", sampler), "user", "its indices are none of 2 rows of 2 columns");
    assert_null(fake_call);
}

static void snapshots_are_published_in_order(void **state) {
    char first[80];
    struct fake fake;
    (void)state;
    begin_session();
    begin_model(0, 4);
    send_pass(1, 5, "cross_entropy", false);
    step(2);
    post("save_weights_for_sampler",
         made("{'model_id':'%s','seq_id':3,'sampling_session_seq_id':0,'kind':'snapshot'}", model));
    send_pass(4, 5, "cross_entropy", false);
    step(5);
    settle();
    assert_string_equal(tuner_log, "OOPUSPU");
    json_t *answer = fetch_json(made("%s:3", model));
    snprintf(sampler, sizeof sampler, "%s", text_of(answer, "sampling_session_id"));
    json_decref(answer);
    snprintf(first, sizeof first, "%s", published);
    sample(&fake, 0, "");
    assert_string_equal(fake_call->request.ask.adapters[0], first);
    struct call_update done = {.is_accepted = true, .is_done = true};
    fake_call->on_update(fake_call, &done);
    fake_close(&fake);
    /* One that follows the run has one name for all. */
    post("save_weights_for_sampler",
         made("{'model_id':'%s','seq_id':6,'sampling_session_seq_id':1,'kind':'inflight'}", model));
    settle();
    char following[80];
    snprintf(following, sizeof following, "%s", published);
    assert_string_not_equal(following, first);
    post("save_weights_for_sampler",
         made("{'model_id':'%s','seq_id':7,'sampling_session_seq_id':2,'kind':'inflight'}", model));
    settle();
    assert_string_equal(published, following);
    /* Weights with a name are read when a sampler wants them. */
    post("save_weights_for_sampler", made("{'model_id':'%s','seq_id':8,'path':'best'}", model));
    settle();
    assert_string_equal(published, following);
    begin_sampler(3, made(",'model_path':'tinker://%s/sampler_weights/best'", model));
    sample(&fake, 0, "");
    assert_int_equal(strncmp(fake_call->request.ask.adapters[0], "tinker.", 7), 0);
    assert_string_not_equal(fake_call->request.ask.adapters[0], following);
    fake_call->on_update(fake_call, &done);
    fake_close(&fake);
    answer = tell("GET", made("samplers/%s", sampler), "", 200);
    assert_string_equal(text_of(answer, "model_path"), made("tinker://%s/sampler_weights/best", model));
    json_decref(answer);
    json_decref(tell(
        "POST", "create_sampling_session",
        made("{'session_id':'%s','sampling_session_seq_id':4,'model_path':'tinker://%s/weights/none'}", session, model),
        404));
    post("load_weights",
         made("{'session_id':'%s','model_seq_id':1,'path':'tinker://%s/sampler_weights/best','optimizer':true}",
              session, model));
    settle();
    failed(made("%s:train:1:0", session), "user", "no state of an optimizer");
    assert_null(tell("POST", made("sessions/%s/finish", session), made("{'reason':{'type':'success'}}"), 204));
    settle();
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s/snapshots", root, model);
    assert_false(file_exists(path));
}

/* ---- the client's own requests ---- */

/* Puts the session of this test in the place of the recorded one. */
static void set_session(struct strbuf *text) {
    static const char zeros[] = "00000000000000000000000000000000";
    for (char *at = text->data; (at = memmem(at, text->length - (size_t)(at - text->data), zeros, 32));)
        memcpy(at, session, 32);
}

/* Sends the next request of a recording, and returns the byte after it. */
static const char *replay(const char *at) {
    char method[8], path[200], type[40];
    int length, read;
    struct strbuf url = STRBUF_INIT, body = STRBUF_INIT;
    struct fake fake;
    assert_int_equal(sscanf(at, "%7s %199s %39s %d%n", method, path, type, &length, &read), 4);
    strbuf_add_text(&url, strstr(path, "v1/") + 3);
    strbuf_add(&body, at + read + 1, (size_t)length);
    set_session(&url);
    set_session(&body);
    ask(&fake, method, strbuf_text(&url), strbuf_text(&body), body.length);
    if (fake_call)
        fake_call->on_update(fake_call, &(struct call_update){.is_accepted = true, .is_done = true});
    settle();
    if (fake.status != (strstr(path, "/finish") ? 204 : 200))
        fail_msg("%s: %d %s", path, fake.status, strbuf_text(&fake.body));
    if (strstr(path, "create_session"))
        snprintf(session, sizeof session, "%s",
                 strstr(strbuf_text(&fake.body), "session_id") + sizeof "session_id\":\"" - 1);
    fake_close(&fake);
    strbuf_free(&url);
    strbuf_free(&body);
    return at + read + 1 + length + 1;
}

/* tools/golden/tinker_requests.py has recorded them, byte by byte. */
static void the_clients_requests_are_taken(void **state) {
    struct strbuf recording = STRBUF_INIT;
    (void)state;
    test_ok(file_read(TEST_DATA "/serve/golden/tinker_requests", 1 << 20, &recording));
    for (const char *at = recording.data; at < recording.data + recording.length;)
        at = replay(at);
    strbuf_free(&recording);
    assert_string_equal(tuner_log, "OOPPPUSSSOOPCC");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_clients_requests_are_taken, start, stop),
        cmocka_unit_test_setup_teardown(sessions_live_by_heartbeats, start, stop),
        cmocka_unit_test_setup_teardown(a_session_may_end_while_it_works, start, stop),
        cmocka_unit_test_setup_teardown(requests_are_done_in_order_of_their_numbers, start, stop),
        cmocka_unit_test_setup_teardown(faults_fail_their_future_and_nothing_else, start, stop),
        cmocka_unit_test_setup_teardown(a_fetch_waits, start, stop),
        cmocka_unit_test_setup_teardown(saved_weights_come_back, start, stop),
        cmocka_unit_test_setup_teardown(objects_belong_to_their_key, start, stop),
        cmocka_unit_test_setup_teardown(a_sample_is_a_call, start, stop),
        cmocka_unit_test_setup_teardown(samples_fail_are_refused_and_cancelled, start, stop),
        cmocka_unit_test_setup_teardown(targets_are_forced_draws, start, stop),
        cmocka_unit_test_setup_teardown(snapshots_are_published_in_order, start, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
