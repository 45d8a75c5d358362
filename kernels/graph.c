/* graph.c: see graph.h. Nodes and variables, and the checks of the whole; the layers are in
 * layers.c, what holds for an op alone in ref_ops.c. */
#include "graph.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph_build.h"

static const char *const act_names[ACT_COUNT] = {
    [ACT_RELU] = "relu",
    [ACT_RELU6] = "relu6",
    [ACT_LEAKY_RELU] = "leaky_relu",
    [ACT_HARDSIGMOID] = "hardsigmoid",
    [ACT_HARDSWISH] = "hardswish",
    [ACT_SIGMOID] = "sigmoid",
    [ACT_TANH] = "tanh",
    [ACT_GELU] = "gelu",
    [ACT_SILU] = "silu",
};

const char *graph_op_name(graph_op op)
{
    assert((unsigned)op < OP_COUNT);
    return op_rows[op].name;
}

const char *graph_act_name(graph_act act)
{
    assert((unsigned)act < ACT_COUNT);
    return act_names[act];
}

const char *graph_prefix(const graph_node *n)
{
    const op_row *row = &op_rows[n->op];
    if (n->op == OP_ACTIVATION)
        return act_names[n->act.kind];
    return row->prefix ? row->prefix : row->name;
}

int graph_fail(graph *g, err_code code, const char *fmt, ...)
{
    if (g->error.code != ERR_NONE)
        return GRAPH_FAILED;
    char message[ERR_MESSAGE_BYTES];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    err_set(&g->error, code, "%s", message);
    return GRAPH_FAILED;
}

/* ---- building, for layers.c ------------------------------------------------------------------ */

static bool grow(void **items, int *room, int count, size_t bytes)
{
    if (count < *room)
        return true;
    int wanted = *room ? *room * 2 : 32;
    void *more = realloc(*items, (size_t)wanted * bytes);
    if (!more)
        return false;
    *items = more;
    *room = wanted;
    return true;
}

bool graph_check_inputs(graph *g, const char *what, const int *x, int count)
{
    if (g->error.code != ERR_NONE)
        return false;
    for (int i = 0; i < count; i++) {
        if (x[i] < 0 || x[i] >= g->node_count) {
            graph_fail(g, ERR_INVALID, "%s: input %d is not a tensor of this graph", what, i + 1);
            return false;
        }
    }
    return true;
}

int graph_append(graph *g, graph_node n, const char *name, const int *x, int count)
{
    if (g->node_count >= GRAPH_NODES_MAX)
        return graph_fail(g, ERR_LIMIT, "the model has more than %d layers", GRAPH_NODES_MAX);
    void *nodes = g->nodes;
    bool ok = grow(&nodes, &g->node_room, g->node_count, sizeof n);
    g->nodes = nodes;
    n.in = calloc((size_t)count + 1, sizeof *n.in);
    if (!ok || !n.in) {
        free(n.in);
        return graph_fail(g, ERR_NOMEM, "no memory for the model's graph");
    }
    if (count)
        memcpy(n.in, x, (size_t)count * sizeof *n.in);
    n.in_count = count;
    g->made[n.op]++;
    if (name)
        snprintf(n.name, sizeof n.name, "%s", name);
    else
        snprintf(n.name, sizeof n.name, "%s%d", graph_prefix(&n), g->made[n.op]);
    for (int i = 0; i < count; i++)
        g->nodes[x[i]].uses++;
    g->nodes[g->node_count] = n;
    return g->node_count++;
}

graph_node graph_node_of(graph_op op, shape s)
{
    return (graph_node){.op = op,
                        .shape = s,
                        .weight = -1,
                        .bias = -1,
                        .running_mean = -1,
                        .running_var = -1,
                        .batches = -1};
}

int graph_add_var(graph *g, int node, const char *suffix, graph_var v)
{
    if (node < 0 || g->error.code != ERR_NONE)
        return -1;
    const char *layer = g->nodes[node].name;
    if (strlen(layer) + strlen(suffix) + 2 > sizeof v.name) {
        graph_fail(g, ERR_LIMIT, "layer name '%.40s...' is longer than %d characters", layer,
                   GRAPH_NAME_BYTES - 32);
        return -1;
    }
    snprintf(v.name, sizeof v.name, "%.64s.%.30s", layer, suffix);
    v.count = 1;
    for (int i = 0; i < v.rank; i++)
        v.count *= (size_t)v.dims[i]; /* at most 2^20 * 2^20 * 2^10 * 2^10: layers.c bounds each */
    size_t align = v.kind == VAR_COUNTER ? 1 : GRAPH_ALIGN_FLOATS;
    size_t room = (v.count + align - 1) / align * align;
    if (v.count > GRAPH_FLOATS_MAX || g->floats[v.kind] + room > GRAPH_FLOATS_MAX) {
        graph_fail(g, ERR_LIMIT, "%s: the model has more than 2^31 parameters", v.name);
        return -1;
    }
    void *vars = g->vars;
    bool ok = grow(&vars, &g->var_room, g->var_count, sizeof v);
    g->vars = vars;
    if (!ok) {
        graph_fail(g, ERR_NOMEM, "no memory for the model's graph");
        return -1;
    }
    v.offset = g->floats[v.kind];
    g->floats[v.kind] += room;
    if (v.kind == VAR_PARAM)
        g->param_count += v.count;
    g->vars[g->var_count] = v;
    return g->var_count++;
}

/* ---- the whole ------------------------------------------------------------------------------- */

graph *graph_new(shape input)
{
    graph *g = calloc(1, sizeof *g);
    if (!g)
        return NULL;
    g->output = -1;
    if (input.c < 1 || input.h < 1 || input.w < 1 || input.c > GRAPH_DIM_MAX ||
        input.h > GRAPH_DIM_MAX || input.w > GRAPH_DIM_MAX ||
        (input.rank != 1 && input.rank != 3) || shape_count(input) > GRAPH_FLOATS_MAX)
        graph_fail(g, ERR_INVALID, "the input's shape (%d, %d, %d) is not possible", input.c,
                   input.h, input.w);
    else
        graph_append(g, graph_node_of(OP_INPUT, input), "input", NULL, 0);
    return g;
}

void graph_free(graph *g)
{
    if (!g)
        return;
    for (int i = 0; i < g->node_count; i++)
        free(g->nodes[i].in);
    free(g->nodes);
    free(g->vars);
    free(g);
}

static void check_uses(graph *g)
{
    for (int i = 0; i < g->node_count; i++) {
        const graph_node *n = &g->nodes[i];
        if (n->uses == 0) {
            graph_fail(g, ERR_INVALID, "%s '%s': its result is not used by the model's output",
                       graph_op_name(n->op), n->name);
            return;
        }
    }
}

static void check_names(graph *g)
{
    for (int i = 0; i < g->var_count; i++)
        for (int j = 0; j < i; j++)
            if (strcmp(g->vars[i].name, g->vars[j].name) == 0) {
                graph_fail(g, ERR_INVALID, "two layers are named '%.*s'",
                           (int)(strrchr(g->vars[i].name, '.') - g->vars[i].name), g->vars[i].name);
                return;
            }
}

static void check_output(graph *g, int out, int outputs)
{
    const graph_node *n = &g->nodes[out];
    if (n->shape.rank != 1)
        graph_fail(
            g, ERR_INVALID,
            "%s '%s': the model's output has shape (%d, %d, %d); it must be flat, one number a "
            "class",
            graph_op_name(n->op), n->name, n->shape.c, n->shape.h, n->shape.w);
    else if (outputs > 0 && n->shape.c != outputs)
        graph_fail(g, ERR_INVALID, "%s '%s': the model has %d outputs, %d are needed",
                   graph_op_name(n->op), n->name, n->shape.c, outputs);
}

int graph_finish(graph *g, int out, int outputs, err *e)
{
    if (g->error.code == ERR_NONE && (out < 0 || out >= g->node_count))
        graph_fail(g, ERR_INVALID, "the model returned no tensor");
    if (g->error.code == ERR_NONE && g->output >= 0)
        graph_fail(g, ERR_INTERNAL, "the graph is finished already");
    if (g->error.code == ERR_NONE) {
        g->nodes[out].uses++;
        check_output(g, out, outputs);
        check_uses(g);
        check_names(g);
    }
    if (g->error.code != ERR_NONE)
        return err_set(e, g->error.code, "%s", g->error.message);
    g->output = out;
    return 0;
}

shape graph_shape(const graph *g, int x)
{
    if (g->error.code != ERR_NONE || x < 0 || x >= g->node_count)
        return (shape){0};
    return g->nodes[x].shape;
}

int graph_only_reader(const graph *g, int x)
{
    if (g->nodes[x].uses != 1 || g->output == x)
        return -1;
    for (int i = x + 1; i < g->node_count; i++)
        for (int j = 0; j < g->nodes[i].in_count; j++)
            if (g->nodes[i].in[j] == x)
                return i;
    return -1;
}

bool graph_is_relu(const graph *g, int x)
{
    return x >= 0 && g->nodes[x].op == OP_ACTIVATION && g->nodes[x].act.kind == ACT_RELU;
}

void graph_mark_gradients(const graph *g, bool *needs)
{
    for (int i = 0; i < g->node_count; i++) {
        const graph_node *n = &g->nodes[i];
        needs[i] = n->weight >= 0;
        for (int j = 0; j < n->in_count; j++)
            needs[i] = needs[i] || needs[n->in[j]];
    }
}

int graph_var_find(const graph *g, const char *name)
{
    for (int i = 0; i < g->var_count; i++)
        if (strcmp(g->vars[i].name, name) == 0)
            return i;
    return -1;
}
