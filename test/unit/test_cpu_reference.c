/* test_cpu_reference.c: the ops that the CPU backend lacks, by the reference's loops.
 *
 * Here it lacks all but the network's input: this program has a table of ops of its own in place of
 * kernels/cpu/cpu_ops.c. Every case of test_graph_ops.c and its random models then go that way,
 * between tensors of every layout, with one thread and with two. */
#define BY_REFERENCE
#include "test_graph_ops.c"

#include "kernels/cpu/cpu_ops.h"

static int make_input(program *p, layer *l)
{
    (void)p;
    return layer_input(l);
}

const cpu_op cpu_ops[OP_COUNT] = {[OP_INPUT] = {make_input, READS_ALL, READS_ALL}};

TEST(every_layer_is_computed_so)
{
    for (int i = 0; i < CASES; i++) {
        engine *m = compile(&cases[i], "cpu", 1);
        const graph *g = engine_graph(m);
        for (int n = 1; n < g->node_count; n++) {
            char line[GRAPH_NAME_BYTES + 16];
            snprintf(line, sizeof line, "\n%s reference\n", g->nodes[n].name);
            CHECK_CONTAINS(engine_choices(m), line);
        }
        engine_free(m);
    }
}

static void train(engine *m, const engine_batch *b)
{
    err e = ERR_INIT;
    engine_result r;
    for (int step = 0; step < 3; step++)
        CHECK_OK(engine_train(m, b, 0.01, &r, &e), e);
}

/* Who computes which sample changes from run to run; the order of the sums does not. */
TEST(the_same_threads_give_the_same_bits)
{
    err e = ERR_INIT;
    for (int i = 0; i < CASES; i++) {
        work *w = draw_work(&cases[i], BATCH, 5);
        engine *a = compile(&cases[i], "cpu", 3), *b = compile(&cases[i], "cpu", 3);
        train(a, &w->b);
        train(b, &w->b);
        CHECK(memcmp(engine_floats(a, &e), engine_floats(b, &e),
                     engine_weights_floats(a) * sizeof(float)) == 0);
        engine_free(a);
        engine_free(b);
        free(w);
    }
}
