"""Whole films from a seed, live: random small models of several shapes, and h3-micro itself, in the reference's classes and in ours."""

from pathlib import Path

import numpy as np
import pytest

from h3core.engine.cache import Cache
from h3core.engine.pipeline import Engine, Generation, Run
from h3core.engine.plan import Settings
from h3core.kernels.table import Kernels
from h3core.model.layout import rows_to_audio, unpatchify
from h3core.model.video_vae import to_pixels
from h3core.weights.identify import open_model
from tests.engine.test_golden_runs import decoded
from tests.golden_files import TINY, WHOLE_RUN, compare, compare_uint8

pytestmark = pytest.mark.reference
MICRO = Path(__file__).parents[2] / "h3core" / "micro" / "model"


def our_film(tree: Path, folder: Path, **wanted):
    """Latents, pixels and sound of our engine in precision exact; wanted: fields of Settings."""
    settings = Settings(precision="exact", noise_guard=False, guidance=1.0, **wanted)
    run = Run("film", settings, folder / "run", folder / "film.mp4")
    engine = Engine(Kernels(threads=2), Cache(folder / "cache"))
    with Generation(engine, run, open_model(tree), lambda *_, **__: None, lambda: False) as made:
        made.prepare()
        state = made.denoise(made.passes(made.embeddings()), made.modulation(), made.first_state())
        video, audio = unpatchify(state.video_rows, *made.latent), rows_to_audio(state.audio_rows)
        return video, audio, to_pixels(decoded(made, video)), made.sound(audio)


def shapes():
    """Unlike dimensions on every axis that a config can move."""
    from tests.reference.reference import Shape

    return {
        "plain": Shape(seed=1),
        "wide": Shape(
            seed=2, tap=2, shifts=(6.0, 3.0),
            transformer={"num_attention_heads": 2, "attention_head_dim": 64, "hidden_size": 96, "num_layers": 3,
                         "num_refiner_layers": 1, "ffn_dim": 160, "rope_freq_dim": 8, "text_dim": 64},
            text={"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16},
            vae={"decoder_num_layers": 3, "decoder_num_attention_heads": 2, "decoder_attention_head_dim": 32,
                 "layers_per_block": 2},
        ),
        "narrow": Shape(
            seed=3, tap=5, shifts=(3.0, 1.5),
            transformer={"num_attention_heads": 5, "attention_head_dim": 16, "hidden_size": 40, "num_layers": 4,
                         "ffn_dim": 48, "rope_freq_dim": 2, "time_embed_dim": 16},
            vae={"decoder_num_register_tokens": 2, "decoder_ffn_mult": 2},
            audio_vae={"decoder_dim": 64, "encoder_dim": 8, "latent_dim": 128},
        ),
    }


RUNS = [  # shape, prompt, seed, frames, width, height, steps
    ("plain", "A red fox walks through fresh snow.", 5, 22, 64, 64, 4),
    ("wide", "一只红色的狐狸走过雪地。<d>[English] It's 42!</d>", 2**40 + 17, 39, 96, 32, 3),
    ("narrow", "Rain 🌧️ then\n\n  silence", 0, 56, 32, 64, 6),
]


@pytest.mark.parametrize(("shape", "prompt", "seed", "frames", "width", "height", "steps"), RUNS)
def test_random_small_models(tmp_path, shape, prompt, seed, frames, width, height, steps):
    from tests.reference.reference import random_tree, reference_film

    tree = random_tree(tmp_path / "tree", shapes()[shape], TINY / "tokenizer")
    size = {"seed": seed, "frames": frames, "width": width, "height": height, "steps": steps}
    want = reference_film(tree, prompt, **size)
    video, audio, pixels, sound = our_film(tree, tmp_path, prompt=prompt, **size)
    compare("final latents", video, want.latents, WHOLE_RUN)
    compare("final audio latents", audio, want.audio_latents, WHOLE_RUN)
    compare_uint8("pixels", pixels, want.pixels)
    compare("sound", sound, want.sound, WHOLE_RUN)


@pytest.mark.skipif(not (MICRO / "model_index.json").exists(), reason="h3core/micro/model is not there")
def test_h3_micro_in_the_reference_classes(tmp_path):
    """Same prompt and seed, same film: PSNR of the decoded frames at least 45 dB."""
    from tests.reference.reference import reference_film

    size = {"seed": 7, "frames": 22, "width": 128, "height": 128, "steps": 8}
    prompt = "A red ball moves to the right in front of a night sky."
    want = reference_film(MICRO, prompt, **size)
    video, audio, pixels, sound = our_film(MICRO, tmp_path, prompt=prompt, **size)
    compare("final latents", video, want.latents, WHOLE_RUN)
    compare("final audio latents", audio, want.audio_latents, WHOLE_RUN)
    error = np.mean((pixels.astype(np.float64) - want.pixels) ** 2)
    assert error == 0 or 10 * np.log10(255**2 / error) >= 45
    compare("sound", sound, want.sound, WHOLE_RUN)
