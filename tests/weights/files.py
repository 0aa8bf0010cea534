"""Weight files written byte by byte for the tests, and read back without the code under test."""

import json
import shutil
from pathlib import Path

import numpy as np

from h3core.weights.model_files import Weight
from tests.golden_files import TINY

ITEM = {"F32": 4, "F16": 2, "BF16": 2, "I8": 1, "U8": 1, "F8_E4M3": 1}


def stored(path: Path) -> dict[str, tuple[str, list[int], bytes]]:
    """Every tensor of a good file: dtype, shape, bytes."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    start = 8 + length
    return {
        name: (each["dtype"], each["shape"], data[start + each["data_offsets"][0] : start + each["data_offsets"][1]])
        for name, each in header.items()
    }


def write(path: Path, tensors: dict, metadata: dict | None = None, data_at: int | None = None) -> Path:
    """Write tensors {name: (dtype, shape, bytes)}. data_at: what the data's start is modulo 8."""
    header, offset = {"__metadata__": metadata} if metadata else {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (((data_at or 0) - len(text)) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data for _, _, data in tensors.values()))
    return path


def write_raw(path: Path, header: object, data: bytes = b"", length: int | None = None) -> Path:
    """Write any header, right or wrong. header: bytes as they are, else made JSON."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def as_float32(dtype: str, data: bytes) -> np.ndarray:
    """float32 values of F32, F16 or BF16 bytes."""
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[dtype]).astype(np.float32)


def values(weight: Weight) -> np.ndarray:
    """float32 values of a weight as the model sees it: whole stored tensor, row order applied."""
    with open(weight.path, "rb") as file:
        file.seek(weight.offset)
        data = file.read(weight.size_bytes)
    rows = as_float32(weight.format.upper(), data).reshape(-1, *weight.shape[1:])
    if weight.order:
        return rows[weight.order.index(weight.shape[0])]
    return rows.reshape(weight.shape)


def tiny(part: str) -> dict[str, np.ndarray]:
    """The tensors of a part of the tiny checkpoint, as float32, by the names in the file."""
    path = next((TINY / part).glob("*.safetensors"))
    return {name: as_float32(dtype, data).reshape(shape) for name, (dtype, shape, data) in stored(path).items()}


def copy_tiny(folder: Path) -> Path:
    """A writable copy of the tiny checkpoint, without the second transformer."""
    shutil.copytree(TINY, folder, ignore=shutil.ignore_patterns("transformer_ref"))
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


def _fuse(tensors: dict, before: str, after: str, heads: int, layout: str) -> tuple[str, list[int], bytes]:
    """One tensor of q, k and v rows, per head or all of each."""
    parts = [tensors[f"{before}{each}{after}"] for each in ("to_q", "to_k", "to_v")]
    dtype, shape, _ = parts[0]
    rows = [np.frombuffer(data, np.uint8).reshape(heads, -1) for _, _, data in parts]
    order = np.stack(rows, axis=1) if layout == "interleaved" else np.stack([each.reshape(-1) for each in rows])
    return dtype, [3 * shape[0], *shape[1:]], order.tobytes()


def _swap_halves(tensor: tuple[str, list[int], bytes]) -> tuple[str, list[int], bytes]:
    dtype, shape, data = tensor
    return dtype, shape, data[len(data) // 2 :] + data[: len(data) // 2]


def native_transformer(tensors: dict, heads: int, layout: str, prefix: str = "") -> dict:
    """A transformer in the release's own names.   source: spec §17.1"""
    begin = {
        "transformer_blocks.": "blocks.", "token_refiner.refiner_blocks.": "token_refiner.blocks.",
        "proj_in.": "video_patch_proj.",
        "audio_proj_in.": "audio_patch_proj.", "context_embedder.": "condition_proj.",
        "norm_out.norm.": "final_layer.norm.",
        "norm_out.linear.": "final_layer.adaln_proj.linear.", "proj_out.": "final_layer.video_out.",
        "audio_proj_out.": "final_layer.audio_out.", "time_embedder.linear_1.": "time_embedder.proj_in.",
        "time_embedder.linear_2.": "time_embedder.proj_out.",
    }  # fmt: skip
    inside = {"norm_q.": "q_norm.", "norm_k.": "k_norm.", "to_out.0.": "out_proj.", "ff.net.2.": "mlp.fc2."}
    made = {prefix + "rope.inv_freq": ("F32", [4], b"\0" * 16)}
    for name, tensor in tensors.items():
        new = next((theirs + name[len(ours) :] for ours, theirs in begin.items() if name.startswith(ours)), name)
        for ours, theirs in inside.items():
            new = new.replace(ours, theirs)
        if ".attn.to_q." in name:
            before, after = name.split("to_q")
            made[prefix + new.replace("to_q", "qkv_proj")] = _fuse(tensors, before, after, heads, layout)
        elif ".ff.net.0.proj." in name:
            made[prefix + new.replace("ff.net.0.proj", "mlp.fc1")] = _swap_halves(tensor)
        elif ".attn.to_k." not in name and ".attn.to_v." not in name:
            made[prefix + new] = tensor
    return made


def native_video_vae(tensors: dict, heads: int) -> dict:
    """A video VAE in the release's own names.   source: spec §17.3"""
    plain = {
        "encoder.down_blocks.": "encoder.down.", ".resnets.": ".block.", ".conv_shortcut.": ".nin_shortcut.",
        ".downsamplers.0.": ".downsample.", "decoder.proj_in.": "decoder.x_embedder.", ".to_out.0.": ".to_out.",
        ".ff.net.2.": ".ff.w2.",
    }  # fmt: skip
    made = {"decoder.mask_token": ("F32", [1, 1, 32], b"\0" * 128)}
    for name, tensor in tensors.items():
        new = name
        for ours, theirs in plain.items():
            new = new.replace(ours, theirs)
        if ".attn.to_q." in name:
            before, after = name.split("to_q")
            made[new.replace("to_q", "to_qkv")] = _fuse(tensors, before, after, heads, "interleaved")
        elif ".ff.net.0.proj." in name:
            made[new.replace("ff.net.0.proj", "ff.w1")] = _swap_halves(tensor)
        elif ".attn.to_k." not in name and ".attn.to_v." not in name:
            made[new] = tensor
    return made


def original_tree(folder: Path) -> Path:
    """The whole tiny checkpoint as MiniMax lays it out, below FL2VA/.   source: spec §2, §17"""
    root = folder / "FL2VA"
    config = {
        name: json.loads((TINY / name / "config.json").read_text()) for name in ("transformer", "vae", "audio_vae")
    }
    source = {name: stored(next((TINY / name).glob("*.safetensors"))) for name in ("transformer", "vae", "audio_vae")}
    write(root / "transformer/model.safetensors", native_transformer(source["transformer"], 3, "interleaved"))
    names = {
        "num_refiner_layers": "token_refiner_num_layers", "ffn_dim": "ffn_hidden_size", "in_channels": "latents_dim",
        "audio_in_channels": "audio_latents_dim", "freq_dim": "timestep_input_dim",
        "time_embed_hidden_dim": "time_embed_hidden_size",
        "rope_freq_dim": "rope_inv_freq_len",
    }  # fmt: skip
    dit = {names.get(name, name): value for name, value in config["transformer"].items()}
    (root / "transformer/config.json").write_text(json.dumps(dit))

    vae = config["vae"]
    write(root / "video_vae/source/model.safetensors", native_video_vae(source["vae"], 2))
    inner = {
        "ch": 4, "ch_mult": [width // 4 for width in vae["block_out_channels"]], "z_channels": 24, "embed_dim": 24,
        "in_channels": 3,
        "out_ch": 3, "num_res_blocks": 2, "space_down": vae["spatial_downsample_factors"], "padding_mode": "reflect",
        "time_down": vae["temporal_downsample_factors"], "norm_num_groups": 4,
        "vit_decoder_kwargs": {"num_layers": 2, "heads": 2, "dim_head": 16, "rope_theta": 100, "rope_dim_ratio": 0.75},
    }  # fmt: skip
    outer = {"vae_clip_length": 17, "vae_token_drop": 3, "vae_tile_size": 256, "vae_tile_overlap_min": 64}
    outer |= {"source_path": "source", "source_safetensors_path": "model.safetensors", "auto_map": {"AutoModel": "x.Y"}}
    outer |= {name: vae[name] for name in ("latents_mean", "latents_std")}
    (root / "video_vae/source/config.json").write_text(json.dumps(inner))
    (root / "video_vae/config.json").write_text(json.dumps(outer))

    audio = config["audio_vae"]
    write(root / "audio_vae/model.safetensors", source["audio_vae"])
    kwargs = {
        name: audio[name] for name in ("encoder_dim", "encoder_rates", "latent_dim", "decoder_dim", "decoder_rates")
    }
    kwargs |= {"vae_latent_channels": 32, "sample_rate": 1600, "decoder_type": "bigvgan", "attn_proj": True}
    (root / "audio_vae/metadata.json").write_text(json.dumps({"metadata": {"kwargs": kwargs}}))
    statistics = {name: audio[name] for name in ("latents_mean", "latents_std")}
    statistics |= {"num_attention_heads": 2}  # the release has its fixed 8; the tiny one cannot
    (root / "audio_vae/config.json").write_text(json.dumps({"latent_channels": 32, "sample_rate": 1600, **statistics}))

    for name in ("text_encoder", "tokenizer", "processor"):
        shutil.copytree(TINY / name, root / name)
    index = {
        "_class_name": "MiniMaxH3Pipeline",
        "scheduler": None,
        "_minimax_h3": {
            "schema_version": 1,
            "partition": "fl2va",
            "tasks": ["t2va", "fl2va"],
            "sigma_shift_scales": {"video": 12.0, "audio": 3.0},
        },
    }
    (root / "model_index.json").write_text(json.dumps(index))
    return folder
