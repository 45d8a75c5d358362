/* graph_build.h: how layers.c appends to a graph; nobody else includes this. */
#ifndef KUBEML_GRAPH_BUILD_H
#define KUBEML_GRAPH_BUILD_H

#include "graph.h"

/* False when the graph has failed or an input is no node of it (which is then the graph's mistake).
 */
bool graph_check_inputs(graph *g, const char *what, const int *x, int count);

/* A node with no variables. */
graph_node graph_node_of(graph_op op, shape s);

/* Appends `n` with inputs x; `name` NULL makes one. The new id, or GRAPH_FAILED. */
int graph_append(graph *g, graph_node n, const char *name, const int *x, int count);

/* Adds the variable "<node's name>.<suffix>" of v's kind, dims and beginning; -1 when that fails,
 * or when `node` or the graph has failed already. */
int graph_add_var(graph *g, int node, const char *suffix, graph_var v);

#endif
