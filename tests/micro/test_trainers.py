"""The training modules against the reference's classes: what trains must be what runs."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch and diffusers (optional extra)")
pytest.importorskip("diffusers", reason="needs torch and diffusers (optional extra)")

from h3core.micro import transformer, video_vae, world  # noqa: E402


def relative(a, b) -> float:
    return float((a - b).norm() / b.norm())


@torch.no_grad()
def test_the_area_encoder_is_an_area_average():
    frames = world.draw_shot(world.random_shot(np.random.default_rng(3), 39))
    moments = video_vae.encode(video_vae.build().eval(), video_vae.to_pixels(frames[None]))[0]
    assert moments.shape == (48, 12, 8, 8)
    assert relative(moments[:24], torch.from_numpy(video_vae.area_latents(frames))) < 5e-3


@torch.no_grad()
def test_the_chunk_decoder_is_the_references():
    model, z = video_vae.build().eval(), torch.randn(1, 24, 7, 2, 3)
    want = model.decoder(model.post_quant_conv(z))[:, :, video_vae.KEPT]
    assert relative(video_vae.decode_chunk(model, z), want) < 1e-5


@torch.no_grad()
def test_the_batched_forward_is_the_references():
    torch.manual_seed(0)
    model = transformer.build().eval()
    for p in model.parameters():
        p += 0.02 * torch.randn_like(p)
    lay = transformer.layout(9, 22, 128, 128)
    rows = lay.text + lay.audio + lay.video
    video, audio, text = torch.randn(2, lay.video, 96), torch.randn(2, lay.audio, 32), torch.randn(2, 9, 128)
    times = torch.tensor([[0.3, 0.4], [0.7, 0.8]])
    got = transformer.forward(model, video, audio, text, times, lay)
    counts = torch.tensor([lay.text, lay.audio, lay.video])
    for i in range(2):
        want = model(
            hidden_states=video[i : i + 1],
            audio_hidden_states=audio[i : i + 1],
            encoder_hidden_states=text[i : i + 1],
            timestep=times[i],
            timestep_indices=torch.tensor([0, 1, 0]).repeat_interleave(counts),
            token_tags=torch.tensor([1, 2, 0]).repeat_interleave(counts),
            position_ids=lay.positions,
            video_indices=torch.arange(lay.text + lay.audio, rows),
            audio_indices=torch.arange(lay.text, lay.text + lay.audio),
            text_indices=torch.arange(lay.text),
            return_dict=False,
        )
        for ours, theirs in zip(got, want, strict=True):
            assert relative(ours[i], theirs[0]) < 1e-5


def test_patchify_round_trip():
    z = torch.randn(2, 24, 7, 8, 8)
    assert torch.equal(transformer.unpatchify(transformer.patchify(z), 7, 8, 8), z)
