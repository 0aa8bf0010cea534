"""The reference implementation (diffusers, torch), as the live tests call it: random small trees, whole films from a seed.

Nothing of the product imports this. Two things are lifted by subclassing, both policy and not mathematics: the layer
that is tapped (50 in the release) and the shortest duration (5 s).
"""

import json
import math
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import diffusers
import numpy as np
import torch
from diffusers import (
    AutoencoderKLMiniMaxH3,
    AutoencoderKLMiniMaxH3Audio,
    MiniMaxH3Scheduler,
    MiniMaxH3Transformer3DModel,
)
from diffusers.modular_pipelines import MiniMaxH3Blocks
from diffusers.modular_pipelines.minimax_h3.modular_pipeline import MiniMaxH3ModularPipeline
from transformers import AutoTokenizer, Qwen3VLConfig, Qwen3VLForConditionalGeneration

# Stored as float32 by the release wherever a path component has one of these names (spec: precision policy).
FLOAT32_ISLANDS = ("proj_in", "audio_proj_in", "time_embedder", "proj_out", "audio_proj_out")


@dataclass(frozen=True)
class Shape:
    """The dimensions of one random small model; the defaults are all unlike the release's and unlike each other."""

    seed: int
    tap: int = 3
    shifts: tuple[float, float] = (12.0, 3.0)
    transformer: dict = field(default_factory=dict)
    vae: dict = field(default_factory=dict)
    audio_vae: dict = field(default_factory=dict)
    text: dict = field(default_factory=dict)


class ReferencePipeline(MiniMaxH3ModularPipeline):
    """The unmodified pipeline, except for the tapped layer and the shortest duration."""

    tap = 50
    min_duration = property(lambda self: 0.0)
    text_encoder_layer = property(lambda self: self.tap)


class TextProcessor:
    """What the text path asks of Qwen3VLProcessor (which needs torchvision): every token is text."""

    def create_mm_token_type_ids(self, batch):
        return [[0] * len(row) for row in batch]


def fill(module: torch.nn.Module, generator: torch.Generator) -> None:
    """Random weights at which every branch matters: fan-in scaled matrices, norms off one, biases and gates off zero."""
    parameters = dict(module.named_parameters())
    for name, parameter in parameters.items():
        last = name.rsplit(".", 1)[-1]
        noise = torch.randn(parameter.shape, generator=generator)
        if last == "weight_g":
            continue  # follows its weight_v
        if last == "weight_v":
            inputs = parameter[0].numel() if ".ups." not in name else parameter.shape[0] * parameter.shape[2] / 2
            parameter.copy_(0.6 * noise / math.sqrt(inputs))
            norm = parameter.flatten(1).norm(dim=1).view(-1, 1, 1)
            parameters[name[:-1] + "g"].copy_(norm * (1 + 0.2 * torch.rand(norm.shape, generator=generator)))
        elif last in ("alpha", "beta"):
            parameter.copy_(1 + 0.3 * noise.abs() if parameter.ndim == 3 else 0.3 * noise)
        elif last.startswith("scale"):
            parameter.copy_(0.4 + 0.2 * noise)
        elif "bias" in last:
            parameter.copy_(0.15 * noise)
        elif parameter.ndim == 1:
            parameter.copy_(1 + 0.2 * noise)
        elif "embed" in name and parameter.ndim == 2 or last == "register_tokens":
            parameter.copy_(0.8 * noise)
        else:
            parameter.copy_(noise / math.sqrt(parameter[0].numel()))
        if name in ("proj_out.weight", "audio_proj_out.weight"):
            parameter *= 0.3  # velocities of the size that latents have
        if name.endswith("adaln_proj.linear.bias"):  # gates near a half, so that no residual branch is silent
            parameter.view(3, 6, -1)[:, [2, 5]] += 0.5


def store_like_the_release(module: torch.nn.Module) -> None:
    for name, parameter in module.named_parameters():
        island = any(part in FLOAT32_ISLANDS for part in name.split("."))
        parameter.data = parameter.data.to(torch.float32 if island else torch.bfloat16)


def random_tree(folder: Path, shape: Shape, tokenizer: Path) -> Path:
    """A loadable diffusers tree of a random small model. tokenizer: the folder whose tokenizer is copied in."""
    generator = torch.Generator().manual_seed(shape.seed)

    def normal(count: int, scale: float) -> list[float]:
        return (scale * torch.randn(count, generator=generator)).tolist()

    text_width = shape.text.get("hidden_size", 40)
    transformer = MiniMaxH3Transformer3DModel(**{
        "num_attention_heads": 3, "attention_head_dim": 24, "hidden_size": 56, "num_layers": 2, "num_refiner_layers": 2,
        "ffn_dim": 72, "in_channels": 24, "audio_in_channels": 32, "patch_size": (1, 2, 2), "text_dim": text_width,
        "freq_dim": 20, "time_embed_hidden_dim": 28, "time_embed_dim": 36, "rope_freq_dim": 4, **shape.transformer,
    })
    vae = AutoencoderKLMiniMaxH3(**{
        "in_channels": 3, "out_channels": 3, "latent_channels": 24, "block_out_channels": (8, 8, 8, 12, 12, 16),
        "layers_per_block": 1, "spatial_downsample_factors": (2, 2, 2, 2, 1, 1),
        "temporal_downsample_factors": (1, 2, 2, 1, 1, 1), "norm_num_groups": 4, "decoder_num_layers": 2,
        "decoder_num_attention_heads": 3, "decoder_attention_head_dim": 16, "latents_mean": normal(24, 0.5),
        "latents_std": [0.6 + abs(value) for value in normal(24, 0.4)], **shape.vae,
    })
    audio = AutoencoderKLMiniMaxH3Audio(**{
        "encoder_dim": 4, "encoder_rates": (2, 4, 5), "latent_dim": 64, "latent_channels": 32, "num_attention_heads": 2,
        "decoder_dim": 32, "decoder_rates": (5, 2, 2, 2), "decoder_kernel_sizes": (9, 4, 4, 4),
        "resblock_kernel_sizes": (3, 7, 11), "resblock_dilation_sizes": ((1, 3, 5),) * 3, "sampling_rate": 1600,
        "latents_mean": normal(32, 0.4), "latents_std": [0.6 + abs(value) for value in normal(32, 0.3)],
        **shape.audio_vae,
    })
    ids = {token.content: number for number, token in AutoTokenizer.from_pretrained(tokenizer).added_tokens_decoder.items()}
    text = Qwen3VLForConditionalGeneration(Qwen3VLConfig(
        text_config={
            "vocab_size": 64 * math.ceil((max(ids.values()) + 1) / 64), "hidden_size": 40, "intermediate_size": 52,
            "num_hidden_layers": shape.tap + 1, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8,
            "rms_norm_eps": 1e-6, "attention_bias": False, "max_position_embeddings": 4096, "pad_token_id": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5000000.0, "mrope_section": [2, 1, 1], "mrope_interleaved": True},
            **shape.text,
        },
        vision_config={
            "depth": 1, "hidden_size": 16, "intermediate_size": 20, "num_heads": 2, "in_channels": 3, "patch_size": 16,
            "spatial_merge_size": 2, "temporal_patch_size": 2, "out_hidden_size": text_width,
            "num_position_embeddings": 16, "deepstack_visual_indexes": [0],
        },
        image_token_id=ids["<|image_pad|>"], video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"], vision_end_token_id=ids["<|vision_end|>"], tie_word_embeddings=False,
    ))
    parts = {"transformer": transformer, "vae": vae, "audio_vae": audio, "text_encoder": text}
    for name, module in parts.items():
        with torch.no_grad():
            fill(module, generator)
        if name in ("transformer", "text_encoder"):
            store_like_the_release(module)
        module.save_pretrained(folder / name)
    MiniMaxH3Scheduler(shift=shape.shifts[0]).save_pretrained(folder / "scheduler")
    MiniMaxH3Scheduler(shift=shape.shifts[1]).save_pretrained(folder / "audio_scheduler")
    shutil.copytree(tokenizer, folder / "tokenizer")
    names = {
        "transformer": ["diffusers", "MiniMaxH3Transformer3DModel"], "vae": ["diffusers", "AutoencoderKLMiniMaxH3"],
        "audio_vae": ["diffusers", "AutoencoderKLMiniMaxH3Audio"],
        "text_encoder": ["transformers", "Qwen3VLForConditionalGeneration"],
        "tokenizer": ["transformers", "Qwen2TokenizerFast"], "scheduler": ["diffusers", "MiniMaxH3Scheduler"],
        "audio_scheduler": ["diffusers", "MiniMaxH3Scheduler"],
    }
    manifest = {"schema_version": 1, "partition": "fl2va", "tasks": ["t2va", "fl2va"], "tap": shape.tap}
    index = {"_class_name": "MiniMaxH3Pipeline", "_diffusers_version": diffusers.__version__, **names, "_minimax_h3": manifest}
    (folder / "model_index.json").write_text(json.dumps(index, indent=1), encoding="utf-8")
    return folder


@dataclass
class Film:
    """What the reference answered: latents (24, T, h, w) and (2, 32, A), pixels uint8 (F, H, W, 3), sound (2, samples)."""

    latents: np.ndarray
    audio_latents: np.ndarray
    pixels: np.ndarray
    sound: np.ndarray


def reference_film(tree: Path, prompt: str, seed: int, frames: int, width: int, height: int, steps: int) -> Film:
    """A whole run of the reference in float32 with the stored weights upcast. steps: evaluations of the network."""
    manifest = json.loads((tree / "model_index.json").read_text(encoding="utf-8")).get("_minimax_h3", {})
    pipe = MiniMaxH3Blocks().init_pipeline()
    pipe.__class__ = type("Tapped", (ReferencePipeline,), {"tap": manifest.get("tap", 50)})
    parts = {
        "transformer": MiniMaxH3Transformer3DModel, "vae": AutoencoderKLMiniMaxH3, "audio_vae": AutoencoderKLMiniMaxH3Audio,
        "text_encoder": Qwen3VLForConditionalGeneration, "scheduler": MiniMaxH3Scheduler, "audio_scheduler": MiniMaxH3Scheduler,
    }
    loaded = {}
    for name, cls in parts.items():
        loaded[name] = cls.from_pretrained(tree / name)
        if isinstance(loaded[name], torch.nn.Module):
            loaded[name] = loaded[name].float().eval()
    pipe.update_components(**loaded, tokenizer=AutoTokenizer.from_pretrained(tree / "tokenizer"), processor=TextProcessor())
    pipe.set_progress_bar_config(disable=True)
    with torch.no_grad():
        state = pipe(
            prompt=prompt, height=height, width=width, num_frames=frames, num_inference_steps=steps + 1, output_type="pt",
            generator=torch.Generator().manual_seed(seed),
        )
    video = state.get("videos")[0].clamp(0, 1)
    return Film(
        latents=state.get("latents")[0].numpy(), audio_latents=state.get("audio_latents").numpy(),
        pixels=(video * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy(), sound=state.get("audio")[0].numpy(),
    )
