/* decimal.h: numbers for people: the shortest text that reads back as the same number, 95.97 and
 * not 95.969999999999999. */
#ifndef KUBEML_DECIMAL_H
#define KUBEML_DECIMAL_H

enum { DECIMAL_BYTES = 32 };

/* `number` is finite. Returns `out`. */
const char *decimal_text(double number, char out[DECIMAL_BYTES]);

#endif
