"""Training the diffusion transformer on cached latents: rectified flow, batches of one length, an average of the weights.

The module is diffusers' MiniMaxH3Transformer3DModel; `forward` is its arithmetic for a batch whose items have their own
times but one layout, which is why a batch holds prompts of one token count. Rows are packed text | audio | video.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import MiniMaxH3Transformer3DModel
from torch import nn

from h3core.micro import language, latents, text_encoder, training, world
from h3core.micro.tokenizer import MicroTokenizer

CONFIG = dict(
    num_attention_heads=4,
    attention_head_dim=64,
    hidden_size=192,
    num_layers=6,
    num_refiner_layers=2,
    ffn_dim=512,
    in_channels=24,
    audio_in_channels=32,
    patch_size=(1, 2, 2),
    text_dim=text_encoder.HIDDEN,
    freq_dim=64,
    time_embed_hidden_dim=192,
    time_embed_dim=64,
    rope_freq_dim=8,
    rope_theta=100.0,  # positions here span tens, not thousands
)
VIDEO_SHIFT, AUDIO_SHIFT = 4.0, 3.0
UNCONDITIONAL = 0.1
PEAK_LR = 1.5e-3
AUDIO_WEIGHT = 0.4


def build() -> MiniMaxH3Transformer3DModel:
    torch.manual_seed(3)
    model = MiniMaxH3Transformer3DModel(**CONFIG)
    for name, p in model.named_parameters():
        if name.endswith(("to_out.0.weight", "ff.net.2.weight")):
            nn.init.normal_(p, std=0.02 / (2 * CONFIG["num_layers"]) ** 0.5)
        elif "adaln_proj" in name or "norm_out.linear" in name:
            nn.init.normal_(p, std=0.02) if p.ndim == 2 else nn.init.zeros_(p)
            if name.endswith("adaln_proj.linear.bias"):
                p.data.view(3, 6, -1)[:, (2, 5)] = 1.0  # gates open: a plain pre-norm transformer at the start
        elif name.startswith(("proj_out", "audio_proj_out")):
            nn.init.zeros_(p)
        elif p.ndim == 2 and not name.startswith(("time_embedder", "proj_in", "audio_proj_in")):
            nn.init.normal_(p, std=0.04)
    return model


@dataclass(frozen=True)
class Layout:
    """Row counts and positions of a packed sequence without conditions; positions (rows, 3) float32 as (t, h, w)."""

    text: int
    audio: int
    video: int
    positions: torch.Tensor


def layout(text: int, frames: int, height: int, width: int) -> Layout:
    """Text rows, then both audio channels, then video rows, as section "packed sequence" of the model's rules has it."""
    t, h, w = 5 * (frames - 5) // 17 + 2, height // 16, width // 16
    audio = round(frames / world.FPS * 40)

    def axis(size: int) -> np.ndarray:
        ratio = size / np.sqrt(h * w)
        return 32 * np.linspace((1 - ratio) / 2, (1 - ratio) / 2 + ratio, size // 2, endpoint=False)

    ys, xs = axis(h), axis(w)
    spans = 5 / 3 * np.array((1, 4, 4, 4, 4))[np.arange(t) % 5]
    starts = text + np.concatenate([[0], np.cumsum(spans)[:-1]])
    rows = [np.stack([np.arange(text), np.zeros(text), np.zeros(text)], 1)]
    for side in (xs[0], xs[-1]):
        rows.append(np.stack([text + np.arange(audio), np.zeros(audio), np.full(audio, side)], 1))
    rows.append(np.stack(np.meshgrid(starts, ys, xs, indexing="ij"), -1).reshape(-1, 3))
    return Layout(text, 2 * audio, len(rows[-1]), torch.from_numpy(np.concatenate(rows)).float())


def patchify(z: torch.Tensor) -> torch.Tensor:
    """(b, 24, t, h, w) -> rows (b, t * h/2 * w/2, 96)."""
    b, c, t, h, w = z.shape
    z = z.view(b, c, t, h // 2, 2, w // 2, 2).permute(0, 2, 3, 5, 1, 4, 6)
    return z.reshape(b, t * (h // 2) * (w // 2), c * 4)


def unpatchify(rows: torch.Tensor, t: int, h: int, w: int) -> torch.Tensor:
    b = rows.shape[0]
    return rows.view(b, t, h // 2, w // 2, 24, 2, 2).permute(0, 4, 1, 2, 5, 3, 6).reshape(b, 24, t, h, w)


def _attention(attn: nn.Module, x: torch.Tensor, rotary: tuple[torch.Tensor, torch.Tensor] | None) -> torch.Tensor:
    """Plain products: at 200 rows twice as fast as the fused CPU attention, backward included."""
    b, rows, _ = x.shape
    q, k, v = (layer(x).unflatten(-1, (attn.heads, -1)) for layer in (attn.to_q, attn.to_k, attn.to_v))
    dim = q.shape[-1]
    q, k = (F.rms_norm(part, (dim,), norm.weight.to(part.dtype), norm.eps) for part, norm in ((q, attn.norm_q), (k, attn.norm_k)))
    if rotary is not None:
        q, k = (_rotate(part, *rotary) for part in (q, k))
    q, k, v = (part.transpose(1, 2).reshape(b * attn.heads, rows, dim) for part in (q * dim**-0.5, k, v))
    y = torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), v)
    return attn.to_out[0](y.view(b, attn.heads, rows, dim).transpose(1, 2).flatten(2))


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x (b, rows, heads, dim); cos, sin (rows, 1, rotated): half-split rotary on the first channels."""
    rotated = cos.shape[-1]
    first, second, rest = x.split((rotated // 2, rotated // 2, x.shape[-1] - rotated), dim=-1)
    cos, sin = cos[..., : rotated // 2], sin[..., : rotated // 2]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


def forward(
    model: MiniMaxH3Transformer3DModel,
    video: torch.Tensor,
    audio: torch.Tensor,
    text: torch.Tensor,
    times: torch.Tensor,
    lay: Layout,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Velocities of video (b, rows, 96) and audio (b, rows, 32). text (b, n, text_dim); times (b, 2): video's, audio's."""
    dtype = torch.bfloat16 if torch.is_autocast_enabled("cpu") else torch.float32
    y = model.context_embedder(text).float()
    for block in model.token_refiner.refiner_blocks:
        y = y + _attention(block.attn, block.norm1(y).to(dtype), None)
        y = y + block.ff(block.norm2(y).to(dtype))
    y = model.token_refiner.final_norm(y)
    x = torch.cat([y.float(), model.audio_proj_in(audio).float(), model.proj_in(video).float()], dim=1)
    rotary = tuple(table.to(dtype)[:, None] for table in model.rope(lay.positions))
    emb = F.silu(model.time_embedder(model.time_proj(times.flatten()))).view(len(times), 2, -1)
    counts = (lay.text, lay.audio, lay.video)

    def per_row(table: torch.Tensor) -> torch.Tensor:
        """(b, 3, n, d) for text, audio, video -> n tensors (b, rows, d)."""
        return tuple(
            torch.cat([part[:, i : i + 1].expand(-1, n, -1) for i, n in enumerate(counts)], dim=1)
            for part in table.to(dtype).unbind(dim=2)
        )

    for block in model.transformer_blocks:
        table = block.adaln_proj.linear(emb).view(len(times), 2, 3, 6, -1)
        shift1, scale1, gate1, shift2, scale2, gate2 = per_row(torch.stack([table[:, 0, 1], table[:, 1, 2], table[:, 0, 0]], 1))
        x = x + gate1 * _attention(block.attn, torch.addcmul(shift1, block.norm1(x).to(dtype), 1 + scale1), rotary)
        x = x + gate2 * block.ff(torch.addcmul(shift2, block.norm2(x).to(dtype), 1 + scale2))
    table = model.norm_out.linear(emb).view(len(times), 2, 2, -1)
    shift, scale = per_row(torch.stack([table[:, 0], table[:, 1], table[:, 0]], 1))
    x = model.norm_out.norm(x) * (1 + scale) + shift
    split = lay.text + lay.audio
    return model.proj_out(x[:, split:]), model.audio_proj_out(x[:, lay.text : split])


def shifted(base: torch.Tensor, shift: float) -> torch.Tensor:
    """The noise level sigma of a schedule at base level 1 (noise) ... 0 (clean)."""
    return shift * base / (1 + (shift - 1) * base)


@torch.no_grad()
def sample(
    model: MiniMaxH3Transformer3DModel,
    text: torch.Tensor,
    blank: torch.Tensor,
    frames: int,
    height: int,
    width: int,
    steps: int = 20,
    guidance: float = 1.0,
    seed: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalised latents (b, 24, t, h, w) and (b, 2, A, 32) for prompts of one length, text (b, n, d); blank (1, 1, d)."""
    lay, bare = layout(text.shape[1], frames, height, width), layout(1, frames, height, width)
    rng = torch.Generator().manual_seed(seed)
    video = torch.randn((len(text), lay.video, 96), generator=rng)
    audio = torch.randn((len(text), lay.audio, 32), generator=rng)
    base = torch.linspace(1, 0, steps)
    for now, then in zip(base[:-1], base[1:], strict=True):
        times = torch.tensor([[1 - float(shifted(now, VIDEO_SHIFT)), 1 - float(shifted(now, AUDIO_SHIFT))]]).expand(len(text), 2)
        velocity = forward(model, video, audio, text, times, lay)
        if guidance != 1:
            other = forward(model, video, audio, blank.expand(len(text), -1, -1), times, bare)
            velocity = tuple(o + guidance * (v - o) for v, o in zip(velocity, other, strict=True))
        video, audio = (
            x + v.float() * float(shifted(now, s) - shifted(then, s))
            for x, v, s in zip((video, audio), velocity, (VIDEO_SHIFT, AUDIO_SHIFT), strict=True)
        )
    return unpatchify(video, 5 * (frames - 5) // 17 + 2, height // 16, width // 16), audio.view(len(text), 2, -1, 32)


class Prompts:
    """Batches of latents with fresh prompts of one token count."""

    def __init__(self, cache: latents.Cache, tokenizer: MicroTokenizer, seed: int, per_item: int = 6) -> None:
        self.cache, self.rng = cache, np.random.default_rng(seed)
        self.by_length: dict[tuple[int, int], list[tuple[int, list[int]]]] = {}
        for index, shot in enumerate(cache.shots):
            for _ in range(per_item):
                ids = tokenizer.encode(language.describe(shot, self.rng))
                # Rounding the length up to even with the sentence's own end would change it, so only exact lengths meet.
                self.by_length.setdefault((shot.frames, len(ids)), []).append((index, ids))
        self.keys = [key for key, items in self.by_length.items() if len(items) >= 48]
        self.weights = np.array([len(self.by_length[key]) for key in self.keys], np.float64)
        self.weights /= self.weights.sum()

    def batch(self, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
        """video (b, 24, t, h, w), audio (b, 2, A, 32), ids (b, n), frames."""
        key = self.keys[int(self.rng.choice(len(self.keys), p=self.weights))]
        items = self.by_length[key]
        chosen = [items[i] for i in self.rng.integers(len(items), size=count)]
        video, audio = self.cache.batch([index for index, _ in chosen])
        return video, audio, torch.tensor([ids for _, ids in chosen]), key[0]


def train(work: Path, minutes: float, end: float = 75, batch: int = 16, log=print) -> None:
    tokenizer = MicroTokenizer(work / "tokenizer")
    reader = text_encoder.load(work)
    path, clock = work / "transformer.pt", training.Clock(minutes)
    model = build()
    average = training.Average(model, 0.998)
    found = training.optimisers(model, PEAK_LR, muon=(".attn.", ".ff."), weight_decay=0.01)
    state = training.load_state(path)
    if state:
        model.load_state_dict(state["model"])
        average.values, average.updates = state["average"], state["updates"]
        training.load_optimisers(found, state["optimisers"])
        clock.resume(state["clock"])
    prompts = Prompts(latents.Cache(work), tokenizer, seed=4000 + clock.step)
    torch.manual_seed(clock.step)
    blank_ids = torch.full((batch, 1), tokenizer.unconditional)

    def save() -> None:
        values = {"model": model.state_dict(), "average": average.values, "updates": average.updates}
        training.save_state(path, {**values, "optimisers": [o.state_dict() for o in found], "clock": clock.state()})

    losses: list[tuple[float, float]] = []
    for step in clock.running():
        training.set_lr(found, training.warmed_lr(PEAK_LR, step, clock.minutes, end, warmup=100))
        video, audio, ids, frames = prompts.batch(batch)
        if prompts.rng.random() < UNCONDITIONAL:
            ids = blank_ids
        lay = layout(ids.shape[1], frames, video.shape[3] * 16, video.shape[4] * 16)
        x_video, x_audio = patchify(video), audio.flatten(1, 2)
        base = (torch.rand(1) + torch.arange(batch) / batch) % 1  # evenly spread over the batch: less noise in the loss
        sigma = torch.stack([shifted(base, VIDEO_SHIFT), shifted(base, AUDIO_SHIFT)], dim=1)
        noise_video, noise_audio = torch.randn_like(x_video), torch.randn_like(x_audio)
        s_video, s_audio = sigma[:, :1, None], sigma[:, 1:, None]
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                text = text_encoder.states(reader, ids)[0]
            got_video, got_audio = forward(
                model,
                (1 - s_video) * x_video + s_video * noise_video,
                (1 - s_audio) * x_audio + s_audio * noise_audio,
                text,
                1 - sigma,
                lay,
            )
        loss_video = F.mse_loss(got_video.float(), x_video - noise_video)
        loss_audio = F.mse_loss(got_audio.float(), x_audio - noise_audio)
        (loss_video + AUDIO_WEIGHT * loss_audio).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser in found:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        average.update(model)
        losses.append((float(loss_video.detach()), float(loss_audio.detach())))
        if step % 50 == 0:
            of_video, of_audio = np.mean(losses[-50:], axis=0)
            log(f"dit step {step} {clock.minutes:.1f} min video {of_video:.4f} audio {of_audio:.4f}")
        if clock.checkpoint_due():
            save()
    save()


def load(work: Path) -> MiniMaxH3Transformer3DModel:
    """The averaged weights of the checkpoint, for inference."""
    state = training.load_state(work / "transformer.pt")
    if state is None:
        raise FileNotFoundError(f"{work / 'transformer.pt'}: train the transformer first")
    model = build()
    model.load_state_dict({**model.state_dict(), **state["average"]})
    return model.eval()
