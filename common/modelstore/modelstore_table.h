/* modelstore_table.h: the implementations behind modelstore.h, for modelstore.c, and for a program
 * that brings one of its own. */
#ifndef KUBEML_MODELSTORE_TABLE_H
#define KUBEML_MODELSTORE_TABLE_H

#include "modelstore.h"

extern const modelstore_ops modelstore_database; /* Redis with our module, which merges */
extern const modelstore_ops modelstore_server;   /* plain Redis; the owner merges */

/* One implementation more, found by its name after the others: tests have one in memory. For before
 * the first model store is opened. */
void modelstore_add(const modelstore_ops *ops);

#endif
