"""The function table and the thread pool. The only extension module that links csrc."""

import os

from libc.stdint cimport int64_t

import numpy as np

from h3core.kernels.csrc cimport (
    H3_CPU_ARM_BF16, H3_CPU_AVX2, H3_CPU_AVX512, H3_CPU_AVX512_BF16, H3_CPU_AVX512_VNNI, H3_CPU_DOTPROD, H3_CPU_I8MM,
    H3_CPU_NEON, H3_FORMATS, H3_GELU, H3_GELU_TANH, H3_SILU, h3_cpu_detect, h3_formats, h3_map, h3_pool_cores,
    h3_pool_create, h3_pool_destroy, h3_status, h3_table_init, h3_verify, h3_verify_report,
)
from h3core.kernels.status cimport check

# stored formats: name -> (number, values in a block, bytes of a block)
FORMATS = {h3_formats[i].name.decode(): (i, h3_formats[i].block_values, h3_formats[i].block_bytes) for i in range(H3_FORMATS)}

# what each level may use of what the processor has
_LEVELS = {
    "c": 0,
    "avx2": H3_CPU_AVX2,
    "avx512": H3_CPU_AVX2 | H3_CPU_AVX512 | H3_CPU_AVX512_VNNI | H3_CPU_AVX512_BF16,
    "neon": H3_CPU_NEON | H3_CPU_DOTPROD | H3_CPU_I8MM | H3_CPU_ARM_BF16,
}
_NEEDED = {"c": 0, "avx2": H3_CPU_AVX2, "avx512": H3_CPU_AVX2 | H3_CPU_AVX512, "neon": H3_CPU_NEON}
_FEATURES = {
    H3_CPU_AVX2: ("avx2", "fma"), H3_CPU_AVX512: ("avx512f",), H3_CPU_AVX512_VNNI: ("avx512_vnni",),
    H3_CPU_AVX512_BF16: ("avx512_bf16",), H3_CPU_NEON: ("neon",), H3_CPU_DOTPROD: ("dotprod",), H3_CPU_I8MM: ("i8mm",),
    H3_CPU_ARM_BF16: ("bf16",),
}
_NAMES = {"c": "portable C", "avx2": "AVX2", "avx512": "AVX-512", "neon": "NEON"}
_EXTRAS = {"avx512_vnni": "VNNI", "avx512_bf16": "BF16", "dotprod": "dotprod", "i8mm": "i8mm", "bf16": "bf16"}


cdef class Kernels:
    """One instruction set's functions and the worker threads that run them. Dropping the last reference joins the threads.

    isa: "c" | "avx2" | "avx512" | "neon"; None: the environment's H3_ISA, else the best this processor has.
    threads: worker threads, the caller's own included; None: the physical cores this process may use.
    raises: ValueError when the processor lacks the level, or threads < 1.
    """

    def __cinit__(self, isa=None, threads=None):
        cdef unsigned cpu = h3_cpu_detect()
        here = [level for level, needed in _NEEDED.items() if needed & cpu == needed]
        if isa is None:
            isa = os.environ.get("H3_ISA") or here[len(here) - 1]
        if isa not in _LEVELS:
            raise ValueError(f"H3_ISA is {isa!r}: the levels are {', '.join(_LEVELS)}; this processor has {', '.join(here)}.")
        if isa not in here:
            raise ValueError(f"This processor cannot run {isa}; it has {', '.join(here)}.")
        count = h3_pool_cores() if threads is None else int(threads)
        if not 1 <= count <= 1024:
            raise ValueError(f"threads must be between 1 and 1024, not {count}.")
        self.isa, self.threads, self.cpu = isa, count, cpu & <unsigned>_LEVELS[isa]
        self.features = tuple(word for bit, words in _FEATURES.items() if bit & self.cpu for word in words)
        self.name = " ".join([_NAMES[isa], *(_EXTRAS[word] for word in self.features if word in _EXTRAS)])
        h3_table_init(&self.table, self.cpu)
        self.pool = h3_pool_create(count)
        if self.pool == NULL:
            raise RuntimeError(f"could not start {count} threads")

    def __dealloc__(self):
        if self.pool != NULL:
            with nogil:
                h3_pool_destroy(self.pool)
            self.pool = NULL

    def __repr__(self):
        return f"Kernels({self.isa!r}, threads={self.threads})"

    def verify(self) -> list[str]:
        """Runs each slot on small inputs beside portable C; a slot that differs is replaced by C.

        returns: the names of the slots that were replaced; empty when all is well.
        """
        cdef h3_verify_report report
        cdef h3_status status
        with nogil:
            status = h3_verify(&self.table, &report)
        check(status, "verify")
        return [report.names[i].decode() for i in range(report.count)]

    def silu(self, x):
        """x * sigmoid(x), in place. x: float32, C-contiguous, any shape."""
        self._map(x, H3_SILU)

    def gelu(self, x):
        """x * Phi(x), the exact form with erf, in place. x: float32, C-contiguous, any shape."""
        self._map(x, H3_GELU)

    def gelu_tanh(self, x):
        """The tanh form of GELU, in place. x: float32, C-contiguous, any shape."""
        self._map(x, H3_GELU_TANH)

    cdef _map(self, x, h3_map map):
        cdef h3_status status
        cdef float[::1] flat
        if not isinstance(x, np.ndarray) or x.dtype != np.float32 or not x.flags.c_contiguous:
            raise ValueError("expected a C-contiguous float32 array: it is changed in place")
        if x.size == 0:
            return
        flat = x.reshape(-1)
        with nogil:
            status = self.table.map_all(&self.table, self.pool, &flat[0], flat.shape[0], map)
        check(status, "elementwise function")
