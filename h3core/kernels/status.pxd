from h3core.kernels.csrc cimport h3_status

cdef int check(h3_status status, str what) except -1
