/* Error codes: what a kernel can say. h3core/kernels/status.pyx alone turns them into exceptions. */
#ifndef H3_STATUS_H
#define H3_STATUS_H

typedef enum {
    H3_OK = 0,
    H3_NO_MEMORY = 1,   /* an allocation failed */
    H3_BAD_SHAPE = 2,   /* sizes that the kernel does not accept: the wrapper should have refused them */
    H3_NO_KERNEL = 3,   /* a format or kind that has no slot in the table */
    H3_NO_THREAD = 4    /* the system would not start a worker thread */
} h3_status;

#endif
