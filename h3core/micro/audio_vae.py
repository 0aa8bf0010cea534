"""The audio VAE: latents that are written down, an encoder that learns to compute them, a decoder that learns to sing them.

`band_latents` defines the 32 channels: log loudness in 32 bands, 40 times a second, each from its own 800 samples. That makes the two halves and the
transformer independent: the encoder regresses the bands (mean squared error), the decoder is a vocoder trained on the bands
of drawn sounds (multi-resolution spectra), and neither waits for the other.

The module is diffusers' AutoencoderKLMiniMaxH3Audio with the release's strides (hop 800) and small widths. Mono: the two
sides of a soundtrack are two items of a batch.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLMiniMaxH3Audio

from h3core.micro import sound, training, world

CONFIG = dict(
    encoder_dim=8,
    encoder_rates=(2, 4, 4, 5, 5),
    latent_dim=256,
    latent_channels=32,
    num_attention_heads=4,
    decoder_dim=256,
    decoder_rates=(5, 5, 2, 2, 2, 2, 2),
    decoder_kernel_sizes=(9, 9, 4, 4, 4, 4, 4),
    resblock_kernel_sizes=(3, 7, 11),
    resblock_dilation_sizes=((1,), (3,), (5,)),  # a third of the release's convolutions: their number, not their size, is the cost
    sampling_rate=sound.RATE,
)
SEGMENT = 10  # latents of one training item
PEAK_LR = 1e-3
SPECTRA = (256, 1024, 2048)
LATENT_NOISE = 0.1
CENTRES_HZ = np.concatenate([np.arange(120, 761, 40), np.geomspace(840, 7200, 15)])


def build(mean: list[float] | None = None, std: list[float] | None = None) -> AutoencoderKLMiniMaxH3Audio:
    torch.manual_seed(2)
    model = AutoencoderKLMiniMaxH3Audio(**CONFIG, latents_mean=mean or [0.0] * 32, latents_std=std or [1.0] * 32)
    with torch.no_grad():
        model.logs_proj.weight.zero_()
        model.logs_proj.bias.fill_(-4.0)  # the release never reads it
    return model


def _bands() -> np.ndarray:
    """Triangular bands over the bins of one latent's spectrum, (32, 401)."""
    edges = np.concatenate([[80.0], CENTRES_HZ, [8400.0]])
    hz = np.arange(sound.HOP // 2 + 1) * sound.RATE / sound.HOP
    rise = (hz - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    fall = (edges[2:, None] - hz) / (edges[2:] - edges[1:-1])[:, None]
    return np.clip(np.minimum(rise, fall), 0, 1)


def band_latents(track: np.ndarray) -> np.ndarray:
    """Log loudness in 32 bands per latent, about -2..2; track (channels, samples) -> (channels, samples / 800, 32) float32."""
    frames = track.reshape(len(track), -1, sound.HOP)
    power = (np.abs(np.fft.rfft(frames, axis=-1)) * 2 / sound.HOP) ** 2
    return (np.log10(np.sqrt(power @ _bands().T) + 1e-3) + 2).astype(np.float32)


def spectral_loss(got: torch.Tensor, want: torch.Tensor) -> torch.Tensor:
    """Mean over resolutions of the distances of magnitudes and of their logarithms; got, want (n, samples)."""
    total = got.new_zeros(())
    for size in SPECTRA:
        window = torch.hann_window(size)
        a, b = (
            torch.stft(x, size, size // 4, window=window, return_complex=True).abs().clamp_min(1e-4) / size**0.5
            for x in (got, want)
        )
        total = total + 4 * (a - b).abs().mean() + 0.2 * ((a + 3e-3).log() - (b + 3e-3).log()).abs().mean()
    return total / len(SPECTRA)


def random_segment(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """One side of a random part of a random shot's sound, (SEGMENT * 800,), and its latents (SEGMENT, 32)."""
    shot = world.random_shot(rng, int(rng.choice((22, 39, 56))))
    track = sound.shot_sound(shot, sound.latents(shot.frames) * sound.HOP)[int(rng.integers(2))][None]
    start = int(rng.integers(track.shape[1] // sound.HOP - SEGMENT + 1))
    piece = track[0, start * sound.HOP : (start + SEGMENT) * sound.HOP]
    return piece, band_latents(track)[0, start : start + SEGMENT]


def train(work: Path, minutes: float, end: float = 25, batch: int = 4, log=print) -> None:
    """Train both halves for some minutes of a plan; the encoder takes every third step, as it has the easier task."""
    path, clock = work / "audio_vae.pt", training.Clock(minutes)
    model = build()
    average = training.Average(model, 0.995)
    found = training.optimisers(model, PEAK_LR, weight_decay=0.0)
    state = training.load_state(path)
    if state:
        model.load_state_dict(state["model"])
        average.values, average.updates = state["average"], state["updates"]
        training.load_optimisers(found, state["optimisers"])
        clock.resume(state["clock"])
    rng = np.random.default_rng(3000 + clock.step)

    def save() -> None:
        values = {"model": model.state_dict(), "average": average.values, "updates": average.updates}
        training.save_state(path, {**values, "optimisers": [o.state_dict() for o in found], "clock": clock.state()})

    losses: dict[str, list[float]] = {"encoder": [0.0], "decoder": [0.0]}
    for step in clock.running():
        training.set_lr(found, training.warmed_lr(PEAK_LR, step, clock.minutes, end, warmup=50))
        pairs = [random_segment(rng) for _ in range(batch)]
        x, z = (torch.from_numpy(np.stack(values)) for values in zip(*pairs, strict=True))
        if step % 3 == 2:
            loss = F.mse_loss(model.encode(x[:, None]).latent_dist.mean.transpose(1, 2), z)
            losses["encoder"].append(float(loss.detach()))
        else:
            noisy = z + LATENT_NOISE * torch.rand(batch, 1, 1) * torch.randn_like(z)
            got = model.decode(noisy.transpose(1, 2)).sample[:, 0]
            loss = spectral_loss(got, x) + 2 * (got - x).abs().mean()  # the phase is fixed too, see sound.py
            losses["decoder"].append(float(loss.detach()))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser in found:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        average.update(model)
        if step % 50 == 0:
            means = " ".join(f"{name} {np.mean(values[-30:]):.4f}" for name, values in losses.items())
            log(f"audio-vae step {step} {clock.minutes:.1f} min {means}")
        if clock.checkpoint_due():
            save()
    save()


def load(work: Path) -> AutoencoderKLMiniMaxH3Audio:
    """The averaged weights of the checkpoint, for inference."""
    state = training.load_state(work / "audio_vae.pt")
    if state is None:
        raise FileNotFoundError(f"{work / 'audio_vae.pt'}: train the audio VAE first")
    model = build()
    model.load_state_dict({**model.state_dict(), **state["average"]})
    return model.eval()
