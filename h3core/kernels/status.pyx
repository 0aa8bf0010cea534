"""Error codes of csrc become exceptions here and nowhere else; so do indices that a kernel would follow blindly."""

from libc.stdint cimport int64_t

from h3core.kernels.csrc cimport H3_BAD_SHAPE, H3_NO_KERNEL, H3_NO_MEMORY, H3_NO_THREAD, H3_OK, h3_status


cdef int check(h3_status status, str what) except -1:
    """Raises what the code means; `what` names the operation, for people."""
    if status == H3_OK:
        return 0
    if status == H3_NO_MEMORY:
        raise MemoryError(f"{what}: out of memory")
    if status == H3_BAD_SHAPE:
        raise ValueError(f"{what}: sizes that this kernel does not accept")
    if status == H3_NO_KERNEL:
        raise NotImplementedError(f"{what}: no kernel for this format")
    if status == H3_NO_THREAD:
        raise RuntimeError(f"{what}: the system would not start a thread")
    raise RuntimeError(f"{what}: unknown status {<int>status}")


cdef int check_index(const int[::1] index, int64_t m, int64_t groups) except -1:
    """index must have m entries, each a row of a table of `groups` rows (-1: there is no table, any entry will do)."""
    cdef int64_t i
    if index.shape[0] != m:
        raise ValueError(f"index ({index.shape[0]},): expected ({m},)")
    for i in range(m):
        if groups >= 0 and not 0 <= index[i] < groups:
            raise ValueError(f"index[{i}] is {index[i]}: the table has {groups} rows")
    return 0
