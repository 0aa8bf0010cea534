"""The denoising step and its relatives, in float32 in the reference's order of operations."""

from libc.stdint cimport int64_t

from h3core.kernels.csrc cimport h3_status
from h3core.kernels.status cimport check
from h3core.kernels.table cimport Kernels


cdef class Sampler:
    """Elementwise arithmetic between two evaluations of the transformer. All arrays (m, n) float32, one shape."""

    cdef Kernels kernels

    def __cinit__(self, Kernels kernels not None):
        self.kernels = kernels

    def step(self, float[:, ::1] x not None, const float[:, ::1] velocity not None, float t, float sigma, float sigma_next,
             float[:, ::1] estimate=None):
        """One step from sigma to sigma_next, in place on x: x0 = x + (1 - t) v, r = sigma_next / sigma, x = r x + (1 - r) x0.

        t: the float32 time the transformer saw.   estimate: x0, OUT, or None.   sigma_next 0 gives x0 itself.
        raises: ValueError when the shapes disagree or sigma is not above sigma_next >= 0.
        """
        cdef h3_status status
        cdef float *clean = NULL
        cdef int64_t n = x.shape[0] * x.shape[1]
        if velocity.shape[0] != x.shape[0] or velocity.shape[1] != x.shape[1]:
            raise ValueError(f"x ({x.shape[0]}, {x.shape[1]}), velocity ({velocity.shape[0]}, {velocity.shape[1]})")
        if estimate is not None and (estimate.shape[0] != x.shape[0] or estimate.shape[1] != x.shape[1]):
            raise ValueError(f"x ({x.shape[0]}, {x.shape[1]}), estimate ({estimate.shape[0]}, {estimate.shape[1]})")
        if not sigma > sigma_next >= 0:
            raise ValueError(f"a step from sigma {sigma} to {sigma_next}")
        if n == 0:
            return
        if estimate is not None:
            clean = &estimate[0, 0]
        with nogil:
            status = self.kernels.table.step(self.kernels.pool, &x[0, 0], &velocity[0, 0], clean, n, t, sigma, sigma_next)
        check(status, "step")

    def guide(self, float[:, ::1] velocity not None, const float[:, ::1] unconditional not None, float scale):
        """velocity = unconditional + scale * (velocity - unconditional), in place. raises: ValueError."""
        cdef h3_status status
        cdef int64_t n = velocity.shape[0] * velocity.shape[1]
        if unconditional.shape[0] != velocity.shape[0] or unconditional.shape[1] != velocity.shape[1]:
            raise ValueError(f"velocity ({velocity.shape[0]}, {velocity.shape[1]}), unconditional "
                             f"({unconditional.shape[0]}, {unconditional.shape[1]})")
        if n == 0:
            return
        with nogil:
            status = self.kernels.table.guide(self.kernels.pool, &velocity[0, 0], &unconditional[0, 0], n, scale)
        check(status, "guide")

    def noised(self, const float[:, ::1] clean not None, const float[:, ::1] noise not None, float t, float[:, ::1] out not None):
        """out = t * clean + (1 - t) * noise. out: OUT, may be clean or noise. raises: ValueError."""
        cdef h3_status status
        cdef int64_t n = out.shape[0] * out.shape[1]
        if clean.shape[0] != out.shape[0] or clean.shape[1] != out.shape[1] or noise.shape[0] != out.shape[0] or noise.shape[1] != out.shape[1]:
            raise ValueError(f"clean ({clean.shape[0]}, {clean.shape[1]}), noise ({noise.shape[0]}, {noise.shape[1]}), "
                             f"out ({out.shape[0]}, {out.shape[1]})")
        if n == 0:
            return
        with nogil:
            status = self.kernels.table.noised(self.kernels.pool, &out[0, 0], &clean[0, 0], &noise[0, 0], n, t)
        check(status, "noised")
