from libc.stdint cimport int64_t

from h3core.kernels.csrc cimport h3_finish, h3_matrix
from h3core.kernels.rows cimport Rows
from h3core.kernels.table cimport Kernels


cdef class QuantMatrix:
    cdef h3_matrix matrix
    cdef const unsigned char[::1] data        # keeps the bytes alive
    cdef const float[::1] scale               # and the scales
    cdef Kernels kernels
    cdef readonly str format

    cdef _linear(self, h3_finish finish, Rows x, QuantMatrix gate, float[:, ::1] y, const float[::1] bias,
                 const float[::1] gate_bias, const float[:, ::1] scale, const int[::1] index)
