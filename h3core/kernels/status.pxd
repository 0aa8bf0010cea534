from libc.stdint cimport int64_t

from h3core.kernels.csrc cimport h3_status

cdef int check(h3_status status, str what) except -1
cdef int check_index(const int[::1] index, int64_t m, int64_t groups) except -1
