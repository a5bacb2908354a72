/* Rules: nodes as readers build them, and the programs that they become. A node knows the nodes that use it, so that
 * what it derives is looked at again only where a child has changed. Programs are written from their ends to their
 * beginnings, by a stack. */
#include "program-internal.h"

#include "base/base.h"

#include <assert.h>

enum node_kind {
    NODE_NOTHING,
    NODE_EMPTY,
    NODE_TERMINAL,
    NODE_UNIQUE,
    NODE_SPECIAL,
    NODE_SCOPE, /* a is a node here and below */
    NODE_REPEAT,
    NODE_JOIN, /* b is a node here and below */
    NODE_EITHER,
    NODE_CALL /* a: the rule; b: its body, or RULE_NOTHING until it is defined */
};
struct node {
    uint8_t kind;
    bool is_possible; /* it derives a finite text */
    bool is_nullable; /* it derives the empty text */
    bool is_queued;   /* in rules->work */
    uint32_t a, b;    /* nodes; a: a term, an id or a rule */
    uint32_t users;   /* the last place that has it, a node * 2 and 1 for its b; 0: none */
    uint32_t next[2]; /* places that have a, and b */
    int32_t least, most;
    uint32_t shortest; /* no text is shorter; found at the end */
};
struct rules {
    struct regexes *regexes;
    size_t limit; /* bytes */
    int status;
    struct node *nodes;
    size_t count, capacity;
    rule_node *calls; /* of the declared rules: each has one node */
    size_t call_count, call_capacity;
    uint32_t *work; /* nodes whose is_possible and is_nullable may have changed */
    size_t work_count, work_capacity;
    struct program program;
    size_t step_capacity, rule_capacity;
    uint32_t rule; /* whose steps are being written */
};

int rules_status(const struct rules *rules) {
    if (rules->status == STATUS_MEMORY)
        return status_no_memory();
    if (rules->status)
        return status_fail(rules->status, "too large: it takes too much time or memory");
    return regexes_status(rules->regexes);
}

static bool reserve(struct rules *rules, void *array, size_t *capacity, size_t needed, size_t element) {
    if (rules->status || regexes_status(rules->regexes))
        return false;
    if (needed <= *capacity)
        return true;
    if (needed > rules->limit / element)
        rules->status = STATUS_UNSUPPORTED;
    else if (array_reserve(array, capacity, needed, element))
        rules->status = STATUS_MEMORY;
    return !rules->status;
}

static void queue(struct rules *rules, rule_node node) {
    if (!rules->nodes[node].is_queued) /* so there is room: as much as there are nodes */
        rules->work[rules->work_count++] = node;
    rules->nodes[node].is_queued = true;
}

/* Lets a child know that a node has it as `a` or `b`. */
static void add_user(struct rules *rules, rule_node node, bool is_b) {
    struct node *parent = &rules->nodes[node], *child = &rules->nodes[is_b ? parent->b : parent->a];
    parent->next[is_b] = child->users;
    child->users = node * 2 + is_b;
}

static rule_node add_node(struct rules *rules, struct node node) {
    if (!reserve(rules, &rules->nodes, &rules->capacity, rules->count + 1, sizeof node) ||
        !reserve(rules, &rules->work, &rules->work_capacity, rules->count + 1, sizeof *rules->work))
        return RULE_NOTHING;
    rule_node number = (rule_node)rules->count++;
    rules->nodes[number] = node;
    if (node.kind >= NODE_SCOPE && node.kind != NODE_CALL)
        add_user(rules, number, false);
    if (node.kind == NODE_JOIN || node.kind == NODE_EITHER)
        add_user(rules, number, true);
    queue(rules, number);
    return number;
}

int rules_open(size_t bytes, double deadline, struct rules **out) {
    struct rules *rules = calloc(1, sizeof *rules);
    *out = NULL;
    TRY(status_allocated(rules));
    rules->limit = bytes / 2;
    int status = regexes_open(bytes / 2, deadline, &rules->regexes);
    if (!status) {
        add_node(rules, (struct node){.kind = NODE_NOTHING});
        add_node(rules, (struct node){.kind = NODE_EMPTY, .is_possible = true, .is_nullable = true});
        status = rules_status(rules);
    }
    if (status)
        rules_close(rules);
    else
        *out = rules;
    return status;
}

void rules_close(struct rules *rules) {
    if (!rules)
        return;
    regexes_close(rules->regexes);
    free(rules->nodes);
    free(rules->calls);
    free(rules->work);
    free(rules->program.steps);
    free(rules->program.rules);
    free(rules);
}

struct regexes *rules_regexes(struct rules *rules) {
    return rules->regexes;
}

/* ---- nodes ---- */

rule_node rule_terminal(struct rules *rules, regex one) {
    if (one == REGEX_NOTHING || one == REGEX_EMPTY)
        return one == REGEX_EMPTY ? RULE_EMPTY : RULE_NOTHING;
    return add_node(rules, (struct node){.kind = NODE_TERMINAL, .a = one});
}

rule_node rule_unique(struct rules *rules, regex one) {
    return add_node(rules, (struct node){.kind = NODE_UNIQUE, .a = one});
}

rule_node rule_scope(struct rules *rules, rule_node inner) {
    return add_node(rules, (struct node){.kind = NODE_SCOPE, .a = inner});
}

rule_node rule_join(struct rules *rules, rule_node left, rule_node right) {
    if (left == RULE_NOTHING || right == RULE_NOTHING)
        return RULE_NOTHING;
    if (left == RULE_EMPTY || right == RULE_EMPTY)
        return left == RULE_EMPTY ? right : left;
    return add_node(rules, (struct node){.kind = NODE_JOIN, .a = left, .b = right});
}

rule_node rule_either(struct rules *rules, rule_node left, rule_node right) {
    if (left == right || right == RULE_NOTHING)
        return left;
    if (left == RULE_NOTHING)
        return right;
    return add_node(rules, (struct node){.kind = NODE_EITHER, .a = left, .b = right});
}

rule_node rule_repeat(struct rules *rules, rule_node one, int32_t least, int32_t most) {
    if (least > most)
        return RULE_NOTHING;
    if (most == 0 || one == RULE_EMPTY || (one == RULE_NOTHING && least == 0))
        return RULE_EMPTY;
    if (one == RULE_NOTHING || (least == 1 && most == 1))
        return one;
    if (most == 1)
        return rule_either(rules, one, RULE_EMPTY);
    return add_node(rules, (struct node){.kind = NODE_REPEAT, .a = one, .least = least, .most = most});
}

rule_node rule_special(struct rules *rules, int32_t id) {
    return add_node(rules, (struct node){.kind = NODE_SPECIAL, .a = (uint32_t)id});
}

rule_id rule_declare(struct rules *rules) {
    if (!reserve(rules, &rules->calls, &rules->call_capacity, rules->call_count + 1, sizeof *rules->calls))
        return 0;
    rules->calls[rules->call_count] =
        add_node(rules, (struct node){.kind = NODE_CALL, .a = (uint32_t)rules->call_count});
    return (rule_id)rules->call_count++;
}

void rule_define(struct rules *rules, rule_id rule, rule_node body) {
    if (rules->status || rule >= rules->call_count)
        return; /* it could not be declared */
    rule_node call = rules->calls[rule];
    assert(!rules->nodes[call].b); /* it is defined once */
    rules->nodes[call].b = body;
    add_user(rules, call, true);
    queue(rules, call);
}

rule_node rule_call(struct rules *rules, rule_id rule) {
    return rule < rules->call_count ? rules->calls[rule] : RULE_NOTHING;
}

/* ---- what derives a text ---- */

static void solve_node(const struct rules *rules, struct node *node) {
    bool is_inner = node->kind >= NODE_SCOPE && node->kind != NODE_CALL;
    const struct node *a = &rules->nodes[is_inner ? node->a : RULE_NOTHING];
    const struct node *b = &rules->nodes[node->kind >= NODE_JOIN ? node->b : RULE_NOTHING];
    switch ((enum node_kind)node->kind) {
    case NODE_NOTHING:
    case NODE_EMPTY:
        break;
    case NODE_TERMINAL:
        node->is_possible = !regex_is_nothing(rules->regexes, node->a);
        node->is_nullable = regex_accepts_empty(rules->regexes, node->a);
        break;
    case NODE_UNIQUE:
        node->is_possible = !regex_is_nothing(rules->regexes, node->a);
        break;
    case NODE_SPECIAL:
        node->is_possible = true;
        break;
    case NODE_CALL:
        a = b;
        /* fall through */
    case NODE_SCOPE:
        node->is_possible = a->is_possible;
        node->is_nullable = a->is_nullable;
        break;
    case NODE_JOIN:
        node->is_possible = a->is_possible && b->is_possible;
        node->is_nullable = a->is_nullable && b->is_nullable;
        break;
    case NODE_EITHER:
        node->is_possible = a->is_possible || b->is_possible;
        node->is_nullable = a->is_nullable || b->is_nullable;
        break;
    case NODE_REPEAT:
        node->is_possible = !node->least || a->is_possible;
        node->is_nullable = !node->least || a->is_nullable;
        break;
    }
}

/* Looks at the queued nodes, and at the users of those that change, until nothing changes: what rules derive only
 * grows. So a node changes at most twice. */
static bool solve(struct rules *rules) {
    while (rules->work_count && !rules->status) {
        struct node *node = &rules->nodes[rules->work[--rules->work_count]], before = *node;
        node->is_queued = false;
        solve_node(rules, node);
        if (before.is_possible != node->is_possible || before.is_nullable != node->is_nullable)
            for (uint32_t user = node->users; user; user = rules->nodes[user / 2].next[user % 2])
                queue(rules, user / 2);
        if (!regexes_work(rules->regexes))
            rules->status = regexes_status(rules->regexes);
    }
    return !rules->status;
}

bool rule_is_nothing(struct rules *rules, rule_id rule) {
    return !solve(rules) || rule >= rules->call_count || !rules->nodes[rules->calls[rule]].is_possible;
}

/* A bound that the term's spine gives: its sets, and other parts that are not empty. */
static uint32_t shortest_of_term(const struct regexes *regexes, regex one) {
    uint32_t bytes = 0;
    for (; one > REGEX_EMPTY; one = regexes->terms[one].kind == TERM_JOIN ? regexes->terms[one].b : REGEX_EMPTY) {
        bool is_join = regexes->terms[one].kind == TERM_JOIN;
        bytes += !regexes->terms[is_join ? regexes->terms[one].a : one].accepts_empty;
    }
    return bytes;
}

/* Bounds below the lengths of nodes' texts. Each pass raises them; children come before what uses them, except for
 * bodies of rules, so few passes find the bodies of rounds. */
static void find_shortest(struct rules *rules) {
    enum { PASSES = 4, MOST = 1 << 16 };
    for (size_t i = 0; i < PASSES * rules->count; i++) {
        struct node *node = &rules->nodes[i % rules->count];
        bool has_b = node->kind >= NODE_JOIN, is_inner = node->kind >= NODE_SCOPE && node->kind != NODE_CALL;
        uint32_t a = is_inner ? rules->nodes[node->a].shortest : 0, b = has_b ? rules->nodes[node->b].shortest : 0;
        switch ((enum node_kind)node->kind) {
        case NODE_TERMINAL:
        case NODE_UNIQUE:
            node->shortest = shortest_of_term(rules->regexes, node->a);
            break;
        case NODE_SCOPE:
            node->shortest = a;
            break;
        case NODE_JOIN:
            node->shortest = a + b;
            break;
        case NODE_EITHER: /* what derives no text does not count */
            a = rules->nodes[node->a].is_possible ? a : MOST;
            b = rules->nodes[node->b].is_possible ? b : MOST;
            node->shortest = a < b ? a : b;
            break;
        case NODE_CALL:
            node->shortest = b;
            break;
        default: /* a repeat of any number, and what has no bytes */
            node->shortest = node->kind == NODE_REPEAT && node->least ? a : 0;
            break;
        }
        node->shortest = node->shortest < MOST ? node->shortest : MOST;
    }
}

/* ---- programs ---- */

static uint32_t add_step(struct rules *rules, struct step step) {
    struct program *program = &rules->program;
    if (!reserve(rules, &program->steps, &rules->step_capacity, program->step_count + 1, sizeof step) ||
        !regexes_work(rules->regexes))
        return STEP_END;
    step.rule = rules->rule;
    program->steps[program->step_count] = step;
    return (uint32_t)program->step_count++;
}

/* A new rule of the program; its steps are written later. */
static uint32_t add_rule(struct rules *rules, struct program_rule rule) {
    struct program *program = &rules->program;
    if (!reserve(rules, &program->rules, &rules->rule_capacity, program->rule_count + 1, sizeof rule))
        return 0;
    program->rules[program->rule_count] = rule;
    return (uint32_t)program->rule_count++;
}

static uint32_t add_call(struct rules *rules, uint32_t rule, uint32_t next) {
    return add_step(rules, (struct step){.kind = STEP_CALL, .a = rule, .next = next});
}

/* A node whose steps are being written: those before `next`. */
struct writing {
    rule_node node;
    uint32_t next, other;
    int stage;
};
struct writings {
    struct writing *list;
    size_t count, capacity;
};

static void push(struct rules *rules, struct writings *stack, rule_node node, uint32_t next) {
    if (reserve(rules, &stack->list, &stack->capacity, stack->count + 1, sizeof *stack->list))
        stack->list[stack->count++] = (struct writing){.node = node, .next = next};
}

/* Takes one stage of the node on top: returns true when its first step is in *first. */
static bool write_stage(struct rules *rules, struct writings *stack, uint32_t *first) {
    struct writing *top = &stack->list[stack->count - 1];
    struct node node = rules->nodes[top->node];
    uint32_t next = top->next;
    int stage = top->stage++;
    switch ((enum node_kind)node.kind) {
    case NODE_NOTHING:
    case NODE_EMPTY:
        *first = next;
        return true;
    case NODE_TERMINAL:
    case NODE_UNIQUE:
    case NODE_SPECIAL:
        *first = add_step(rules, (struct step){.kind = node.kind == NODE_TERMINAL ? STEP_TERMINAL
                                                       : node.kind == NODE_UNIQUE ? STEP_UNIQUE
                                                                                  : STEP_SPECIAL,
                                               .a = node.a,
                                               .next = next});
        return true;
    case NODE_CALL:
        *first = add_call(rules, node.a, next);
        return true;
    case NODE_SCOPE:
        *first = add_call(rules, add_rule(rules, (struct program_rule){.node = node.a, .is_scope = true}), next);
        return true;
    case NODE_JOIN:
        if (stage < 2)
            push(rules, stack, stage ? node.a : node.b, stage ? *first : next);
        return stage == 2;
    case NODE_EITHER:
        if (!rules->nodes[node.a].is_possible || !rules->nodes[node.b].is_possible) {
            if (!stage)
                push(rules, stack, rules->nodes[node.a].is_possible ? node.a : node.b, next);
            return stage;
        }
        if (stage == 1)
            top->other = *first;
        if (stage < 2)
            push(rules, stack, stage ? node.b : node.a, next);
        else
            *first = add_step(rules, (struct step){.kind = STEP_SPLIT, .a = top->other, .next = *first});
        return stage == 2;
    case NODE_REPEAT:
        if (!rules->nodes[node.a].is_possible) { /* at least 0 times */
            *first = next;
            return true;
        }
        if (node.most != REGEX_ENDLESS || node.least > 1) {
            struct program_rule rule = {.node = node.a,
                                        .is_repeat = true,
                                        .least = rules->nodes[node.a].is_nullable ? 0 : node.least,
                                        .most = node.most};
            *first = add_call(rules, add_rule(rules, rule), next);
            return true;
        }
        if (!stage) {
            top->other = add_step(rules, (struct step){.kind = STEP_SPLIT, .next = next});
            push(rules, stack, node.a, stack->list[stack->count - 1].other);
            return false;
        }
        if (!rules->status)
            rules->program.steps[top->other].a = *first;
        if (!node.least)
            *first = top->other;
        return true;
    }
    return true;
}

/* Returns the first step of a node before `next`. */
static uint32_t write_node(struct rules *rules, struct writings *stack, rule_node node, uint32_t next) {
    uint32_t first = next;
    push(rules, stack, node, next);
    while (stack->count && !rules->status && !regexes_status(rules->regexes))
        if (write_stage(rules, stack, &first))
            stack->count--;
    stack->count = 0;
    return first;
}

static void write_rule(struct rules *rules, struct writings *stack, size_t number) {
    struct program_rule rule = rules->program.rules[number];
    const struct node *node = &rules->nodes[rule.node];
    rule.is_nullable = node->is_nullable;
    rules->rule = (uint32_t)number;
    if (rule.is_repeat) {
        rule.round = node->shortest ? node->shortest : 1;
        rule.is_nullable = rule.is_nullable || !rule.least;
        rule.first = add_step(
            rules, (struct step){.kind = STEP_REPEAT, .next = STEP_END, .least = rule.least, .most = rule.most});
        uint32_t again = add_step(rules, (struct step){.kind = STEP_AGAIN, .next = rule.first});
        uint32_t body = write_node(rules, stack, rule.node, again);
        if (!rules->status)
            rules->program.steps[rule.first].a = body;
    } else if (node->is_possible) {
        rule.first = write_node(rules, stack, rule.node, STEP_END);
    } /* else no call of it is written */
    if (!rules->status)
        rules->program.rules[number] = rule;
}

void rules_finish(struct rules *rules, rule_id root) {
    struct writings stack = {0};
    struct program *program = &rules->program;
    if (!solve(rules))
        return;
    find_shortest(rules);
    add_step(rules, (struct step){.kind = STEP_FINISH});
    for (size_t i = 0; i < rules->call_count; i++)
        add_rule(rules, (struct program_rule){.node = rules->nodes[rules->calls[i]].b});
    program->root = root;
    for (size_t i = 0; i < program->rule_count && !rules->status; i++)
        write_rule(rules, &stack, i);
    for (size_t i = 0; i < program->step_count; i++) {
        struct step *step = &program->steps[i];
        step->is_last = step->kind == STEP_CALL && step->next == STEP_END;
    }
    free(stack.list);
}

const struct program *rules_program(const struct rules *rules) {
    return &rules->program;
}

size_t rules_bytes(const struct rules *rules) {
    return regexes_held(rules->regexes) + rules->capacity * sizeof *rules->nodes +
           rules->call_capacity * sizeof *rules->calls + rules->work_capacity * sizeof *rules->work +
           rules->step_capacity * sizeof *rules->program.steps + rules->rule_capacity * sizeof *rules->program.rules;
}
