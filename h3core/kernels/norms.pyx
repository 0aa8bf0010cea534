"""Norms that stand alone and the audio codec's activations. y may be x, except for antialiased_snake."""

import numpy as np

from libc.stdint cimport int64_t

from h3core.kernels.csrc cimport h3_antialiased, h3_group_norm_job, h3_status
from h3core.kernels.status cimport check
from h3core.kernels.table cimport Kernels


cdef const float *_channels(const float[::1] values, int64_t count, str name) except? NULL:
    """Address of `count` values, NULL for None."""
    if values is None:
        return NULL
    if values.shape[0] != count:
        raise ValueError(f"{name} ({values.shape[0]},) for {count} channels")
    return &values[0]


cdef _group_norm(Kernels kernels, const float[:, :, :, ::1] x, float[:, :, :, ::1] y, int64_t groups, const float[::1] weight,
                 const float[::1] bias, float eps, bint silu):
    cdef h3_group_norm_job job
    cdef h3_status status
    if x.shape[0] != y.shape[0] or x.shape[1] != y.shape[1] or x.shape[2] != y.shape[2] or x.shape[3] != y.shape[3]:
        raise ValueError("x and y differ in shape")
    if groups < 1 or x.shape[3] < 1 or x.shape[3] % groups:
        raise ValueError(f"{x.shape[3]} channels in {groups} groups")
    job.frames, job.positions, job.channels, job.groups = x.shape[0], x.shape[1] * x.shape[2], x.shape[3], groups
    job.weight, job.bias = _channels(weight, x.shape[3], "weight"), _channels(bias, x.shape[3], "bias")
    job.eps, job.silu = eps, silu
    if job.frames == 0 or job.positions == 0:
        return
    with nogil:
        status = kernels.table.group_norm(&kernels.table, kernels.pool, &y[0, 0, 0, 0], &x[0, 0, 0, 0], &job)
    check(status, "group norm")


def group_norm(Kernels kernels not None, const float[:, :, :, ::1] x not None, float[:, :, :, ::1] y not None, int64_t groups,
               const float[::1] weight not None, const float[::1] bias not None, float eps):
    """Group norm with the statistics of one frame. x: (T, H, W, C) float32. y: the same, OUT. raises: ValueError."""
    _group_norm(kernels, x, y, groups, weight, bias, eps, False)


def group_norm_silu(Kernels kernels not None, const float[:, :, :, ::1] x not None, float[:, :, :, ::1] y not None,
                    int64_t groups, const float[::1] weight not None, const float[::1] bias not None, float eps):
    """silu(group_norm(x)), in one pass over y."""
    _group_norm(kernels, x, y, groups, weight, bias, eps, True)


cdef _row_norm(Kernels kernels, const float[:, ::1] x, float[:, ::1] y, const float[::1] weight, const float[::1] bias, float eps,
               bint layer):
    cdef const float *weights
    cdef const float *biases
    cdef h3_status status
    cdef int64_t m = x.shape[0], k = x.shape[1]
    if y.shape[0] != m or y.shape[1] != k or k < 1:
        raise ValueError(f"x ({m}, {k}), y ({y.shape[0]}, {y.shape[1]})")
    weights, biases = _channels(weight, k, "weight"), _channels(bias, k, "bias")
    if m == 0:
        return
    with nogil:
        status = kernels.table.row_norm(kernels.pool, &y[0, 0], &x[0, 0], m, k, weights, biases, eps, layer)
    check(status, "norm")


def rms_norm(Kernels kernels not None, const float[:, ::1] x not None, float[:, ::1] y not None, const float[::1] weight, float eps):
    """y = x / sqrt(mean(x^2) + eps) * weight. x: (m, k) float32. y: the same, OUT. weight: (k,) or None. raises: ValueError."""
    _row_norm(kernels, x, y, weight, None, eps, False)


def layer_norm(Kernels kernels not None, const float[:, ::1] x not None, float[:, ::1] y not None, const float[::1] weight,
               const float[::1] bias, float eps):
    """y = (x - mean) / sqrt(variance + eps) * weight + bias; biased variance. Shapes as in rms_norm. raises: ValueError."""
    _row_norm(kernels, x, y, weight, bias, eps, True)


def snake(Kernels kernels not None, const float[:, ::1] x not None, float[:, ::1] y not None, const float[::1] alpha not None):
    """y = x + sin(alpha x)^2 / (alpha + 1e-9). x: (T, C) float32. y: the same, OUT. alpha: (C,). raises: ValueError."""
    cdef h3_status status
    cdef const float *alphas
    cdef const float[::1] inverse = np.float32(1) / (np.asarray(alpha) + np.float32(1e-9))
    cdef int64_t times = x.shape[0], channels = x.shape[1]
    if y.shape[0] != times or y.shape[1] != channels or channels < 1:
        raise ValueError(f"x ({times}, {channels}), y ({y.shape[0]}, {y.shape[1]})")
    alphas = _channels(alpha, channels, "alpha")
    if times == 0:
        return
    with nogil:
        status = kernels.table.snake_all(&kernels.table, kernels.pool, &y[0, 0], &x[0, 0], times, channels, alphas, &inverse[0])
    check(status, "snake")


def antialiased_snake(Kernels kernels not None, const float[:, ::1] x not None, float[:, ::1] y not None,
                      const float[::1] alpha not None, const float[::1] beta not None, up_filter not None, down_filter not None):
    """SnakeBeta at twice the rate, between two resampling filters.

    x: (T, C) float32.   y: the same, OUT; shares no memory with x.   alpha, beta: (C,) in log scale.
    up_filter, down_filter: (12,).   raises: ValueError.   source: BigVGAN's Activation1d as MiniMax-H3's audio codec has it.
    """
    cdef h3_antialiased job
    cdef h3_status status
    cdef const float[::1] rate = np.exp(np.asarray(alpha, np.float32))
    cdef const float[::1] inverse = np.float32(1) / (np.exp(np.asarray(beta, np.float32)) + np.float32(1e-9))
    cdef const float[::1] up = np.asarray(up_filter, np.float32).reshape(-1) * np.float32(2)     # zeros stuffed in halve it
    cdef const float[::1] down = np.ascontiguousarray(down_filter, np.float32).reshape(-1)
    job.times, job.channels = x.shape[0], x.shape[1]
    if y.shape[0] != job.times or y.shape[1] != job.channels or job.channels < 1:
        raise ValueError(f"x ({job.times}, {job.channels}), y ({y.shape[0]}, {y.shape[1]})")
    if up.shape[0] != 12 or down.shape[0] != 12:
        raise ValueError(f"filters of {up.shape[0]} and {down.shape[0]} taps, not 12")
    job.alpha, job.inverse = _channels(rate, job.channels, "alpha"), _channels(inverse, job.channels, "beta")
    job.up, job.down = &up[0], &down[0]
    if job.times == 0:
        return
    with nogil:
        status = kernels.table.antialiased_all(&kernels.table, kernels.pool, &y[0, 0], &x[0, 0], &job)
    check(status, "anti-aliased snake")
