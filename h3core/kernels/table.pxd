from h3core.kernels.csrc cimport h3_map, h3_pool, h3_table


cdef class Kernels:
    # Other extension modules call self.kernels.table.<slot or driver>(&kernels.table, kernels.pool, ...).
    cdef h3_table table
    cdef h3_pool *pool
    cdef unsigned cpu
    cdef readonly str isa
    cdef readonly int threads
    cdef readonly tuple features
    cdef readonly str name

    cdef _map(self, x, h3_map map)
