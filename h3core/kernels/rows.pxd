from libc.stdint cimport int64_t

from h3core.kernels.csrc cimport h3_rows
from h3core.kernels.table cimport Kernels


cdef class Rows:
    cdef h3_rows rows
    cdef unsigned char[::1] storage       # keeps the bytes alive
    cdef int64_t capacity_bytes           # from rows.data to the end of storage
    cdef Kernels kernels
    cdef readonly str kind
