"""Writing the trained parts as the tree that ships: the release's diffusers layout, weights in half precision.

`model/` holds what an engine needs and what a later training starts from (`import_tree`): everything but the optimisers.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import diffusers
import torch
from diffusers import MiniMaxH3Scheduler
from torch import nn

from h3core.micro import audio_vae, latents, text_encoder, training, transformer, video_vae

MODEL = Path(__file__).parent / "model"
FLOAT32_TRANSFORMER = ("proj_in", "audio_proj_in", "time_embedder", "proj_out", "audio_proj_out")
FLOAT32_VIDEO_VAE = ("quant_conv", "norm1", "norm2", "norm_out", "scale1", "scale2")
CLASSES = {
    "text_encoder": ("transformers", "Qwen3VLForConditionalGeneration"),
    "tokenizer": ("transformers", "Qwen2TokenizerFast"),
    "processor": ("transformers", "Qwen3VLProcessor"),
    "vae": ("diffusers", "AutoencoderKLMiniMaxH3"),
    "audio_vae": ("diffusers", "AutoencoderKLMiniMaxH3Audio"),
    "transformer": ("diffusers", "MiniMaxH3Transformer3DModel"),
    "scheduler": ("diffusers", "MiniMaxH3Scheduler"),
    "audio_scheduler": ("diffusers", "MiniMaxH3Scheduler"),
}


def round_weights(model: nn.Module, dtype: torch.dtype, float32: tuple[str, ...] = ()) -> nn.Module:
    """Cast parameters to dtype, except those below a module whose exact name is in float32."""
    for name, p in model.named_parameters():
        if not any(part in float32 for part in name.split(".")):
            p.data = p.data.to(dtype)
    return model


def write_json(path: Path, value: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def parts(work: Path) -> dict[str, nn.Module]:
    """The trained components with averaged weights, rounded as they ship; the VAEs know their latents' statistics."""
    statistics = latents.statistics(work)
    vae = video_vae.build(statistics.video_mean, statistics.video_std)
    vae.load_state_dict(video_vae.load(work).state_dict())
    audio = audio_vae.build(statistics.audio_mean, statistics.audio_std)
    audio.load_state_dict(audio_vae.load(work).state_dict())
    return {
        # The encoder's weights are small exact numbers, so bfloat16 keeps them; norms and scales stay as the release has them.
        "vae": round_weights(vae.eval(), torch.bfloat16, FLOAT32_VIDEO_VAE),
        "audio_vae": round_weights(audio.eval(), torch.float16),
        "transformer": round_weights(transformer.load(work), torch.bfloat16, FLOAT32_TRANSFORMER),
        "text_encoder": text_encoder.load(work).to(torch.bfloat16),
    }


def export(work: Path, target: Path = MODEL, log=print) -> None:
    """Write the tree beside the old one, then swap, so that a reader never meets half of it."""
    fresh = target.with_name(target.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    for name, model in parts(work).items():
        model.save_pretrained(str(fresh / name))
    MiniMaxH3Scheduler(shift=transformer.VIDEO_SHIFT).save_pretrained(str(fresh / "scheduler"))
    MiniMaxH3Scheduler(shift=transformer.AUDIO_SHIFT).save_pretrained(str(fresh / "audio_scheduler"))
    shutil.copytree(work / "tokenizer", fresh / "tokenizer")
    pixels = {"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    write_json(
        fresh / "processor" / "preprocessor_config.json",
        {
            "size": {"longest_edge": 16777216, "shortest_edge": 1024},
            **pixels,
            "processor_class": "Qwen3VLProcessor",
            "image_processor_type": "Qwen2VLImageProcessorFast",
        },
    )
    write_json(
        fresh / "processor" / "video_preprocessor_config.json",
        {
            "size": {"longest_edge": 25165824, "shortest_edge": 1024},
            **pixels,
            "processor_class": "Qwen3VLProcessor",
            "video_processor_type": "Qwen3VLVideoProcessor",
        },
    )
    version = diffusers.__version__
    about = {
        "schema_version": 1,
        "name": "h3-micro",
        "partition": "fl2va",
        "tasks": ["t2va"],
        "sigma_shift_scales": {"video": transformer.VIDEO_SHIFT, "audio": transformer.AUDIO_SHIFT},
        "tap": text_encoder.TAP,
        "guidance_distilled": False,
        "trained_frames": [length for length, _ in latents.LENGTHS],
        "trained_canvases": [[128, 128]],
    }
    index = {"_class_name": "MiniMaxH3Pipeline", "_diffusers_version": version, "_minimax_h3": about}
    write_json(fresh / "model_index.json", {**index, **{name: list(kind) for name, kind in CLASSES.items()}})
    modular: dict = {
        "_blocks_class_name": "MiniMaxH3Blocks",
        "_class_name": "MiniMaxH3ModularPipeline",
        "_diffusers_version": version,
    }
    for name, kind in CLASSES.items():
        modular[name] = [
            *kind,
            {
                "pretrained_model_name_or_path": "h3-micro",
                "revision": None,
                "subfolder": name,
                "type_hint": list(kind),
                "variant": None,
            },
        ]
    modular |= {"canvas_short_edge": 128, "canvas_max_pixels": 128 * 128, "reference_image_short_edge": 128}
    write_json(fresh / "modular_model_index.json", modular)
    for path in fresh.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    shutil.rmtree(target, ignore_errors=True)
    fresh.rename(target)
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    log(f"exported {target}: {size / 1e6:.1f} MB")


def import_tree(source: Path, work: Path) -> None:
    """Make checkpoints in an empty work folder from a shipped tree, so that training can go on with fresh optimisers."""
    from diffusers import AutoencoderKLMiniMaxH3, AutoencoderKLMiniMaxH3Audio, MiniMaxH3Transformer3DModel
    from transformers import Qwen3VLForConditionalGeneration

    shutil.copytree(source / "tokenizer", work / "tokenizer", dirs_exist_ok=True)
    classes = {
        "vae": ("video_vae", AutoencoderKLMiniMaxH3),
        "audio_vae": ("audio_vae", AutoencoderKLMiniMaxH3Audio),
        "transformer": ("transformer", MiniMaxH3Transformer3DModel),
        "text_encoder": ("text_encoder", Qwen3VLForConditionalGeneration),
    }
    for folder, (name, kind) in classes.items():
        model = kind.from_pretrained(str(source / folder), torch_dtype=torch.float32).float()
        state = {"model": model.state_dict(), "average": dict(model.named_parameters())}
        training.save_state(work / f"{name}.pt", {**state, "updates": 1000, "optimisers": None, "clock": {"minutes": 0.0, "step": 0}})
    config = {name: json.loads((source / name / "config.json").read_text()) for name in ("vae", "audio_vae")}
    latents.keep_statistics(
        work,
        latents.Statistics(
            config["vae"]["latents_mean"],
            config["vae"]["latents_std"],
            config["audio_vae"]["latents_mean"],
            config["audio_vae"]["latents_std"],
        ),
    )
