/* zoo.h: the models that come with KubeML, by name.
 *
 * ResNet, VGG, SqueezeNet, MobileNet and DenseNet are torchvision's networks layer for layer, with
 * its parameter names, so that its checkpoints fit. Each builder adapts to any number of channels
 * and outputs. Errors stay in the graph (graph.h). */
#ifndef KUBEML_ZOO_H
#define KUBEML_ZOO_H

#include <stdbool.h>
#include <stddef.h>

#include "common/contract/limits.h"
#include "kernels/engine.h"

/* How the network begins: torchvision's stem for large images, or a stem that keeps a 32x32 image's
 * resolution. AUTO: CIFAR when both sides are below 64. */
typedef enum zoo_stem { ZOO_STEM_AUTO, ZOO_STEM_CIFAR, ZOO_STEM_IMAGENET } zoo_stem;

/* How samples are scaled: kml_transform's words. */
typedef enum zoo_scale { ZOO_SCALE_STANDARDISE, ZOO_SCALE_MIN_MAX, ZOO_SCALE_NONE } zoo_scale;

enum { ZOO_CROP_MAX = LIMITS_CROP_MAX };

/* The builder's `user`; NULL means {0}. flip, crop and scale are for callers that train the model
 * without code: no builder reads them. */
typedef struct zoo_options {
    zoo_stem stem;
    bool flip;
    int crop; /* pixels of padding */
    zoo_scale scale;
    bool no_dropout; /* for comparison with another engine, whose dropout draws other numbers */
} zoo_options;

typedef struct zoo_model {
    const char *name;
    const char *summary;                  /* one line for `kubeml zoo list` */
    engine_builder build;                 /* user: const zoo_options * */
    int channels, height, width, outputs; /* the input and outputs that `params` is for */
    size_t params; /* with that input and these outputs; equals torchvision's count, if any */
    bool stems;    /* has a stem for small images and one for large images */
} zoo_model;

/* Bytes of a model's text with its options, the NUL included. */
enum { ZOO_TEXT_BYTES = LIMITS_MODEL_TEXT_BYTES };

/* All models; NULL past the end. */
const zoo_model *zoo_at(int index);
/* The model of that name, or NULL with ERR_NOT_FOUND; the message has the nearest names. */
const zoo_model *zoo_find(const char *name, err *e);
/* Reads a model from text: "resnet34", "resnet34,stem=imagenet,flip=on,crop=4,scale=min_max". Fills
 * *o and returns the model, or NULL with zoo_find's error or ERR_INVALID: an unknown option or
 * value, an option twice, a stem for a model that has only one, a text that is too long. */
const zoo_model *zoo_parse(const char *text, zoo_options *o, err *e);
/* Reads "cifar", "imagenet" or "auto"; ERR_INVALID otherwise. */
int zoo_stem_parse(const char *text, zoo_stem *out, err *e);

#endif
