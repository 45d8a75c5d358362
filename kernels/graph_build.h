/* graph_build.h: how layers.c and the rules of shapes.c build a graph; besides them, graph.c and
 * ref_ops.c alone include this. */
#ifndef KUBEML_GRAPH_BUILD_H
#define KUBEML_GRAPH_BUILD_H

#include "ops.h"

/* False when the graph has failed or an input is no node of it (which is then the graph's mistake).
 */
bool graph_check_inputs(graph *g, const char *what, const int *x, int count);

/* A node with no variables. */
graph_node graph_node_of(graph_op op, shape s);

/* What automatic names of such nodes begin with: PyTorch's customary attribute names, "conv". */
const char *graph_prefix(const graph_node *n);

/* Appends `n` with inputs x; `name` NULL makes one. The new id, or GRAPH_FAILED. */
int graph_append(graph *g, graph_node n, const char *name, const int *x, int count);

/* Adds the variable "<node's name>.<suffix>" of v's kind, dims and beginning; -1 when that fails,
 * or when `node` or the graph has failed already. */
int graph_add_var(graph *g, int node, const char *suffix, graph_var v);

/* shapes.c: may b be the second input of an addition to a: the same shape, or (C,1,1)? */
bool shape_broadcasts(shape a, shape b);
/* The rules of op_rows. */
op_shape shape_same, shape_conv2d, shape_linear, shape_batch_norm, shape_group_norm, shape_pool,
    shape_adaptive_pool, shape_pair, shape_concat, shape_flatten, shape_dropout, shape_pad_channels;

#endif
