/* Are this processor's slots right? A wrong one (a compiler's fault, a hypervisor's, ours) is replaced by portable C. */
#ifndef H3_VERIFY_H
#define H3_VERIFY_H

#include "table.h"

enum { H3_VERIFY_NAMES = 64, H3_VERIFY_NAME = 40 };

/* Names of the slots that were replaced, for people. */
typedef struct {
    int count;
    char names[H3_VERIFY_NAMES][H3_VERIFY_NAME];
} h3_verify_report;

/* Runs every slot that is not portable C on small inputs, beside portable C. */
h3_status h3_verify(h3_table *table, h3_verify_report *report);

/* Each group of slots has one of these; h3_verify calls them all. c: the portable table. */
h3_status h3_verify_matmul(h3_table *table, const h3_table *c, h3_verify_report *report);
h3_status h3_verify_layers(h3_table *table, const h3_table *c, h3_verify_report *report);

/* For those functions: adds a name, cut to fit; a full report keeps its first names. */
void h3_verify_name(h3_verify_report *report, const char *operation, const char *first, const char *second);

/* Fills with values of both signs around 1, the same on every machine. */
void h3_verify_fill(float *values, int64_t count, uint32_t seed);

/* |got - want| / |want| <= tolerance; false when anything is not finite. */
int h3_verify_close(const float *got, const float *want, int64_t count, double tolerance);

#endif
