/* metrics_controller.h: the families that /metrics shows. */
#ifndef KUBEML_METRICS_CONTROLLER_H
#define KUBEML_METRICS_CONTROLLER_H

#include "controller.h"

/* ERR_NOMEM. */
int controller_metrics_open(controller_metrics *m, err *e);

#endif
