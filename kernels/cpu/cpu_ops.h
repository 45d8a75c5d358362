/* cpu_ops.h: the CPU backend's table of ops. Where a row is empty, cpu_reference.c runs the op by
 * the reference's loops. */
#ifndef KUBEML_CPU_OPS_H
#define KUBEML_CPU_OPS_H

#include "cpu_program.h"
#include "kernels/ops.h"

/* Which of a layer's values its backward pass reads: these stay in memory until then. */
typedef enum cpu_reads {
    READS_NONE,
    READS_ALL,
    READS_FIRST,           /* the first input alone */
    READS_FOR_RELU,        /* the result, if it went through a ReLU */
    READS_FOR_RELU_OF_SUM, /* likewise, if there is a second input too */
} cpu_reads;

typedef struct cpu_op {
    /* Chooses how the layer is computed, by what its tensors are like: sets ops, choice and all
     * that the layer needs. -1 when memory is gone. NULL: the backend lacks the op. */
    int (*make)(program *p, layer *l);
    cpu_reads inputs, result;
} cpu_op;

extern const cpu_op cpu_ops[OP_COUNT];

/* Is the node of that op, and computed by this backend's own layers? What fuses layers asks this.
 */
static inline bool cpu_has(const graph_node *n, graph_op op)
{
    return n->op == op && cpu_ops[op].make;
}

#endif
