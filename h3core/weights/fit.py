"""The checks before anything heavy: every tensor a part needs is there in the right shape, the parts fit together."""

from __future__ import annotations

from h3core.weights.model_files import ModelError, ModelFiles, Part, shown
from h3core.weights.shapes import SHAPES, folded


def require_tensors(part: Part) -> None:
    """Compare a part's tensors with its config.

    raises: ModelError naming the first tensor that is missing or has another shape.
    """
    where = shown(part.files[0]) if len(part.files) == 1 else part.files[0].parent.name if part.files else part.kind
    try:
        shapes = SHAPES[part.kind](part.config)
    except ValueError as error:  # lists of different lengths that belong together
        raise ModelError(
            f"{where}: its config has lists of different lengths; use the config that came with the weights."
        ) from error
    missing = []
    for name, shape in shapes.items():
        if name not in part.weights:
            if name.endswith(("weight_v", "weight_g")) and folded(name) in part.weights:
                name, shape = folded(name), shapes[folded(name) + "_v"]
            else:
                missing.append(name)
                continue
        got = part.weights[name].shape
        if got != shape:
            raise ModelError(
                f"{where}: {name} has shape {list(got)}, its config needs {list(shape)}; "
                "weights and config belong to different models."
            )
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(
            f"{where} has no {missing[0]}{more}; the file is incomplete or another part, download it again."
        )


def require_fit(model: ModelFiles) -> None:
    """The parts fit each other.

    raises: ModelError naming the two that do not.
    """
    dit, text = model.transformer.config, model.text_encoder.config
    if list(dit["patch_size"]) != [1, 2, 2] or 6 * dit["rope_freq_dim"] > dit["attention_head_dim"]:
        raise ModelError(
            f"the transformer's config has patches of {list(dit['patch_size'])} and 6 times {dit['rope_freq_dim']} "
            f"rotary channels in a head of {dit['attention_head_dim']}; use the config that came with the weights."
        )
    if dit["text_dim"] != text["hidden_size"]:
        raise ModelError(
            f"the text encoder gives {text['hidden_size']} values a token, the transformer takes {dit['text_dim']}; "
            "use the text encoder that belongs to this transformer."
        )
    if model.manifest.tap > text["num_hidden_layers"]:
        raise ModelError(
            f"the text encoder has {text['num_hidden_layers']} layers, the model reads the state after layer "
            f"{model.manifest.tap}; use the text encoder that belongs to this model."
        )
    for field, part, word in (
        ("in_channels", model.video_vae, "video"),
        ("audio_in_channels", model.audio_vae, "audio"),
    ):
        if dit[field] != part.config["latent_channels"]:
            raise ModelError(
                f"the {word} VAE has {part.config['latent_channels']} latent channels, the transformer {dit[field]}; "
                f"use the {word} VAE that belongs to this transformer."
            )
