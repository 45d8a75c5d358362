/* member_internal.h: what member_open.c makes and member.c runs. */
#ifndef KUBEML_MEMBER_INTERNAL_H
#define KUBEML_MEMBER_INTERNAL_H

#include "member.h"
#include "modelstore.h"
#include "pslink.h"
#include "request.h"

struct member {
    /* The order. */
    char job[MEMBER_JOB_BYTES], address[MEMBER_ADDRESS_BYTES], secret[256];
    int function, incarnation, threads;
    modelstore_access access;
    request request;
    char backend[32], gpu[96]; /* gpu: as CUDA_VISIBLE_DEVICES takes it; "": whatever this process sees */
    char object_path[512], object[256], locator[512];
    int object_fd; /* the code where object_path is empty; -1: not open */

    /* What was made of it. */
    dataset *data;
    program *program;
    trainer *trainer;
    json_t *failed; /* the message to kubeml-ps when something above could not be made */

    /* While it runs. */
    json_t *hello, *opening;
    usage *usage;
    pslink *link;
    modelstore *store;
    bool attached, touched; /* touched: the engine has other weights than it began with */
    block reference; /* fetched versions; the member's own memory */
};

/* Copies the order into the member; ERR_INVALID naming the field. */
int member_read_order(const json_t *order, member *m, err *e);
int member_make_trainer(member *m, char reason[TRAINER_REASON_BYTES], err *e);
const char *member_cpu(void); /* "x86_64-v4", ... */

#endif
