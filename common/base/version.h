/* version.h: the platform's version. */
#ifndef KUBEML_VERSION_H
#define KUBEML_VERSION_H

#define KUBEML_VERSION "0.1.0"

#endif
