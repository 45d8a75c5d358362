/* cpu_ops.c: the CPU backend's rows of the table of ops (kernels/ops.h): which ops it has, and what
 * they read backward. */
#include "cpu_ops.h"

static bool images_only(const program *p, const layer *l)
{
    for (int j = 0; j < l->in_count; j++)
        if (p->tensors[l->in[j]].form != FORM_IMAGE)
            return false;
    return p->tensors[l->out].form == FORM_IMAGE;
}

/* Images of one shape. */
static bool both_images(const program *p, const layer *l)
{
    for (int j = 0; j < l->in_count; j++)
        if (!shape_equal(p->tensors[l->in[j]].s, p->tensors[l->out].s))
            return false;
    return images_only(p, l);
}

/* Are the input's channels whole vectors? */
static bool fills_vectors(const program *p, const layer *l)
{
    return p->tensors[l->in[0]].cs % CPU_LANES == 0;
}

static int make_input(program *p, layer *l)
{
    (void)p;
    return layer_input(l);
}

/* Those that cpu_build.c did not give to a faster kind. */
static int make_conv(program *p, layer *l)
{
    return conv_is_depthwise(l->node, p->tensors[l->in[0]].s.c) ? layer_depthwise(p, l)
                                                                : layer_group(p, l);
}

static int make_act(program *p, layer *l)
{
    bool relu = l->node->act.kind == ACT_RELU && both_images(p, l);
    return relu ? layer_relu(p, l) : layer_act(p, l);
}

static int make_pool(program *p, layer *l)
{
    return images_only(p, l) && fills_vectors(p, l) ? layer_pool(p, l) : layer_any(l);
}

static int make_add(program *p, layer *l)
{
    return both_images(p, l) ? layer_add(p, l) : layer_any(l);
}

static int make_mul(program *p, layer *l)
{
    bool gate =
        images_only(p, l) && !both_images(p, l) && fills_vectors(p, l) && l->in[0] != l->in[1];
    return gate ? layer_gate(p, l) : layer_any(l);
}

static int make_concat(program *p, layer *l)
{
    return images_only(p, l) ? layer_concat(p, l) : layer_any(l);
}

static int make_flatten(program *p, layer *l)
{
    bool image = p->tensors[l->in[0]].form == FORM_IMAGE && !l->add[0];
    return image ? layer_flatten(p, l) : layer_any(l);
}

static int make_pad(program *p, layer *l)
{
    (void)p;
    return layer_any(l);
}

const cpu_op cpu_ops[OP_COUNT] = {
    [OP_INPUT] = {make_input, READS_ALL, READS_ALL},
    [OP_CONV2D] = {make_conv, READS_ALL, READS_FOR_RELU},
    [OP_LINEAR] = {layer_linear, READS_ALL, READS_FOR_RELU},
    /* The second input is what is added to the norm. Without that the norm tells from its input
     * what ReLU let through. */
    [OP_BATCH_NORM] = {layer_batch_norm, READS_FIRST, READS_FOR_RELU_OF_SUM},
    [OP_ACTIVATION] = {make_act, READS_ALL, READS_ALL},
    [OP_MAX_POOL] = {make_pool, READS_ALL, READS_ALL},
    [OP_AVG_POOL] = {make_pool, READS_NONE, READS_NONE},
    [OP_ADAPTIVE_AVG_POOL] = {make_pool, READS_NONE, READS_NONE},
    [OP_ADD] = {make_add, READS_NONE, READS_FOR_RELU},
    [OP_MUL] = {make_mul, READS_ALL, READS_FOR_RELU},
    [OP_CONCAT] = {make_concat, READS_NONE, READS_NONE},
    [OP_FLATTEN] = {make_flatten, READS_NONE, READS_NONE},
    [OP_DROPOUT] = {layer_dropout, READS_NONE, READS_ALL},
    [OP_PAD_CHANNELS] = {make_pad, READS_NONE, READS_ALL},
};
