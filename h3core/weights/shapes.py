"""Which tensors each part must have, with their shapes, from its canonical config.

source: spec §9.2, §6.3, §6.4, §11.2, §11.4, §12.2, §12.3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Shapes = dict[str, tuple[int, ...]]
Config = dict[str, Any]


def transformer_shapes(c: Config) -> Shapes:
    d, ffn, dim = c["hidden_size"], c["ffn_dim"], c["attention_head_dim"]
    inner, time = c["num_attention_heads"] * dim, c["time_embed_dim"]
    row = c["in_channels"] * c["patch_size"][0] * c["patch_size"][1] * c["patch_size"][2]
    shapes: Shapes = {}

    def linear(name: str, n: int, k: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (n, k), (n,)

    linear("proj_in", d, row)
    linear("audio_proj_in", d, c["audio_in_channels"])
    linear("context_embedder", d, c["text_dim"])
    if c.get("adaln_grid"):  # pruned
        shapes["adaln_t_table"] = (c["adaln_grid"], time)
    else:
        linear("time_embedder.linear_1", c["time_embed_hidden_dim"], c["freq_dim"])
        linear("time_embedder.linear_2", time, c["time_embed_hidden_dim"])
    linear("norm_out.linear", 2 * d, time)
    linear("proj_out", row, d)
    linear("audio_proj_out", c["audio_in_channels"], d)
    shapes["norm_out.norm.weight"] = shapes["token_refiner.final_norm.weight"] = (d,)
    refiner = [f"token_refiner.refiner_blocks.{i}." for i in range(c["num_refiner_layers"])]
    trunk = [f"transformer_blocks.{i}." for i in range(c["num_layers"])]
    for block in refiner + trunk:
        shapes |= {
            f"{block}norm1.weight": (d,),
            f"{block}attn.to_q.weight": (inner, d),
            f"{block}attn.to_k.weight": (inner, d),
            f"{block}attn.to_v.weight": (inner, d),
            f"{block}attn.norm_q.weight": (dim,),
            f"{block}attn.norm_k.weight": (dim,),
            f"{block}attn.to_out.0.weight": (d, inner),
            f"{block}norm2.weight": (d,),
            f"{block}ff.net.0.proj.weight": (2 * ffn, d),
            f"{block}ff.net.2.weight": (d, ffn),
        }
    for block in trunk:
        linear(f"{block}adaln_proj.linear", 18 * d, time)
    return shapes


def text_encoder_shapes(c: Config) -> Shapes:
    d, ffn, dim = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * dim, c["num_key_value_heads"] * dim
    shapes: Shapes = {"embed_tokens.weight": (c["vocab_size"], d)}
    for i in range(c["num_hidden_layers"]):
        layer = f"layers.{i}."
        shapes |= {
            f"{layer}input_layernorm.weight": (d,),
            f"{layer}self_attn.q_proj.weight": (q, d),
            f"{layer}self_attn.k_proj.weight": (kv, d),
            f"{layer}self_attn.v_proj.weight": (kv, d),
            f"{layer}self_attn.o_proj.weight": (d, q),
            f"{layer}self_attn.q_norm.weight": (dim,),
            f"{layer}self_attn.k_norm.weight": (dim,),
            f"{layer}post_attention_layernorm.weight": (d,),
            f"{layer}mlp.gate_proj.weight": (ffn, d),
            f"{layer}mlp.up_proj.weight": (ffn, d),
            f"{layer}mlp.down_proj.weight": (d, ffn),
        }
    return shapes | (_vision_shapes(c["vision_config"]) if c.get("vision_config") else {})


def _vision_shapes(c: Config) -> Shapes:
    d, ffn, merged = c["hidden_size"], c["intermediate_size"], c["hidden_size"] * c["spatial_merge_size"] ** 2
    shapes: Shapes = {
        "visual.patch_embed.proj.weight": (
            d,
            c["in_channels"],
            c["temporal_patch_size"],
            c["patch_size"],
            c["patch_size"],
        ),
        "visual.patch_embed.proj.bias": (d,),
        "visual.pos_embed.weight": (c["num_position_embeddings"], d),
    }

    def both(name: str, *shape: int) -> None:
        shapes[f"visual.{name}.weight"], shapes[f"visual.{name}.bias"] = shape, shape[:1]

    for i in range(c["depth"]):
        both(f"blocks.{i}.norm1", d)
        both(f"blocks.{i}.attn.qkv", 3 * d, d)
        both(f"blocks.{i}.attn.proj", d, d)
        both(f"blocks.{i}.norm2", d)
        both(f"blocks.{i}.mlp.linear_fc1", ffn, d)
        both(f"blocks.{i}.mlp.linear_fc2", d, ffn)
    mergers = {"merger": d} | {f"deepstack_merger_list.{i}": merged for i in range(len(c["deepstack_visual_indexes"]))}
    for name, norm in mergers.items():
        both(f"{name}.norm", norm)
        both(f"{name}.linear_fc1", merged, merged)
        both(f"{name}.linear_fc2", c["out_hidden_size"], merged)
    return shapes


def video_vae_shapes(c: Config) -> Shapes:
    shapes: Shapes = {}

    def both(name: str, *shape: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = shape, shape[:1]

    widths, latent = c["block_out_channels"], c["latent_channels"]
    width = widths[0]
    both("encoder.conv_in", width, c["in_channels"], 3, 3, 3)
    factors = zip(widths, c["spatial_downsample_factors"], c["temporal_downsample_factors"], strict=True)
    for level, (wide, space, time) in enumerate(factors):
        for j in range(c["layers_per_block"]):
            block = f"encoder.down_blocks.{level}.resnets.{j}"
            both(f"{block}.norm1", width)
            both(f"{block}.conv1", wide, width, 3, 3, 3)
            both(f"{block}.norm2", wide)
            both(f"{block}.conv2", wide, wide, 3, 3, 3)
            if width != wide:
                both(f"{block}.conv_shortcut", wide, width, 1, 1, 1)
            width = wide
        if space > 1 or time > 1:
            both(f"encoder.down_blocks.{level}.downsamplers.0.conv", wide, wide, 3, 3, 3)
    both("encoder.norm_out", width)
    both("encoder.conv_out", 2 * latent, width, 3, 3, 3)
    both("quant_conv", 2 * latent, 2 * latent, 1, 1, 1)
    both("post_quant_conv", latent, latent, 1, 1, 1)

    d = c["decoder_num_attention_heads"] * c["decoder_attention_head_dim"]
    ffn, time, space = d * c["decoder_ffn_mult"], 1, 1
    for factor in c["temporal_downsample_factors"]:
        time *= factor
    for factor in c["spatial_downsample_factors"]:
        space *= factor
    both("decoder.proj_in", d, latent)
    shapes["decoder.register_tokens"] = (1, c["decoder_num_register_tokens"], d)
    for i in range(c["decoder_num_layers"]):
        block = f"decoder.transformer_blocks.{i}"
        for name in ("to_q", "to_k", "to_v", "to_out.0"):
            both(f"{block}.attn.{name}", d, d)
        both(f"{block}.ff.net.0.proj", 2 * ffn, d)
        both(f"{block}.ff.net.2", d, ffn)
        for name in ("norm1.weight", "norm2.weight", "scale1", "scale2"):
            shapes[f"{block}.{name}"] = (d,)
    both("decoder.norm_out", d)
    both("decoder.proj_out", c["out_channels"] * time * space * space, d)
    return shapes


def audio_vae_shapes(c: Config) -> Shapes:
    """Convolutions with weight norm appear as `weight_v`; a file may hold their product instead (`folded`)."""
    d, latent, dim = c["latent_dim"], c["latent_channels"], c["encoder_dim"]
    shapes: Shapes = {}

    def normed(name: str, *shape: int, bias: int | None = -1) -> None:
        shapes[f"{name}.weight_v"], shapes[f"{name}.weight_g"] = shape, (shape[0], *[1] * (len(shape) - 1))
        if bias is not None:
            shapes[f"{name}.bias"] = (shape[0] if bias < 0 else bias,)

    def both(name: str, *shape: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = shape, shape[:1]

    normed("encoder.block.0", dim, 1, 7)
    for stage, rate in enumerate(c["encoder_rates"], 1):
        block = f"encoder.block.{stage}.block"
        for unit in range(3):
            shapes[f"{block}.{unit}.block.0.alpha"] = shapes[f"{block}.{unit}.block.2.alpha"] = (1, dim, 1)
            normed(f"{block}.{unit}.block.1", dim, dim, 7)
            normed(f"{block}.{unit}.block.3", dim, dim, 1)
        shapes[f"{block}.3.alpha"] = (1, dim, 1)
        normed(f"{block}.4", 2 * dim, dim, 2 * rate)
        dim *= 2
    last = len(c["encoder_rates"])
    shapes[f"encoder.block.{last + 1}.alpha"] = (1, dim, 1)
    normed(f"encoder.block.{last + 2}", d, dim, 3)

    shapes |= {"pre_block.attn.qkv.weight": (3 * d, d), "pre_block.attn.q_bias": (d,), "pre_block.attn.v_bias": (d,)}
    inside: Shapes = {
        "norm1": (d,),
        "norm3": (d,),
        "norm2": (latent,),
        "attn.proj": (latent, latent),
        "proj": (latent, d),
    }
    inside |= {"mlp.norm": (latent,), "mlp.w2": (latent, 2 * latent)}
    inside |= {"mlp.w0": (2 * latent, latent), "mlp.w1": (2 * latent, latent)}
    for name, shape in inside.items():
        both(f"pre_block.{name}", *shape)
    both("mean_proj", latent, latent, 1)
    both("logs_proj", latent, latent, 1)
    both("dec_in_proj", d, latent, 1)

    def activation(name: str, width: int) -> None:
        shapes[f"{name}.act.alpha"] = shapes[f"{name}.act.beta"] = (width,)
        shapes[f"{name}.upsample.filter"] = shapes[f"{name}.downsample.lowpass.filter"] = (1, 1, 12)

    width = c["decoder_dim"]
    normed("decoder.conv_pre", width, d, 7)
    kinds = list(zip(c["resblock_kernel_sizes"], c["resblock_dilation_sizes"], strict=True))
    for stage, (_, kernel) in enumerate(zip(c["decoder_rates"], c["decoder_kernel_sizes"], strict=True)):
        normed(f"decoder.ups.{stage}.0", width, width // 2, kernel, bias=width // 2)  # transposed: input channels first
        width //= 2
        for j, (size, dilations) in enumerate(kinds):
            block = f"decoder.resblocks.{len(kinds) * stage + j}"
            for a in range(len(dilations)):
                normed(f"{block}.convs1.{a}", width, width, size)
                normed(f"{block}.convs2.{a}", width, width, size)
                activation(f"{block}.activations.{2 * a}", width)
                activation(f"{block}.activations.{2 * a + 1}", width)
    activation("decoder.activation_post", width)
    normed("decoder.conv_post", 1, width, 7, bias=None)
    return shapes


def folded(name: str) -> str:
    """The name under which a file without weight norm holds the product of `weight_g` and `weight_v`."""
    return name.removesuffix("_v").removesuffix("_g")


SHAPES: dict[str, Callable[[Config], Shapes]] = {
    "transformer": transformer_shapes,
    "text_encoder": text_encoder_shapes,
    "video_vae": video_vae_shapes,
    "audio_vae": audio_vae_shapes,
}
