"""Training the text encoder: a tiny Qwen3-VL that continues the world's sentences, then frozen.

Beside the next token it learns to name the shot's attributes from the tapped layer (linear heads that are thrown away):
the transformer then finds "red", "crimson" and the Chinese words for it in the same direction.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from h3core.micro import language, training, world
from h3core.micro.tokenizer import MicroTokenizer

HIDDEN, LAYERS, TAP = 128, 4, 3  # the transformer reads hidden_states[TAP]: the residual stream after TAP layers
PEAK_LR = 3e-3
ATTRIBUTES = {
    "shape": world.SHAPES,
    "colour": tuple(world.COLOURS),
    "size": tuple(world.SIZES),
    "place": world.PLACES,
    "motion": world.MOTIONS,
    "camera": world.CAMERAS,
}


def build(tokenizer: MicroTokenizer) -> Qwen3VLForConditionalGeneration:
    torch.manual_seed(1)
    config = Qwen3VLConfig(
        text_config=dict(
            vocab_size=-(-len(tokenizer) // 64) * 64,
            hidden_size=HIDDEN,
            intermediate_size=320,
            num_hidden_layers=LAYERS,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            hidden_act="silu",
            max_position_embeddings=4096,
            rms_norm_eps=1e-6,
            rope_parameters=dict(rope_type="default", rope_theta=5e6, mrope_section=[6, 5, 5], mrope_interleaved=True),
            attention_bias=False,
            attention_dropout=0.0,
            pad_token_id=None,
        ),
        vision_config=dict(
            depth=2,
            hidden_size=64,
            hidden_act="gelu_pytorch_tanh",
            intermediate_size=192,
            num_heads=2,
            in_channels=3,
            patch_size=16,
            spatial_merge_size=2,
            temporal_patch_size=2,
            out_hidden_size=HIDDEN,
            num_position_embeddings=64,
            deepstack_visual_indexes=[0, 1],
        ),
        image_token_id=tokenizer.id("<|image_pad|>"),
        video_token_id=tokenizer.id("<|video_pad|>"),
        vision_start_token_id=tokenizer.id("<|vision_start|>"),
        vision_end_token_id=tokenizer.id("<|vision_end|>"),
        tie_word_embeddings=False,
    )
    return Qwen3VLForConditionalGeneration(config).float()


def pad(sentences: list[list[int]], fill: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-padded ids (n, longest) int64 and lengths (n,)."""
    lengths = torch.tensor([len(ids) for ids in sentences])
    ids = torch.full((len(sentences), int(lengths.max())), fill)
    for row, sentence in zip(ids, sentences, strict=True):
        row[: len(sentence)] = torch.tensor(sentence)
    return ids, lengths


def states(model: Qwen3VLForConditionalGeneration, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The tapped states and the last layer's normalised ones, each (n, length, HIDDEN). Causal, so padding changes nothing."""
    tapped: list[torch.Tensor] = []

    def keep(_module: nn.Module, _args: tuple, output) -> None:
        tapped.append(output[0] if isinstance(output, tuple) else output)

    stack = model.model.language_model
    handle = stack.layers[TAP - 1].register_forward_hook(keep)
    last = stack(input_ids=ids, use_cache=False).last_hidden_state
    handle.remove()
    return tapped[0], last


def random_film(rng: np.random.Generator) -> world.Film:
    """Mostly one shot; sometimes two or three, so that the encoder knows the shot form."""
    count = 1 if rng.random() < 0.9 else int(rng.integers(2, 4))
    return world.Film(tuple(world.random_shot(rng, int(rng.integers(12, 30)), 0.4) for _ in range(count)))


def train(work: Path, minutes: float, end: float = 10, log=print) -> None:
    tokenizer = MicroTokenizer(work / "tokenizer")
    path, clock = work / "text_encoder.pt", training.Clock(minutes)
    model = build(tokenizer)
    model.model.visual.requires_grad_(False)
    heads = nn.ModuleDict({name: nn.Linear(HIDDEN, len(values)) for name, values in ATTRIBUTES.items()})
    found = training.optimisers(nn.ModuleList([model, heads]), PEAK_LR)
    average = training.Average(model, 0.995)
    state = training.load_state(path)
    if state:
        model.load_state_dict(state["model"])
        heads.load_state_dict(state.get("heads", heads.state_dict()))
        average.values, average.updates = state["average"], state["updates"]
        training.load_optimisers(found, state["optimisers"])
        clock.resume(state["clock"])
    rng = np.random.default_rng(2000 + clock.step)
    hits: list[float] = []
    for step in clock.running():
        training.set_lr(found, training.warmed_lr(PEAK_LR, step, clock.minutes, end, warmup=50, fade=0.6))
        films = [random_film(rng) for _ in range(48)]
        sentences = [tokenizer.encode(language.describe_film(film, rng, "all"))[:96] for film in films]
        ids, lengths = pad([[*s, tokenizer.unconditional] for s in sentences], tokenizer.unconditional)
        with torch.autocast("cpu", torch.bfloat16):
            tapped, last = states(model, ids)
            logits = model.lm_head(last[:, :-1])
        real = torch.arange(ids.shape[1])[None] < lengths[:, None]
        loss = F.cross_entropy(logits.float()[real[:, 1:]], ids[:, 1:][real[:, 1:]])
        # The last real token has seen the whole sentence; a single shot's attributes must be readable there and on average.
        single = torch.tensor([len(film.shots) == 1 for film in films])
        seen = real & (torch.arange(ids.shape[1])[None] < lengths[:, None] - 1)
        end_state = tapped.float()[torch.arange(len(films)), lengths - 2][single]
        mean_state = ((tapped.float() * seen[..., None]).sum(1) / seen.sum(1, keepdim=True))[single]
        right = []
        for name, values in ATTRIBUTES.items():
            want = torch.tensor([values.index(getattr(f.shots[0], name)) for f in films if len(f.shots) == 1])
            for pooled in (end_state, mean_state):
                guess = heads[name](F.rms_norm(pooled, (HIDDEN,)))
                loss = loss + (0.3 if name != "size" else 0.1) * F.cross_entropy(guess, want)
            right.append(float((guess.argmax(1) == want).float().mean()))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser in found:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        average.update(model)
        hits.append(float(np.mean(right)))
        if step % 100 == 0:
            log(f"text step {step} {clock.minutes:.1f} min loss {float(loss.detach()):.3f} attributes {np.mean(hits[-50:]):.3f}")
    values = {"model": model.state_dict(), "heads": heads.state_dict(), "average": average.values, "updates": average.updates}
    training.save_state(path, {**values, "optimisers": [o.state_dict() for o in found], "clock": clock.state()})


def load(work: Path) -> Qwen3VLForConditionalGeneration:
    """The averaged weights rounded to bfloat16 as they ship, in float32 for use."""
    state = training.load_state(work / "text_encoder.pt")
    if state is None:
        raise FileNotFoundError(f"{work / 'text_encoder.pt'}: train the text encoder first")
    model = build(MicroTokenizer(work / "tokenizer"))
    model.load_state_dict({**model.state_dict(), **state["average"]})
    return model.to(torch.bfloat16).float().eval()
