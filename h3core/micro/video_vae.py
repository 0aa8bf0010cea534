"""The video VAE: an encoder whose weights are written down, and a ViT decoder trained on drawn clips.

The module is diffusers' AutoencoderKLMiniMaxH3 with the release's geometry (24 channels, 16x in space, 4x in time). A world
of plain colours needs no learned code: `set_area_encoder` makes the encoder an exact linear map. Latent frame k holds
pixel frames 4k-2 and 4k of its clip, and of each the mean colour of the four 8x8 quarters of every 16x16 patch: 2 x 3 x 4 =
24 channels. The residual branches are there, with zero last weights, for a later joint training to open.

A clip is 22 frames = 7 latent frames, exactly what one decoder chunk sees; latents are (batch, 24, 7, h/16, w/16).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLMiniMaxH3
from torch import nn

from h3core.micro import training, world

CLIP, FRAMES = 17, 22
KEPT = [*range(3, 20), *range(23, 28)]  # of the 28 raw frames of one chunk, those that become film frames
PIXEL_MEAN = torch.tensor((0.485, 0.456, 0.406)).view(1, 3, 1, 1, 1)
PIXEL_STD = torch.tensor((0.229, 0.224, 0.225)).view(1, 3, 1, 1, 1)
CONFIG = dict(
    block_out_channels=(8, 16, 32, 64, 96, 128),
    layers_per_block=1,
    norm_num_groups=4,
    decoder_num_layers=4,
    decoder_num_attention_heads=4,
    decoder_attention_head_dim=64,
    decoder_num_register_tokens=4,
)
PEAK_LR = 2e-3
LATENT_NOISE = 0.06  # the decoder learns to forgive what the transformer gets slightly wrong
CARRIER = 10.0  # constant channels that dominate every GroupNorm group, so that the last norm is a plain scale
LOGVAR = -9.0


def build(mean: list[float] | None = None, std: list[float] | None = None) -> AutoencoderKLMiniMaxH3:
    torch.manual_seed(0)
    model = AutoencoderKLMiniMaxH3(**CONFIG, latents_mean=mean or [0.0] * 24, latents_std=std or [1.0] * 24)
    for name, p in model.named_parameters():
        if name.endswith(("scale1", "scale2")):
            nn.init.constant_(p, 0.3)
        elif name.endswith("register_tokens"):
            nn.init.normal_(p, std=0.5)
    set_area_encoder(model)
    return model


@torch.no_grad()
def set_area_encoder(model: AutoencoderKLMiniMaxH3) -> None:
    """Write the weights of the area-averaging encoder (see the head of this file) into model.encoder and quant_conv."""
    encoder, now = model.encoder, 2  # kernel index `now` is the current frame, 1 the one before

    def clear(layer: nn.Conv3d) -> nn.Conv3d:
        layer.weight.zero_()
        layer.bias.zero_()
        return layer

    clear(encoder.conv_in)
    for c in range(3):
        encoder.conv_in.weight[c, c, now, 1, 1] = 1
    channels = 3
    for level, block in enumerate(encoder.down_blocks):
        for res in block.resnets:
            clear(res.conv2)
            if res.conv_shortcut is not None:
                clear(res.conv_shortcut)
                for c in range(channels):
                    res.conv_shortcut.weight[c, c] = 1
        if block.downsamplers is None:
            continue
        down = clear(block.downsamplers[0].conv)
        if level == 2:  # stride 2 in time: keep both of the two frames that meet here
            for c in range(3):
                down.weight[c, c, now, :2, :2] = 0.25
                down.weight[3 + c, c, now - 1, :2, :2] = 0.25
            channels = 6
        elif level == 3:  # stride 2 in space: keep the four quarters apart
            for quarter in range(4):
                for c in range(6):
                    down.weight[quarter * 6 + c, c, now, quarter // 2, quarter % 2] = 1
            channels = 24
        else:
            for c in range(3):
                down.weight[c, c, now, :2, :2] = 0.25
    # The last level splits z into +z and -z, since silu(z) - silu(-z) = z, and adds the carriers of each group of 32.
    last = clear(encoder.down_blocks[-1].resnets[-1].conv_shortcut)
    out = clear(encoder.conv_out)
    size = encoder.norm_out.num_channels // encoder.norm_out.num_groups
    carried = 24 // encoder.norm_out.num_groups
    for z in range(24):
        plus = z // carried * size + 2 * (z % carried)
        last.weight[plus, z], last.weight[plus + 1, z] = 1, -1
        out.weight[z, plus, now, 1, 1], out.weight[z, plus + 1, now, 1, 1] = 1, -1
    for group in range(encoder.norm_out.num_groups):
        first = group * size + 2 * carried
        last.bias[first : (group + 1) * size] = CARRIER * torch.tensor([1.0, -1.0]).repeat((size - 2 * carried) // 2)
    encoder.norm_out.weight.fill_(CARRIER * ((size - 2 * carried) / size) ** 0.5)
    encoder.norm_out.bias.zero_()
    clear(model.quant_conv).weight[:24, :24, 0, 0, 0] = torch.eye(24)
    model.quant_conv.bias[24:] = LOGVAR


def area_latents(frames: np.ndarray) -> np.ndarray:
    """What the encoder's mean is, computed directly (to half a percent): uint8 (17n + 5, h, w, 3) -> (24, 5n + 2, h / 16, w / 16)."""
    f, h, w, _ = frames.shape
    small = frames.reshape(f, h // 8, 8, w // 8, 8, 3).mean(axis=(2, 4), dtype=np.float32) / 255
    small = (small - PIXEL_MEAN.flatten().numpy()) / PIXEL_STD.flatten().numpy()
    small = small.reshape(f, h // 16, 2, w // 16, 2, 3).transpose(2, 4, 0, 5, 1, 3).reshape(4, f, 3, h // 16, w // 16)
    latents = []
    for start in range(0, f, CLIP):
        for k in range(5 if f - start >= CLIP else 2):
            at, before = start + 4 * k, start + 4 * k - 2
            earlier = small[:, before] if k else np.zeros_like(small[:, 0])
            latents.append(np.concatenate([small[:, at], earlier], axis=1).reshape(24, h // 16, w // 16))
    return np.stack(latents, axis=1)


def encode_clip(model: AutoencoderKLMiniMaxH3, x: torch.Tensor) -> torch.Tensor:
    """Moments of one clip of at most 17 frames; x (b, 3, t, h, w) normalised -> (b, 48, ceil(t / 4), h / 16, w / 16)."""
    return model.quant_conv(model.encoder(x.contiguous(memory_format=torch.channels_last_3d)))


def encode(model: AutoencoderKLMiniMaxH3, x: torch.Tensor) -> torch.Tensor:
    """Moments of a film of 17n + 5 frames, as the reference chunks it: (b, 48, 5n + 2, h / 16, w / 16).

    The encoder is causal, so the last 5 frames alone give the same two latents as the padded clip.
    """
    return torch.cat([encode_clip(model, part) for part in x.split(CLIP, dim=2)], dim=2)


def decode_chunk(model: AutoencoderKLMiniMaxH3, z: torch.Tensor) -> torch.Tensor:
    """The 22 frames of one chunk from its 7 latents (not normalised); (b, 24, 7, h, w) -> (b, 3, 22, 16h, 16w).

    The decoder's own arithmetic, with plain products for attention: backward is a quarter faster so.
    """
    decoder, (b, c, t, h, w) = model.decoder, z.shape
    dtype = torch.bfloat16 if torch.is_autocast_enabled("cpu") else torch.float32
    x = decoder.proj_in(model.post_quant_conv(z).permute(0, 2, 3, 4, 1).reshape(b, t * h * w, c)).float()
    x = torch.cat([x, decoder.register_tokens.expand(b, -1, -1), torch.zeros_like(x[:, :1])], dim=1)
    axes = [2 * torch.arange(0.5, size) / size - 1 for size in (t, h, w)]
    places = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(1, -1, 3)
    places = torch.cat([places, places.new_zeros(1, decoder.num_register_tokens + 1, 3)], dim=1)
    cos, sin = (table[0, ..., : table.shape[-1] // 2].to(dtype) for table in decoder.rope(places))

    def turn(x: torch.Tensor) -> torch.Tensor:
        first, second, rest = x.split((cos.shape[-1], cos.shape[-1], x.shape[-1] - 2 * cos.shape[-1]), dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)

    for block in decoder.transformer_blocks:
        attn, y = block.attn, block.norm1(x).to(dtype)
        q, k, v = (layer(y).unflatten(2, (attn.heads, -1)) for layer in (attn.to_q, attn.to_k, attn.to_v))
        dim = q.shape[-1]
        q, k = (turn(F.rms_norm(part, (dim,), eps=attn.norm_q.eps)) for part in (q, k))
        q, k, v = (part.transpose(1, 2).reshape(b * attn.heads, -1, dim) for part in (q * dim**-0.5, k, v))
        y = torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), v)
        x = x + attn.to_out[0](y.view(b, attn.heads, -1, dim).transpose(1, 2).flatten(2)) * block.scale1
        x = x + block.ff(block.norm2(x).to(dtype)) * block.scale2
    x = decoder.proj_out(decoder.norm_out(x).to(dtype))[:, : t * h * w]
    x = x.view(b, t, h, w, 3, 4, 16, 16).permute(0, 4, 1, 5, 2, 6, 3, 7).reshape(b, 3, t * 4, h * 16, w * 16)
    return x[:, :, KEPT]


def to_pixels(frames: np.ndarray) -> torch.Tensor:
    """uint8 (b, t, h, w, 3) -> normalised float32 (b, 3, t, h, w)."""
    x = torch.from_numpy(np.ascontiguousarray(frames)).permute(0, 4, 1, 2, 3).float() / 255
    return (x - PIXEL_MEAN) / PIXEL_STD


def to_bytes(x: torch.Tensor) -> np.ndarray:
    """Normalised (b, 3, t, h, w) -> uint8 (b, t, h, w, 3)."""
    x = (x.float() * PIXEL_STD + PIXEL_MEAN).clamp(0, 1) * 255
    return x.round().to(torch.uint8).permute(0, 2, 3, 4, 1).numpy()


class Clips:
    """A pool of drawn 22-frame clips that grows by one now and then until it is full."""

    def __init__(self, seed: int, first: int = 200, capacity: int = 3000, moving_camera: float = 0.15) -> None:
        self.rng, self.capacity, self.moving_camera = np.random.default_rng(seed), capacity, moving_camera
        self.frames: list[np.ndarray] = []
        self.paths: list[np.ndarray] = []
        self.latents: list[np.ndarray] = []
        for _ in range(first):
            self.draw()

    def draw(self) -> None:
        if len(self.frames) >= self.capacity:
            return
        length = int(self.rng.choice((22, 39, 56), p=(0.7, 0.2, 0.1)))
        shot = world.random_shot(self.rng, length, self.moving_camera)
        start = CLIP * int(self.rng.integers((length - 5) // CLIP))
        path, zoom = world.subject_path(shot), world.camera_path(shot)[:, 1:]
        path = np.concatenate([64 + (path[:, :2] - 64) * zoom, path[:, 2:3] * zoom], axis=1)
        self.frames.append(world.draw_shot(shot)[start : start + FRAMES])
        self.paths.append(path[start : start + FRAMES].astype(np.float32))
        self.latents.append(area_latents(self.frames[-1]))

    def batch(self, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Latents (count, 24, 7, 8, 8), their pixels (count, 3, 22, 128, 128) and every pixel's loss weight (count, 1, ...)."""
        chosen = self.rng.integers(len(self.frames), size=count)
        weights = []
        for i in chosen:
            path = self.paths[i]
            y, x = np.ogrid[:128, :128]
            reach = (path[:, 2] * 1.1 + 4)[:, None, None]
            near = (np.abs(x - path[:, 0, None, None]) < reach) & (np.abs(y - path[:, 1, None, None]) < reach)
            weights.append(np.where(near, 4.0, 1.0).astype(np.float32))
        z = torch.from_numpy(np.stack([self.latents[i] for i in chosen]))
        return z, to_pixels(np.stack([self.frames[i] for i in chosen])), torch.from_numpy(np.stack(weights))[:, None]


def reconstruction_loss(got: torch.Tensor, want: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Weighted L1 of the pixels and of their differences to the right and down, which keeps edges sharp.

    In got's precision: the gradient of L1 is a sign, and memory traffic is the cost here.
    """
    error, weight = got - want.to(got.dtype), weight.to(got.dtype)
    across, down = error[..., :, 1:] - error[..., :, :-1], error[..., 1:, :] - error[..., :-1, :]
    parts = ((error, weight, 1.0), (across, weight[..., :, 1:], 0.5), (down, weight[..., 1:, :], 0.5))
    return sum(share * (part.abs() * w).mean(dtype=torch.float32) for part, w, share in parts)


def psnr(got: np.ndarray, want: np.ndarray) -> float:
    return float(10 * np.log10(255**2 / np.mean((got.astype(np.float32) - want) ** 2)))


@torch.no_grad()
def measure(model: AutoencoderKLMiniMaxH3, clips: Clips) -> float:
    """PSNR over whole held-out frames, posterior mean."""
    values = []
    for frames in clips.frames:
        z = torch.from_numpy(area_latents(frames))[None]
        with torch.autocast("cpu", torch.bfloat16):
            got = decode_chunk(model, z)
        values.append(psnr(to_bytes(got), frames[None]))
    return float(np.mean(values))


def train(work: Path, minutes: float, end: float = 45, batch: int = 4, log=print) -> None:
    """Train the decoder on whole frames for some minutes of a plan of `end` minutes."""
    path, clock = work / "video_vae.pt", training.Clock(minutes)
    model = build()
    for part in (model.encoder, model.quant_conv):
        part.requires_grad_(False)
    average = training.Average(model, 0.998)
    found = training.optimisers(model, PEAK_LR, muon=("decoder.transformer_blocks",))
    state = training.load_state(path)
    if state:
        model.load_state_dict(state["model"])
        average.values, average.updates = state["average"], state["updates"]
        training.load_optimisers(found, state["optimisers"])
        clock.resume(state["clock"])
    torch.manual_seed(clock.step)
    clips, held_out = Clips(seed=1000 + clock.step), Clips(seed=7, first=8, moving_camera=0)

    def save() -> None:
        values = {"model": model.state_dict(), "average": average.values, "updates": average.updates}
        training.save_state(path, {**values, "optimisers": [o.state_dict() for o in found], "clock": clock.state()})

    losses: list[float] = []
    for step in clock.running():
        if step % 3 == 0:
            clips.draw()
        z, x, weight = clips.batch(batch)
        training.set_lr(found, training.warmed_lr(PEAK_LR, step, clock.minutes, end, warmup=100))
        z = z + LATENT_NOISE * torch.rand(batch, 1, 1, 1, 1) * torch.randn_like(z)
        with torch.autocast("cpu", torch.bfloat16):
            got = decode_chunk(model, z)
        loss = reconstruction_loss(got, x, weight)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser in found:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        average.update(model)
        losses.append(float(loss.detach()))
        if step % 100 == 0:
            log(f"video-vae step {step} {clock.minutes:.1f} min loss {np.mean(losses[-100:]):.4f}")
        if clock.checkpoint_due():
            save()
            weights = {k: v.clone() for k, v in model.state_dict().items()}
            average.copy_to(model)
            log(f"video-vae step {step} {clock.minutes:.1f} min psnr {measure(model, held_out):.2f} dB")
            model.load_state_dict(weights)
    save()


def load(work: Path) -> AutoencoderKLMiniMaxH3:
    """The averaged weights of the checkpoint, for inference."""
    state = training.load_state(work / "video_vae.pt")
    if state is None:
        raise FileNotFoundError(f"{work / 'video_vae.pt'}: train the video VAE first")
    model = build()
    model.load_state_dict({**model.state_dict(), **state["average"]})
    return model.eval()
