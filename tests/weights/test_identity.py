"""Digests: the same for the same bytes anywhere, another for any change that a cache must notice."""

import hashlib
import os

from h3core.weights.identify import open_model
from h3core.weights.identity import MIB, SAMPLES, file_identity, file_sha256
from tests.golden_files import TINY
from tests.weights.files import copy_tiny


def test_a_small_file_is_read_whole(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(os.urandom(3 * MIB))
    first = file_identity(path)
    path.rename(tmp_path / "b")
    assert file_identity(tmp_path / "b") == first
    data = bytearray((tmp_path / "b").read_bytes())
    data[2 * MIB + 5] ^= 1
    (tmp_path / "c").write_bytes(data)
    assert file_identity(tmp_path / "c") != first


def test_a_large_file_is_sampled_from_the_header_to_its_last_byte(tmp_path):
    path, size = tmp_path / "large", SAMPLES * MIB * 3  # sparse: costs no disk
    header = (100).to_bytes(8, "little") + b"x" * 100

    def identity(*changes):
        path.unlink(missing_ok=True)
        with open(path, "wb") as file:
            file.truncate(size)
            file.write(header)
            for offset in changes:
                file.seek(offset)
                file.write(b"!")
        return file_identity(path)

    plain = identity()
    assert identity() == plain
    assert len({plain, identity(50), identity(size - 1), identity(1000)}) == 4


def test_a_longer_file_is_another(tmp_path):
    (tmp_path / "a").write_bytes(bytes(10))
    (tmp_path / "b").write_bytes(bytes(11))
    assert file_identity(tmp_path / "a") != file_identity(tmp_path / "b")


def test_a_part_keeps_its_identity_when_it_moves_and_loses_it_with_its_config(tmp_path):
    folder = copy_tiny(tmp_path / "tiny")
    first = {part.kind: part.identity for part in open_model(TINY).parts}
    assert len(set(first.values())) == 4
    assert {part.kind: part.identity for part in open_model(folder).parts} == first
    path = folder / "transformer/config.json"
    path.write_text(path.read_text().replace('"rope_theta": 10000.0', '"rope_theta": 20000.0'))
    assert open_model(folder).transformer.identity != first["transformer"]


def test_the_full_digest_with_progress(tmp_path):
    path, seen = tmp_path / "a", []
    path.write_bytes(os.urandom(9 * MIB))
    assert (
        file_sha256(path, lambda done, total: seen.append((done, total)))
        == hashlib.sha256(path.read_bytes()).hexdigest()
    )
    assert seen == [(8 * MIB, 9 * MIB), (9 * MIB, 9 * MIB)]
