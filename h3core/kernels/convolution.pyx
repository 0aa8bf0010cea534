"""Convolutions of the two VAEs: channel-last, float32, weights packed once."""

import numpy as np

from libc.stdint cimport int64_t

from h3core.kernels.csrc cimport h3_conv, h3_conv_job, h3_conv_weight, h3_status
from h3core.kernels.status cimport check
from h3core.kernels.table cimport Kernels


cdef int64_t _panels(int64_t out) noexcept:
    return (out + 31) // 32


cdef class Convolution:
    """Convolution over time, height, width; a one-dimensional one lies along time.

    weight: (out, in, kt, kh, kw) or (out, in, k) float32, copied.   bias: (out,) float32 or None.
    stride, dilation: per axis.   raises: ValueError when the shapes disagree.
    """

    cdef h3_conv conv
    cdef Kernels kernels
    cdef float[::1] packed
    cdef object bias

    def __cinit__(self, weight not None, bias, Kernels kernels not None, stride=(1, 1, 1), dilation=(1, 1, 1)):
        cdef h3_conv_weight source
        cdef h3_status status
        cdef const float[::1] flat, bias_view
        if weight.ndim == 3:
            weight = weight[:, :, :, None, None]
        if weight.ndim != 5 or 0 in weight.shape or len(stride) != 3 or len(dilation) != 3 or min(*stride, *dilation) < 1:
            raise ValueError(f"convolution weight {weight.shape}, stride {stride}, dilation {dilation}")
        out, inside, kernel = weight.shape[0], weight.shape[1], weight.shape[2:]
        if bias is not None and bias.shape != (out,):
            raise ValueError(f"bias {bias.shape} for {out} channels")
        self.kernels = kernels
        self.conv.c_in, self.conv.out = inside, out
        for axis in range(3):
            self.conv.kernel[axis], self.conv.stride[axis], self.conv.dilation[axis] = kernel[axis], stride[axis], dilation[axis]
        taps = int(np.prod(kernel))
        size = _panels(self.conv.out) * taps * inside * 32
        self.packed = np.zeros(size + inside, np.float32)      # the last `in` values stay zero: what lies outside
        self.bias = None if bias is None else np.array(bias, np.float32)
        flat = np.ascontiguousarray(weight, np.float32).reshape(-1)
        source.weight, source.out_stride, source.in_stride, source.first, source.step = &flat[0], inside * taps, taps, 0, 1
        self.conv.panels, self.conv.zeros = &self.packed[0], &self.packed[size]
        self.conv.bias = NULL
        if self.bias is not None:
            bias_view = self.bias
            self.conv.bias = &bias_view[0]
        with nogil:
            status = self.kernels.table.conv_pack(&self.kernels.table, self.kernels.pool, &self.packed[0], &self.conv, &source)
        check(status, "convolution weights")

    def output_shape(self, int64_t t, int64_t h, int64_t w, pad=((0, 0), (0, 0), (0, 0))):
        """(T', H', W') for an input of (t, h, w) padded by pad = ((before, after), ...) per axis."""
        sizes = []
        for axis, size in enumerate((t, h, w)):
            span = (self.conv.kernel[axis] - 1) * self.conv.dilation[axis] + 1
            sizes.append((size + pad[axis][0] + pad[axis][1] - span) // self.conv.stride[axis] + 1)
        return tuple(sizes)

    def run(self, const float[:, :, :, ::1] x not None, float[:, :, :, ::1] y not None, pad=((0, 0), (0, 0), (0, 0)),
            bint reflect=False):
        """y = convolution of x, padded with zeros in time, with zeros or by reflection in space.

        x: (T, H, W, in) float32.   y: output_shape + (out,), OUT; shares no memory with x.   raises: ValueError.
        """
        cdef h3_conv_job job
        cdef h3_status status
        if x.shape[3] != self.conv.c_in or y.shape[3] != self.conv.out or min(min(pair) for pair in pad) < 0:
            raise ValueError(f"{x.shape[3]} -> {y.shape[3]} channels, pad {pad}, for a convolution {self.conv.c_in} -> {self.conv.out}")
        want = self.output_shape(x.shape[0], x.shape[1], x.shape[2], pad)
        if (y.shape[0], y.shape[1], y.shape[2]) != want:
            raise ValueError(f"y {y.shape[0], y.shape[1], y.shape[2]}, the convolution gives {want}")
        if min(want) < 1 or min(x.shape[0], x.shape[1], x.shape[2]) < 1:
            raise ValueError(f"x {x.shape[0], x.shape[1], x.shape[2]} is smaller than the kernel")
        for axis in range(3):
            job.x_size[axis], job.y_size[axis], job.pad[axis] = x.shape[axis], y.shape[axis], pad[axis][0]
            if reflect and axis and max(pad[axis]) >= x.shape[axis]:
                raise ValueError(f"reflecting {max(pad[axis])} of {x.shape[axis]} pixels")
        job.x, job.y, job.y_stride, job.reflect = &x[0, 0, 0, 0], &y[0, 0, 0, 0], self.conv.out, reflect
        with nogil:
            status = self.kernels.table.convolve(&self.kernels.table, self.kernels.pool, &self.conv, &job)
        check(status, "convolution")


cdef class TransposedConvolution:
    """Transposed convolution along time, as `stride` ordinary convolutions whose outputs interleave.

    weight: (in, out, k) float32, copied.   bias: (out,) float32 or None.
    y[t * stride + j - padding] gets x[t] . weight[:, :, j].   raises: ValueError when the shapes disagree.
    """

    cdef Kernels kernels
    cdef list packed
    cdef object bias
    cdef int64_t c_in, out, length, stride, padding

    def __cinit__(self, weight not None, bias, Kernels kernels not None, int64_t stride, int64_t padding):
        cdef h3_conv conv
        cdef h3_conv_weight source
        cdef h3_status status
        cdef const float[::1] flat
        cdef float[::1] packed
        if weight.ndim != 3 or 0 in weight.shape or stride < 1 or padding < 0:
            raise ValueError(f"transposed convolution weight {weight.shape}, stride {stride}, padding {padding}")
        self.c_in, self.out, self.length = weight.shape[0], weight.shape[1], weight.shape[2]
        self.stride, self.padding, self.kernels, self.packed = stride, padding, kernels, []
        if bias is not None and bias.shape != (self.out,):
            raise ValueError(f"bias {bias.shape} for {self.out} channels")
        self.bias = None if bias is None else np.array(bias, np.float32)
        flat = np.ascontiguousarray(weight, np.float32).reshape(-1)
        for phase in range(stride):
            taps = self._taps(phase)
            size = _panels(self.out) * taps * self.c_in * 32
            packed = np.zeros(size + self.c_in, np.float32)
            self._describe(&conv, packed, taps)
            # the latest tap first: an ordinary convolution reads forwards
            source.weight, source.out_stride, source.in_stride = &flat[0], self.length, self.out * self.length
            source.first, source.step = phase + (taps - 1) * stride, -stride
            with nogil:
                status = kernels.table.conv_pack(&kernels.table, kernels.pool, &packed[0], &conv, &source)
            check(status, "convolution weights")
            self.packed.append(packed)

    cdef int64_t _taps(self, int64_t phase):
        return (self.length - phase + self.stride - 1) // self.stride if phase < self.length else 0

    cdef int _describe(self, h3_conv *conv, float[::1] packed, int64_t taps) except -1:
        cdef const float[::1] bias
        conv.c_in, conv.out = self.c_in, self.out
        for axis in range(3):
            conv.kernel[axis], conv.stride[axis], conv.dilation[axis] = 1, 1, 1
        conv.kernel[0] = taps
        conv.panels, conv.zeros, conv.bias = &packed[0], &packed[packed.shape[0] - self.c_in], NULL
        if self.bias is not None:
            bias = self.bias
            conv.bias = &bias[0]
        return 0

    def output_length(self, int64_t t):
        """Outputs of t inputs: (t - 1) * stride - 2 * padding + k."""
        return (t - 1) * self.stride - 2 * self.padding + self.length

    def run(self, const float[:, ::1] x not None, float[:, ::1] y not None):
        """x: (T, in) float32.   y: (output_length(T), out), OUT; shares no memory with x.   raises: ValueError."""
        cdef h3_conv conv
        cdef h3_conv_job job
        cdef h3_status status
        cdef int64_t phase, first, count, taps, total = y.shape[0]
        if x.shape[1] != self.c_in or y.shape[1] != self.out or x.shape[0] < 1 or total != self.output_length(x.shape[0]):
            raise ValueError(f"x ({x.shape[0]}, {x.shape[1]}), y ({total}, {y.shape[1]}) for a transposed convolution "
                             f"{self.c_in} -> {self.out}, length {self.output_length(x.shape[0])}")
        for phase in range(self.stride):
            # output p = q * stride + phase - padding; its taps read x[q], x[q - 1], ...
            first = (self.padding - phase + self.stride - 1) // self.stride if phase < self.padding else 0
            start = first * self.stride + phase - self.padding
            count = (total - start + self.stride - 1) // self.stride if start < total else 0
            if count == 0:
                continue
            taps = self._taps(phase)
            self._describe(&conv, self.packed[phase], taps)
            job.x, job.y, job.y_stride, job.reflect = &x[0, 0], &y[start, 0], self.stride * self.out, False
            for axis in range(3):
                job.x_size[axis], job.y_size[axis], job.pad[axis] = 1, 1, 0
            job.x_size[0], job.y_size[0], job.pad[0] = x.shape[0], count, taps - 1 - first
            with nogil:
                status = self.kernels.table.convolve(&self.kernels.table, self.kernels.pool, &conv, &job)
            check(status, "transposed convolution")
