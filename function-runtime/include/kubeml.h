/* kubeml.h: what a KubeML function is written against.
 *
 * A function is one or more C files that end in KUBEML_FUNCTION(...): a model, and how it is
 * trained.
 *
 *     #include <kubeml.h>
 *
 *     static kml_tensor model(kml_graph *g, kml_tensor x)
 *     {
 *         x = kml_relu(g, kml_conv2d(g, x, .filters = 8, .kernel = 3, .padding = 1));
 *         x = kml_flatten(g, kml_global_avg_pool2d(g, x));
 *         return kml_linear(g, x, kml_classes(g));
 *     }
 *
 *     KUBEML_FUNCTION(.model = model, .optimizer = kml_sgd(.momentum = 0.9), .lr = 0.1);
 *
 * The model function says what is computed: it appends layers to a graph and returns the last one's
 * result. Nothing is computed while it runs. It is called whenever the graph is wanted: before
 * there is a job, to ask whether it takes the samples; by each function of a job, of which several
 * may be in one process; for inference. So it always appends the same for the same x and classes,
 * and keeps nothing in static variables. Shapes are those of one sample: (C, H, W), or (F) after
 * kml_flatten; the batch is added by the platform.
 *
 * Errors. A mistake (a kernel larger than its input, a sum of different shapes) is kept in the
 * graph with the layer's name and the reason, and `kubeml train` is refused with that message (or
 * the job ends with it, where the code could not be asked before); the calls after it do nothing
 * and return a tensor that is not valid. So a model needs no checks.
 *
 * Limits. 4,096 layers, with names of 64 characters; 2^31 parameters; 2^20 channels, rows or
 * columns; 1,024 for kernel, stride, padding and dilation. Others stand beside what they are of.
 *
 * Ownership. Graph, tensors and steps belong to the platform; free nothing, keep no pointer.
 *
 * Options are named arguments: `.stride = 2`. What is left out has the value in the comment beside
 * it. Layers, parameters and their first values are PyTorch's (torch.nn, version 2): same formulas,
 * same shapes, same names ("conv1.weight", "bn1.running_mean", "fc1.bias"), numbered in order where
 * the code gives no name. Names may have dots ("layer1.0.conv1"). */
#ifndef KUBEML_H
#define KUBEML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#error "kubeml.h is for C: its options are compound literals, which C++ does not have"
#endif

/* Changes with every change of a struct or function below; an object of another ABI is built anew.
 */
#define KUBEML_ABI 2
#define KML_API    __attribute__((visibility("default")))

/* kml_sgd(0.9) would be a weight decay of 0.9: what has no name is a mistake, at its line. Only gcc
 * knows how. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic error "-Wdesignated-init"
#define KML_NAMED __attribute__((designated_init))
#else
#define KML_NAMED
#endif

enum { KML_CHANNELS_MAX = 16, KML_MILESTONES_MAX = 16 };

typedef struct kml_graph kml_graph;
typedef struct kml_step kml_step;

/* The result of a layer; a small value, to be copied at will. */
typedef struct kml_tensor {
    int id;
} kml_tensor;

/* ---- facts about the graph ----------------------------------------------------------------- */

/* How many classes the dataset has (of regression: how many targets). */
KML_API int kml_classes(const kml_graph *g);
/* Extents of one sample of x; after kml_flatten the features are the channels, and H = W = 1. 0
 * when the graph has failed. */
KML_API int kml_channels(const kml_graph *g, kml_tensor x);
KML_API int kml_height(const kml_graph *g, kml_tensor x);
KML_API int kml_width(const kml_graph *g, kml_tensor x);
/* A mistake, with this message (printf's format), unless one was found before: for samples or
 * classes that the model is not made for. */
KML_API kml_tensor kml_fail(kml_graph *g, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* ---- layers with parameters ---------------------------------------------------------------- */

typedef struct kml_conv2d_options {
    const char *name;                  /* "conv1", "conv2", ... */
    int filters;                       /* output channels; must be given */
    int kernel, kernel_h, kernel_w;    /* one must be given; _h and _w override the square one, here
                                          and below */
    int stride, stride_h, stride_w;    /* 1 */
    int padding, padding_h, padding_w; /* 0; zeros on each side */
    int dilation;                      /* 1 */
    int groups;                        /* 1; as many as channels: depthwise */
    bool no_bias;
    bool he; /* weights N(0, sqrt(2 / fan_out)), fan_out = filters*kernel_h*kernel_w (He et al.
                2015, torchvision's ResNets) instead of U(+-1/sqrt(fan_in)) */
} kml_conv2d_options;

/* Cross-correlation, (C,H,W) -> (filters,P,Q), P = (H + 2*padding - dilation*(kernel-1) - 1)/stride
 * + 1: y[k,p,q] = b[k] + sum over c,r,s of w[k,c,r,s] * x[c, p*stride - padding + r*dilation, ...].
 * Parameters: weight (filters, C/groups, kernel_h, kernel_w), bias (filters). */
#define kml_conv2d(g, x, ...) kml_conv2d_with((g), (x), (kml_conv2d_options){__VA_ARGS__})
KML_API kml_tensor kml_conv2d_with(kml_graph *g, kml_tensor x, kml_conv2d_options o);

typedef struct kml_linear_options {
    const char *name; /* "fc1", "fc2", ... */
    bool no_bias;
} kml_linear_options;

/* (F) -> (features): y = W x + b. Parameters: weight (features, F), bias (features). */
#define kml_linear(g, x, features, ...)                                                            \
    kml_linear_with((g), (x), (features), (kml_linear_options){__VA_ARGS__})
KML_API kml_tensor kml_linear_with(kml_graph *g, kml_tensor x, int features, kml_linear_options o);

typedef struct kml_batch_norm_options {
    const char *name; /* "bn1", "bn2", ... */
    double eps;       /* 1e-5; in (0, 1] as the next */
    double momentum;  /* 0.1 */
} kml_batch_norm_options;

/* (C,H,W) -> the same: y = (x - mean) / sqrt(var + eps) * weight + bias for each channel, with the
 * batch's mean and variance in training and the running ones otherwise (Ioffe and Szegedy 2015).
 * The running statistics are part of the model: they are merged and exported with it. Behind a
 * kml_linear there are none: a kml_conv2d before kml_flatten, its kernel as large as the image, is
 * the same, and its result (C,1,1). */
#define kml_batch_norm2d(g, x, ...)                                                                \
    kml_batch_norm2d_with((g), (x), (kml_batch_norm_options){__VA_ARGS__})
KML_API kml_tensor kml_batch_norm2d_with(kml_graph *g, kml_tensor x, kml_batch_norm_options o);

typedef struct kml_group_norm_options {
    const char *name; /* "gn1", "gn2", ... */
    double eps;       /* 1e-5; in (0, 1] */
} kml_group_norm_options;

/* (C,H,W) or (F) -> the same: as batch norm, but with mean and variance over one sample's channels
 * of a group (Wu and He 2018): C must be a multiple of `groups`. A sample's result does not depend
 * on the others, so that training and inference are alike, and the model keeps no statistics. Of an
 * image, as many groups as channels are torch.nn.InstanceNorm2d(C, affine=True); of (F), 1 group is
 * torch.nn.LayerNorm(F). Parameters: weight (C), bias (C). Not on a GPU. */
#define kml_group_norm(g, x, groups, ...)                                                          \
    kml_group_norm_with((g), (x), (groups), (kml_group_norm_options){__VA_ARGS__})
KML_API kml_tensor kml_group_norm_with(kml_graph *g, kml_tensor x, int groups,
                                       kml_group_norm_options o);

/* ---- activations: any shape, element by element -------------------------------------------- */

KML_API kml_tensor kml_relu(kml_graph *g, kml_tensor x);  /* max(x, 0) */
KML_API kml_tensor kml_relu6(kml_graph *g, kml_tensor x); /* min(max(x, 0), 6) */
KML_API kml_tensor kml_leaky_relu(kml_graph *g, kml_tensor x,
                                  double slope);                /* x > 0 ? x : slope*x */
KML_API kml_tensor kml_hardsigmoid(kml_graph *g, kml_tensor x); /* relu6(x + 3) / 6 */
KML_API kml_tensor kml_hardswish(kml_graph *g, kml_tensor x);   /* x * relu6(x + 3) / 6 */
KML_API kml_tensor kml_sigmoid(kml_graph *g, kml_tensor x);     /* 1 / (1 + exp(-x)) */
KML_API kml_tensor kml_tanh(kml_graph *g, kml_tensor x);
KML_API kml_tensor kml_gelu(kml_graph *g, kml_tensor x); /* x * (1 + erf(x / sqrt 2)) / 2 */
KML_API kml_tensor kml_silu(kml_graph *g, kml_tensor x); /* x * sigmoid(x) */

/* ---- pooling ------------------------------------------------------------------------------- */

typedef struct kml_pool_options {
    const char *name;                  /* for messages */
    int kernel, kernel_h, kernel_w;    /* one must be given */
    int stride, stride_h, stride_w;    /* the kernel */
    int padding, padding_h, padding_w; /* 0; at most half the kernel */
    bool ceil_mode;                    /* a last window may hang over the edge */
    bool exclude_padding;              /* average: divide by the cells inside the image alone */
} kml_pool_options;

/* (C,H,W) -> (C,P,Q): the largest, or the mean, of each window. */
#define kml_max_pool2d(g, x, ...) kml_max_pool2d_with((g), (x), (kml_pool_options){__VA_ARGS__})
#define kml_avg_pool2d(g, x, ...) kml_avg_pool2d_with((g), (x), (kml_pool_options){__VA_ARGS__})
KML_API kml_tensor kml_max_pool2d_with(kml_graph *g, kml_tensor x, kml_pool_options o);
KML_API kml_tensor kml_avg_pool2d_with(kml_graph *g, kml_tensor x, kml_pool_options o);
/* (C,H,W) -> (C,height,width), and -> (C,1,1): the mean of each part. */
KML_API kml_tensor kml_adaptive_avg_pool2d(kml_graph *g, kml_tensor x, int height, int width);
KML_API kml_tensor kml_global_avg_pool2d(kml_graph *g, kml_tensor x);
/* Likewise: the largest of each part. Not on a GPU. */
KML_API kml_tensor kml_adaptive_max_pool2d(kml_graph *g, kml_tensor x, int height, int width);
KML_API kml_tensor kml_global_max_pool2d(kml_graph *g, kml_tensor x);

/* ---- joining and shaping ------------------------------------------------------------------- */

/* Element by element; equal shapes, or one of them (C,1,1) (squeeze and excite). */
KML_API kml_tensor kml_add(kml_graph *g, kml_tensor a, kml_tensor b);
KML_API kml_tensor kml_mul(kml_graph *g, kml_tensor a, kml_tensor b);
/* Along the channels: kml_concat(g, a, b, c), up to 64 tensors of equal height and width. */
#define kml_concat(g, ...)                                                                         \
    kml_concat_all((g), (const kml_tensor[]){__VA_ARGS__},                                         \
                   sizeof((const kml_tensor[]){__VA_ARGS__}) / sizeof(kml_tensor))
KML_API kml_tensor kml_concat_all(kml_graph *g, const kml_tensor *x, size_t count);
/* (C,H,W) -> (C*H*W), rows of each channel one after the other. */
KML_API kml_tensor kml_flatten(kml_graph *g, kml_tensor x);
/* Training: each element is kept with probability 1 - p and divided by it, or becomes 0; otherwise
 * x. Which are kept depends on (job's seed, epoch, sample, layer) alone. 0 <= p < 1. At most 256
 * in a model, each of up to 2^26 elements of a sample. */
KML_API kml_tensor kml_dropout(kml_graph *g, kml_tensor x, double p);
/* Channels of zeros before and after x's own. */
KML_API kml_tensor kml_pad_channels(kml_graph *g, kml_tensor x, int before, int after);

/* A whole model of the zoo ("resnet18", see `kubeml zoo list`) with `outputs` outputs. Its stem
 * follows from x's size; "resnet18,stem=cifar" and "resnet18,stem=imagenet" say which. Flips, crops
 * and scaling are .transform's. */
KML_API kml_tensor kml_zoo(kml_graph *g, kml_tensor x, const char *name, int outputs);

/* ---- optimizer: .optimizer = kml_sgd(...), kml_adam(...) or kml_adamw(...) ----------------- */

typedef enum kml_optimizer_kind { KML_SGD, KML_ADAM, KML_ADAMW } kml_optimizer_kind;

/* torch.optim's formulas. 0 means the default. What is given must be the kind's. */
typedef struct KML_NAMED kml_optimizer {
    kml_optimizer_kind kind;    /* SGD */
    double weight_decay;        /* 0; AdamW: 0.01, -1 none */
    double momentum, dampening; /* SGD: 0, 0 */
    bool nesterov;              /* SGD */
    double beta1, beta2, eps;   /* Adam, AdamW: 0.9, 0.999, 1e-8 */
} kml_optimizer;

#define kml_sgd(...)                                                                               \
    {                                                                                              \
        .kind = KML_SGD, __VA_ARGS__                                                               \
    }
#define kml_adam(...)                                                                              \
    {                                                                                              \
        .kind = KML_ADAM, __VA_ARGS__                                                              \
    }
#define kml_adamw(...)                                                                             \
    {                                                                                              \
        .kind = KML_ADAMW, __VA_ARGS__                                                             \
    }

/* ---- loss: .loss = ... --------------------------------------------------------------------- */

typedef enum kml_loss {
    KML_CROSS_ENTROPY, /* mean over the batch of -log softmax(y)[label]; the default */
    KML_MSE,           /* mean over batch and outputs of (y - target)^2 */
} kml_loss;

/* ---- learning rate over time: .schedule = kml_cosine(...), ... ----------------------------- */

typedef enum kml_schedule_kind {
    KML_CONSTANT,
    KML_STEP,
    KML_MILESTONES,
    KML_COSINE,
    KML_PLATEAU,
} kml_schedule_kind;

/* torch.optim.lr_scheduler's formulas; `lr` is the job's learning rate; epochs count from 0. What
 * is given must be the kind's. */
typedef struct KML_NAMED kml_schedule {
    kml_schedule_kind kind;
    int every;                  /* step: epochs; must be given */
    int at[KML_MILESTONES_MAX]; /* milestones: ascending epochs from 1; one must be given */
    double gamma;               /* step, milestones, plateau: factor in (0, 1], 0.1 */
    int epochs;                 /* cosine: length; the job's epochs after the warm-up */
    bool per_step;              /* cosine: changes with every batch */
    double min_lr;              /* cosine, plateau: 0 */
    int patience, cooldown;     /* plateau: epochs; patience 0 means 10, -1 none */
    double threshold;           /* plateau: 1e-4, relative, below 1 */
    /* any: the rate rises linearly from 0 first, batch by batch; the schedule, with all its epochs,
     * counts from there */
    int warmup_epochs;
} kml_schedule;

#define kml_constant(...)                                                                          \
    {                                                                                              \
        .kind = KML_CONSTANT, __VA_ARGS__                                                          \
    } /* lr */
#define kml_step_lr(...)                                                                           \
    {                                                                                              \
        .kind = KML_STEP, __VA_ARGS__                                                              \
    } /* lr * gamma^(epoch / every) */
#define kml_milestones(...)                                                                        \
    {                                                                                              \
        .kind = KML_MILESTONES, __VA_ARGS__                                                        \
    } /* lr * gamma^(milestones passed) */
#define kml_cosine(...)                                                                            \
    {                                                                                              \
        .kind = KML_COSINE, __VA_ARGS__                                                            \
    } /* half a cosine from lr to min_lr */
#define kml_plateau(...)                                                                           \
    {                                                                                              \
        .kind = KML_PLATEAU, __VA_ARGS__                                                           \
    } /* lr * gamma where the validation                                                           \
          loss has stopped to fall */

/* ---- what is done to a sample: .transform = kml_transform(...) ----------------------------- */

/* uint8 images become x / 255 first. Flips and crops are for training alone and depend on (job's
 * seed, epoch, sample) alone. */
typedef struct KML_NAMED kml_transform {
    bool flip; /* left and right swapped, with probability 1/2 */
    /* pads by so many zeros and cuts the size out again at a random place; at most 64, and less
     * than both sides of an image */
    int crop;
    bool standardise; /* (x - mean) / std with the dataset's own mean and deviation of each channel
                       */
    /* (x - min) / (max - min), from 0 to 1 over the dataset's training samples, each channel by
     * itself; not beside standardise or mean and std */
    bool min_max;
    /* instead of standardise, with these: one number a channel */
    float mean[KML_CHANNELS_MAX], std[KML_CHANNELS_MAX];
} kml_transform;

#define kml_transform(...)                                                                         \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

/* ---- a step of one's own: .step = ... ------------------------------------------------------ */

/* Called for every batch instead of the platform's own step, which is
 *     return kml_gradients(s) || kml_update(s, kml_learning_rate(s)) ? -1 : 0;
 * Returns 0, or -1 to end the job (after kml_step_fail, with its message). Must keep nothing
 * between two calls: a function that is replaced begins anew. */
typedef int (*kml_step_function)(kml_step *s);

/* Forward and backward over the batch: afterwards kml_batch_loss and kml_gradient_values are new.
 * It comes first: an update, or a look at the gradients, before it ends the job. 0, or -1 when the
 * batch cannot be computed. */
KML_API int kml_gradients(kml_step *s);
/* One update of the optimizer with the gradients as they are now. */
KML_API int kml_update(kml_step *s, double lr);
KML_API double kml_batch_loss(const kml_step *s);    /* mean over the batch */
KML_API double kml_learning_rate(const kml_step *s); /* what the schedule says */
KML_API unsigned kml_epoch(const kml_step *s);       /* from 0 */
KML_API int kml_batch_size(const kml_step *s);       /* samples in this batch */
/* d loss / d parameter, all in one block with gaps, to be read and changed; NULL on failure. What
 * is written into the gaps does not count: they are zeros at the next call, and in the update. */
KML_API float *kml_gradient_values(kml_step *s, size_t *count);
/* Scales the gradients so that their L2 norm is at most `max` (torch.nn.utils.clip_grad_norm_: by
 * max / (norm + 1e-6)). The norm as it was; NaN on failure. */
KML_API double kml_clip_gradient_norm(kml_step *s, double max);
/* Keeps the message of this step's end; returns -1. */
KML_API int kml_step_fail(kml_step *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- the function -------------------------------------------------------------------------- */

typedef kml_tensor (*kml_model)(kml_graph *g, kml_tensor x);

/* What the platform finds in the object. Made by KUBEML_FUNCTION, once in a program. */
typedef struct kml_function {
    uint32_t abi, size;
    kml_model model;         /* must be given */
    kml_optimizer optimizer; /* SGD */
    kml_loss loss;           /* KML_CROSS_ENTROPY */
    kml_schedule schedule;   /* constant */
    kml_transform transform; /* none but x / 255 for uint8 */
    kml_step_function step;  /* the platform's */
    double lr; /* of `kubeml run` without --lr: 0.01; a job's request always has one */
} kml_function;

extern KML_API const kml_function kubeml_function;

#define KUBEML_FUNCTION(...)                                                                       \
    const kml_function kubeml_function = {                                                         \
        .abi = KUBEML_ABI, .size = (uint32_t)sizeof(kml_function), __VA_ARGS__}

#endif
