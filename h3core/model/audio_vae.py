"""The audio VAE: latents to waveform and back, mono; a stereo signal is two items of the batch.

Latents are (B, 32, A) float32, 40 a second; waveforms (B, samples) float32 in -1..1. Inside, activations are (time,
channels). Always float32: bfloat16 is audible. Knows no file, no thread. source: spec section 12; diffusers
AutoencoderKLMiniMaxH3Audio.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from h3core.kernels.attention import Attention
from h3core.kernels.convolution import Convolution, TransposedConvolution
from h3core.kernels.norms import antialiased_snake, layer_norm, snake
from h3core.kernels.rows import Rows
from h3core.kernels.table import Kernels
from h3core.model.vae_config import AudioVaeConfig

NORM_EPS = 1e-5
RESIDUAL_DILATIONS = (1, 3, 9)  # of the three residual units of an encoder stage

# How a weight-normalised convolution may be spelled: length of each filter, then its direction.
_SPELLINGS = ((".weight_g", ".weight_v"), (".parametrizations.weight.original0", ".parametrizations.weight.original1"))


def fold_weight_norm(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Every weight-normalised pair made one `.weight` = v g / |v|; everything else unchanged.

    The norm is over all axes but the first, which for a transposed convolution is the input channel.
    """
    folded = dict(weights)
    for length_name, direction_name in _SPELLINGS:
        for name in [name for name in folded if name.endswith(length_name)]:
            layer = name.removesuffix(length_name)
            g, v = folded.pop(name), folded.pop(layer + direction_name)
            norm = np.sqrt(np.square(v, dtype=np.float64).sum(axis=tuple(range(1, v.ndim)), keepdims=True))
            folded[f"{layer}.weight"] = v * (g / norm).astype(np.float32)
    return folded


class AudioVae:
    """Both directions of the audio VAE over one `Kernels`."""

    def __init__(self, config: Mapping[str, Any] | AudioVaeConfig, kernels: Kernels):
        self.config, self.kernels = AudioVaeConfig.of(config), kernels
        self.mean = np.array(self.config.latents_mean, np.float32).reshape(-1, 1)
        self.std = np.array(self.config.latents_std, np.float32).reshape(-1, 1)

    def normalise(self, latents: np.ndarray) -> np.ndarray:
        """VAE latents (B, 32, A) to what the transformer works on."""
        return (latents - self.mean) / self.std

    def denormalise(self, latents: np.ndarray) -> np.ndarray:
        """The transformer's latents (B, 32, A) to the VAE's."""
        return latents * self.std + self.mean

    def decode(self, latents: np.ndarray, weights: Mapping[str, Any], scratch: Mapping[str, np.ndarray]) -> np.ndarray:
        """Waveform (B, A * 800) float32 of latents (B, 32, A) in VAE space.

        weights: dec_in_proj and decoder, by full name, through fold_weight_norm.  scratch: arrays of
        memory.audio_decode_buffers.
        """
        layers = _Layers(weights, self.kernels, scratch)
        waveform = np.empty((len(latents), latents.shape[2] * self.config.hop), np.float32)
        for item, out in zip(latents, waveform, strict=True):
            self._decode_one(np.ascontiguousarray(item.T), layers, out)
        return waveform

    def _decode_one(self, latents: np.ndarray, layers: _Layers, out: np.ndarray) -> None:
        """latents (A, 32); out (samples,) OUT."""
        config = self.config
        x = layers.convolve("dec_in_proj", latents, "hidden")
        x = layers.convolve("decoder.conv_pre", x, "x")
        for stage, (rate, size) in enumerate(zip(config.decoder_rates, config.decoder_kernel_sizes, strict=True)):
            up = layers.upsample(f"decoder.ups.{stage}.0", x, "up", rate, (size - rate) // 2)
            x = layers.view("x", up.shape)
            blocks = len(config.resblock_kernel_sizes)
            for j, dilations in enumerate(config.resblock_dilation_sizes):
                h = layers.view("h", up.shape)
                np.copyto(h, up)
                self._amp_block(f"decoder.resblocks.{stage * blocks + j}", h, dilations, layers)
                if j:
                    x += h
                else:
                    np.copyto(x, h)
            x /= np.float32(blocks)
        x = layers.activate("decoder.activation_post", x, "act")
        x = layers.convolve("decoder.conv_post", x, "hidden")
        np.clip(x[:, 0], -1, 1, out=out)

    def _amp_block(self, name: str, h: np.ndarray, dilations: tuple[int, ...], layers: _Layers) -> None:
        """h (time, channels) IN OUT: h += conv(act(dilated conv(act(h)))) for each dilation."""
        for a, dilation in enumerate(dilations):
            y = layers.activate(f"{name}.activations.{2 * a}", h, "act")
            y = layers.convolve(f"{name}.convs1.{a}", y, "hidden", dilation=dilation)
            y = layers.activate(f"{name}.activations.{2 * a + 1}", y, "act")
            h += layers.convolve(f"{name}.convs2.{a}", y, "hidden")

    def encode(
        self, waveform: np.ndarray, weights: Mapping[str, Any], scratch: Mapping[str, np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mean and log standard deviation, (B, 32, A) float32 each, of a waveform (B, samples) float32.

        The end is padded with silence to a whole latent. weights: all the others,
        by full name, through fold_weight_norm.  scratch: arrays of memory.audio_encode_buffers.
        """
        layers = _Layers(weights, self.kernels, scratch)
        latents = -(-waveform.shape[1] // self.config.encoder_hop)
        both = np.empty((2, len(waveform), self.config.latent_channels, latents), np.float32)
        for i, samples in enumerate(waveform):
            padded = np.zeros((latents * self.config.encoder_hop, 1), np.float32)
            padded[: len(samples), 0] = samples
            trunk = self._encode_one(padded, layers)
            z = self._pre_block(trunk, weights, scratch)
            for out, name in zip(both[:, i], ("mean_proj", "logs_proj"), strict=True):
                np.copyto(out, layers.convolve(name, z, "hidden").T)
        return both[0], both[1]

    def _encode_one(self, samples: np.ndarray, layers: _Layers) -> np.ndarray:
        """samples (A * 800, 1) to (A, 2048), a view of the scratch."""
        x = layers.convolve("encoder.block.0", samples, "x")
        for stage, rate in enumerate(self.config.encoder_rates, 1):
            name = f"encoder.block.{stage}.block"
            for unit, dilation in enumerate(RESIDUAL_DILATIONS):
                y = layers.snake(f"{name}.{unit}.block.0", x, "act")
                y = layers.convolve(f"{name}.{unit}.block.1", y, "hidden", dilation=dilation)
                y = layers.snake(f"{name}.{unit}.block.2", y, "act")
                x += layers.convolve(f"{name}.{unit}.block.3", y, "hidden")
            y = layers.snake(f"{name}.3", x, "act")
            x = layers.convolve(f"{name}.4", y, "x", stride=rate, padding=-(-rate // 2))
        last = len(self.config.encoder_rates) + 1
        y = layers.snake(f"encoder.block.{last}", x, "act")
        return layers.convolve(f"encoder.block.{last + 1}", y, "x")

    def _pre_block(self, x: np.ndarray, weights: Mapping[str, Any], scratch: Mapping[str, np.ndarray]) -> np.ndarray:
        """Trunk x (A, 2048) to z (A, 32): y = proj(LN(x)) + attention(LN(x)), z = y + mlp(LN(y))."""
        inside = {name.removeprefix("pre_block."): weights[name] for name in weights if name.startswith("pre_block.")}
        length, channels = len(x), self.config.latent_channels

        def packed(values: np.ndarray, norm: str | None = None) -> Rows:
            rows = Rows(scratch["rows"], values.shape[1], "f32", self.kernels)
            if norm is None:
                rows.pack(values)
            else:
                weight, bias = inside[f"{norm}.weight"], inside[f"{norm}.bias"]
                rows.pack(values, norm="layer", weight=weight, bias=bias, eps=NORM_EPS)
            return rows

        y = np.empty((length, channels), np.float32)
        inside["proj.weight"].matmul(packed(x, "norm3"), y, bias=inside["proj.bias"])
        heads = self._average_heads(packed(x, "norm1"), length, inside, scratch)
        inside["attn.proj.weight"].add(packed(heads), y, bias=inside["attn.proj.bias"])
        normed = np.empty_like(y)
        layer_norm(self.kernels, y, normed, inside["norm2.weight"], inside["norm2.bias"], NORM_EPS)
        rows = packed(normed, "mlp.norm")  # a second norm right after the first: so the release does it
        w0, w1, w2 = (inside[f"mlp.w{i}.weight"] for i in range(3))
        hidden, gate = (np.empty((length, w0.n), np.float32) for _ in range(2))
        w0.matmul(rows, hidden, bias=inside["mlp.w0.bias"])
        w1.matmul(rows, gate, bias=inside["mlp.w1.bias"])
        self.kernels.gelu_tanh(hidden)
        hidden *= gate
        w2.add(packed(hidden), y, bias=inside["mlp.w2.bias"])
        return y

    def _average_heads(
        self, rows: Rows, length: int, inside: Mapping[str, Any], scratch: Mapping[str, np.ndarray]
    ) -> np.ndarray:
        """Causal attention, its heads averaged, then neighbouring channels averaged down to (A, 32)."""
        width, heads = self.config.latent_dim, self.config.num_attention_heads
        q, kv = (scratch[name][: length * width].reshape(length, width) for name in ("act", "hidden"))
        qkv = inside["attn.qkv.weight"]
        attention = Attention(scratch["attention"], length, heads, heads, width // heads, "f32", self.kernels)
        qkv.rows(width, width).matmul(rows, kv, bias=inside["attn.zero_k_bias"])
        attention.put_k(kv, 0)
        qkv.rows(2 * width, width).matmul(rows, kv, bias=inside["attn.v_bias"])
        attention.put_v(kv, 0)
        qkv.rows(0, width).matmul(rows, q, bias=inside["attn.q_bias"])
        attention.prepare_q(q)
        mixed = kv  # keys and values are packed by now, so their buffer takes the result
        attention.run(q, mixed, causal=True)
        averaged = mixed.reshape(length, heads, width // heads).mean(axis=1)
        return averaged.reshape(length, self.config.latent_channels, -1).mean(axis=2)


class _Layers:
    """Convolutions and activations by their checkpoint name; results go to named scratch arrays."""

    def __init__(self, weights: Mapping[str, Any], kernels: Kernels, scratch: Mapping[str, np.ndarray]):
        self.weights, self.kernels, self.scratch = weights, kernels, scratch
        self.made: dict[str, Convolution | TransposedConvolution] = {}  # packed once, used for every item of the batch

    def view(self, name: str, shape: tuple[int, int]) -> np.ndarray:
        return self.scratch[name][: shape[0] * shape[1]].reshape(shape)

    def convolve(
        self, layer: str, x: np.ndarray, into: str, stride: int = 1, dilation: int = 1, padding: int | None = None
    ) -> np.ndarray:
        """x (time, channels) to (time', channels'), zero-padded; without `padding` the length stays."""
        weight = self.weights[f"{layer}.weight"]
        if layer not in self.made:
            bias = self.weights.get(f"{layer}.bias")
            steps = {"stride": (stride, 1, 1), "dilation": (dilation, 1, 1)}
            self.made[layer] = Convolution(weight, bias, self.kernels, **steps)
        if padding is None:
            padding = dilation * (weight.shape[2] - 1) // 2
        pad = ((padding, padding), (0, 0), (0, 0))
        length, _, _ = self.made[layer].output_shape(len(x), 1, 1, pad)
        y = self.view(into, (length, weight.shape[0]))
        self.made[layer].run(x.reshape(len(x), 1, 1, -1), y.reshape(length, 1, 1, -1), pad)
        return y

    def upsample(self, layer: str, x: np.ndarray, into: str, rate: int, padding: int) -> np.ndarray:
        """x (time, channels) to (time * rate, channels')."""
        weight = self.weights[f"{layer}.weight"]
        if layer not in self.made:
            bias = self.weights[f"{layer}.bias"]
            self.made[layer] = TransposedConvolution(weight, bias, self.kernels, rate, padding)
        y = self.view(into, (len(x) * rate, weight.shape[1]))
        self.made[layer].run(x, y)
        return y

    def snake(self, layer: str, x: np.ndarray, into: str) -> np.ndarray:
        """x + sin^2(alpha x) / alpha, per channel."""
        y = self.view(into, x.shape)
        snake(self.kernels, x, y, self.weights[f"{layer}.alpha"].reshape(-1))
        return y

    def activate(self, layer: str, x: np.ndarray, into: str) -> np.ndarray:
        """The decoder's snake at twice the rate, so that what it adds above the band is filtered away."""
        y = self.view(into, x.shape)
        alpha, beta = self.weights[f"{layer}.act.alpha"], self.weights[f"{layer}.act.beta"]
        up = self.weights[f"{layer}.upsample.filter"].reshape(-1)
        down = self.weights[f"{layer}.downsample.lowpass.filter"].reshape(-1)
        antialiased_snake(self.kernels, x, y, alpha, beta, up, down)
        return y
