/* Requests of Tinker's API to the server of tinker_test.c, and their answers. `settle` runs what they begin. */
#pragma once

static void ask(struct fake *fake, const char *method, const char *path, const void *body, size_t length) {
    bool is_json = length && *(const char *)body == '{';
    char url[300];
    snprintf(url, sizeof url, "/api/v1/%s", path);
    fake_open(fake, &server, LISTENER_DATA, method, url);
    if (key)
        fake_field(fake, "x-api-key", key);
    if (length)
        fake_field(fake, "content-type", is_json ? "application/json" : "application/x-protobuf");
    char *query = strchr(url, '?');
    if (query) {
        *query = 0;
        fake->exchange.head.query = query + 1;
    }
    route_exchange(&server, &fake->exchange);
    if (!fake->begun && length && fake->exchange.handler->on_body)
        fake->exchange.handler->on_body(&fake->exchange, body, length);
    if (!fake->begun && fake->exchange.handler->on_end)
        fake->exchange.handler->on_end(&fake->exchange);
    /* The head's text is this function's. */
    fake->exchange.head.path = fake->exchange.head.query = "";
}

/* Asks, and returns the answer's body as JSON; NULL: the body is none. */
static json_t *tell(const char *method, const char *path, const char *body, int status) {
    struct fake fake;
    ask(&fake, method, path, body, strlen(body));
    settle();
    if (fake.status != status)
        fail_msg("%s: %d %s, not %d", path, fake.status, strbuf_text(&fake.body), status);
    json_t *answer = json_loadb(strbuf_text(&fake.body), fake.body.length, 0, NULL);
    fake_close(&fake);
    return answer;
}

static void post(const char *path, const char *body) {
    json_decref(tell("POST", path, body, 200));
}

/* Formats a body: ' stands for ". */
static const char *made(const char *format, ...) {
    static char texts[4][2000];
    static unsigned next;
    char *text = texts[next++ % 4];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof *texts, format, list);
    va_end(list);
    for (char *at = text; *at; at++)
        *at = *at == '\'' ? '"' : *at;
    return text;
}

static const char *text_of(const json_t *object, const char *name) {
    static char texts[4][300];
    static unsigned next;
    char *text = texts[next++ % 4];
    const char *value = json_string_value(json_object_get(object, name));
    snprintf(text, sizeof *texts, "%s", value ? value : "");
    return text;
}

static char session[33], model[80];

static void begin_session(void) {
    json_t *answer =
        tell("POST", "create_session", made("{'tags':[],'sdk_version':'0.38.0','type':'create_session'}"), 200);
    snprintf(session, sizeof session, "%s", text_of(answer, "session_id"));
    assert_int_equal(strlen(session), 32);
    json_decref(answer);
}

/* Fetches a result that is there: the bytes of the answer. */
static struct strbuf fetch(const char *id, const char *type) {
    struct fake fake;
    const char *body = made("{'request_id':'%s','allow_metadata_only':true}", id);
    ask(&fake, "POST", "retrieve_future", body, strlen(body));
    assert_int_equal(fake.status, 200);
    if (!strstr(strbuf_text(&fake.head), type))
        fail_msg("%s: %s %s", id, strbuf_text(&fake.head), strbuf_text(&fake.body));
    struct strbuf bytes = fake.body;
    fake.body = STRBUF_INIT;
    fake.length = 0;
    fake_close(&fake);
    return bytes;
}

static json_t *fetch_json(const char *id) {
    struct strbuf bytes = fetch(id, "application/json");
    json_t *answer = json_loadb(bytes.data, bytes.length, 0, NULL);
    assert_non_null(answer);
    strbuf_free(&bytes);
    return answer;
}

static void failed(const char *id, const char *category, const char *text) {
    json_t *answer = fetch_json(id);
    if (strcmp(text_of(answer, "category"), category) != 0 || !strstr(text_of(answer, "error"), text))
        fail_msg("%s: %s: %s, not %s", id, text_of(answer, "category"), text_of(answer, "error"), text);
    json_decref(answer);
}

static void begin_model(int64_t number, int64_t rank) {
    json_t *answer = tell("POST", "create_model",
                          made("{'session_id':'%s','model_seq_id':%lld,'base_model':'tiny','lora_config':{'rank':%lld,"
                               "'train_unembed':true,'train_mlp':true,'train_attn':true},"
                               "'optimizer_config':{'type':'adamw'},'type':'create_model'}",
                               session, (long long)number, (long long)rank),
                          200);
    snprintf(model, sizeof model, "%s:train:%lld", session, (long long)number);
    assert_string_equal(text_of(answer, "request_id"), made("%s:0", model));
    json_decref(answer);
}

/* The message of a pass: two targets, the first of which is `target`. */
static struct strbuf pass_of(int64_t seq, int64_t target, const char *loss, bool is_forward) {
    TinkerPublic__ForwardBackwardRequest request = TINKER_PUBLIC__FORWARD_BACKWARD_REQUEST__INIT;
    TinkerPublic__EncodedText text = TINKER_PUBLIC__ENCODED_TEXT__INIT;
    TinkerPublic__Chunk chunk = TINKER_PUBLIC__CHUNK__INIT, *chunks[] = {&chunk};
    TinkerPublic__Tensor tensor = TINKER_PUBLIC__TENSOR__INIT;
    TinkerPublic__NamedTensor input = TINKER_PUBLIC__NAMED_TENSOR__INIT, *inputs[] = {&input};
    TinkerPublic__Datum datum = TINKER_PUBLIC__DATUM__INIT, *data[] = {&datum};
    int32_t tokens[] = {1, 2};
    int64_t targets[] = {target, 3};
    struct strbuf out = STRBUF_INIT;
    text.tokens = (ProtobufCBinaryData){.len = sizeof tokens, .data = (uint8_t *)tokens};
    chunk.chunk_case = TINKER_PUBLIC__CHUNK__CHUNK_ENCODED_TEXT;
    chunk.encoded_text = &text;
    tensor.layout_case = TINKER_PUBLIC__TENSOR__LAYOUT_DENSE;
    tensor.dense = (ProtobufCBinaryData){.len = sizeof targets, .data = (uint8_t *)targets};
    tensor.dtype = TINKER_PUBLIC__DTYPE__DTYPE_INT64;
    input.key = "target_tokens";
    input.value = &tensor;
    datum.n_model_input = datum.n_loss_fn_inputs = 1;
    datum.model_input = chunks;
    datum.loss_fn_inputs = inputs;
    request.model_id = model;
    request.seq_id = (int32_t)seq;
    request.n_data = 1;
    request.data = data;
    request.loss_fn = (char *)loss;
    request.forward_only = is_forward;
    tinker_pack(&request.base, &out);
    return out;
}

static void send_pass(int64_t seq, int64_t target, const char *loss, bool is_forward) {
    struct strbuf message = pass_of(seq, target, loss, is_forward);
    struct fake fake;
    ask(&fake, "POST", "forward_backward", message.data, message.length);
    if (fake.status != 200 || !strstr(strbuf_text(&fake.body), made("'%s:%lld'", model, (long long)seq)))
        fail_msg("%d %s", fake.status, strbuf_text(&fake.body));
    fake_close(&fake);
    strbuf_free(&message);
}

/* The loss of a pass, from its result. */
static double loss_of(int64_t seq) {
    struct strbuf bytes = fetch(made("%s:%lld", model, (long long)seq), "application/x-protobuf");
    TinkerPublic__ForwardBackwardOutput *answer =
        tinker_public__forward_backward_output__unpack(NULL, bytes.length, (uint8_t *)bytes.data);
    assert_non_null(answer);
    assert_int_equal(answer->loss_fn_outputs[0]->fields[0]->value->data.len, 2 * sizeof(float));
    double loss = answer->metrics[0]->value;
    tinker_public__forward_backward_output__free_unpacked(answer, NULL);
    strbuf_free(&bytes);
    return loss;
}

static void step(int64_t seq) {
    post("optim_step", made("{'model_id':'%s','seq_id':%lld,'adam_params':{'learning_rate':0.5,'beta1':0.8}}", model,
                            (long long)seq));
}
