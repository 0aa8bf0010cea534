"""Where a film's time went, and the request that makes it again."""

from h3core.studio import gallery
from h3core.studio.studio import Studio
from tests.golden_files import TINY
from tests.studio.test_executor import STAND_IN


def test_timeline():
    said = [("phase", "load", 0.0), ("phase", "text", 1.0), ("phase", "denoise", 2.0), ("step", 1, 3.0)]
    said += [("phase", "denoise", 3.5), ("step", 2, 4.0), ("phase", "video", 5.0), ("finished", "", 7.0)]
    messages = [
        {"at": 100 + at, "type": kind, "peak_bytes": 7} | ({"phase": value} if kind == "phase" else {"step": value})
        for kind, value, at in said
    ]
    times = gallery.timeline(messages)
    assert [(each.name, each.start_s, each.end_s) for each in times.phases] == [
        *(("load", 0.0, 1.0), ("text", 1.0, 2.0), ("denoise", 2.0, 5.0), ("video", 5.0, 7.0)),
    ]
    assert [(each.name, each.start_s, each.end_s) for each in times.steps] == [("1", 2.0, 3.0), ("2", 3.0, 4.0)]
    assert (times.total_s, times.peak_bytes) == (7.0, 7)
    assert gallery.timeline([]) == gallery.Timeline()


def test_again_after_a_restart(tmp_path):
    with Studio(tmp_path, worker=STAND_IN) as studio:
        values = {"model": str(TINY), "size": "64x32", "frames": 22, "steps": 3}
        made = studio.wait(studio.add(values, prompt='a "b"\n猫'))
    with Studio(tmp_path, worker=STAND_IN) as studio:
        job = studio.run(made.run)
        assert [each["type"] for each in studio.history(job)][-1] == "finished"
        same = studio.parse(gallery.again(job, new_seed=False))
        assert (same.prompt, same.size, same.steps, same.seed) == ('a "b"\n猫', "64x32", 3, made.seed)
        assert same.output is None and studio.parse(gallery.again(job, new_seed=True)).seed is None
