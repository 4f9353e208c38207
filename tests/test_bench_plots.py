"""Pictures are drawn of whatever a run holds, the same for the same run, and show its figures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from draftproof.bench.plots import draw, draw_sweep, require_able
from draftproof.bench.record import AGAIN, PLAIN, Bound, Depth, Run
from draftproof.bench.runner import Answer, Answers, Measurement, Setting
from draftproof.bench.sweep import SweepPoint
from draftproof.stats import Stats


def stats(name: str) -> Stats:
    found = Stats(rounds=80, emitted=80)
    if name not in (PLAIN, AGAIN):
        found = Stats(rounds=40, drafts=40, drafted=80, accepted=40, emitted=80)
        found.drafted_per_position, found.accepted_per_position = [40, 40], [30, 10]
        found.reached_per_position = [40, 30]
    found.seconds |= {"prefill": 0.1, "propose": 0.1, "forward": 0.5, "verify": 0.1, "commit": 0.1, "total": 0.9}
    return found


def run_of(*systems: str, questions: int = 4, settings: tuple[Setting, ...] = (Setting(),)) -> Run:
    kinds = [{"name": name, "kind": "peer" if name.startswith("hf") else "ours"} for name in systems]
    asked = [{"id": f"q{i}", "category": f"kind {i % 2}", "prompt_tokens": 3} for i in range(questions)]
    run = Run({}, {}, kinds, list(settings), asked)
    for at in range(len(settings)):
        for i in range(questions):
            for place, name in enumerate(systems):
                counted = None if name.startswith("hf") else stats(name).as_dict()
                answer = Answer(tuple(range(80)), ((0.1, 1), (0.2, 79)), counted)
                run.measurements.append(Measurement(at, (i,), name, 0, Answers(1.0 + 0.1 * place + i, (answer,))))
    return run


@pytest.fixture
def words(monkeypatch) -> list[str]:
    """What is written in a picture: its drawn glyphs hold no text."""
    text = pytest.importorskip("matplotlib.text").Text
    found: list[str] = []
    drawn = text.draw

    def spy(self, renderer):
        found.append(self.get_text())
        return drawn(self, renderer)

    monkeypatch.setattr(text, "draw", spy)
    return found


def point(depth: int, speed_up: float = 1.5, series: str = "suffix", **given) -> SweepPoint:
    rest = {"label": f"K={depth}", "temperature": 0.0, "low": 1.4, "high": 1.6, "predicted": 1.55} | given
    return SweepPoint(depth=depth, speed_up=speed_up, tokens_per_pass=2.0, series=series, **rest)


def test_a_run_is_drawn_with_its_systems_categories_and_phases(tmp_path, words):
    run = run_of(PLAIN, AGAIN, "suffix", "hf plain", questions=8, settings=(Setting(), Setting(1.0, batch=1)))
    run.bounds.append(Bound("suffix", 0, (Depth(40, 30, 35.0), Depth(30, 10, 12.0))))
    draw(run, tmp_path / "run.png")
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")
    assert {"suffix", "hf plain", "kind 0", "kind 1", "all", "forward", "not told apart"} <= set(words)
    assert {"noise: plain against itself", "most that any lossless\nrule could accept"} <= set(words)
    assert "prefill, up to the\nfirst forward's end" in words
    assert {"greedy, bfloat16, 8 prompts", "temperature 1, bfloat16, 8 prompts"} <= set(words)


def test_the_same_run_is_the_same_picture_and_undated(tmp_path):
    pytest.importorskip("matplotlib")
    run = run_of(PLAIN, AGAIN, "suffix", "hf plain")
    for name in ("one.svg", "two.svg"):
        draw(run, tmp_path / name)
    one, two = ((tmp_path / name).read_text() for name in ("one.svg", "two.svg"))
    assert one == two
    assert "<dc:date>" not in one
    assert sorted(each.name for each in tmp_path.iterdir()) == ["one.svg", "two.svg"]


def test_a_picture_leaves_the_readers_settings_alone(tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    with matplotlib.rc_context({"font.size": 23.0}):
        before = dict(matplotlib.rcParams)
        draw(run_of(PLAIN, "suffix"), tmp_path / "run.svg")
        assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("systems", [(PLAIN,), (PLAIN, AGAIN), (PLAIN, "hf plain"), (PLAIN, "suffix")])
def test_one_question_is_drawn_whoever_answered(tmp_path, systems):
    pytest.importorskip("matplotlib")
    draw(run_of(*systems, questions=1), tmp_path / "run.svg")
    assert (tmp_path / "run.svg").stat().st_size


@pytest.fixture
def curves(monkeypatch) -> dict[str, dict[str, tuple[float, ...]]]:
    """By style, then by label: the heights of what was drawn as a curve."""
    line = pytest.importorskip("matplotlib.lines").Line2D
    found: dict[str, dict[str, tuple[float, ...]]] = {}
    drawn = line.draw

    def spy(self, renderer):
        if self.axes is not None:  # legends draw lines, too
            found.setdefault(self.get_linestyle(), {})[self.get_label()] = tuple(self.get_ydata())
        return drawn(self, renderer)

    monkeypatch.setattr(line, "draw", spy)
    return found


def test_what_drafts_of_fixed_lengths_did_is_not_drawn_as_the_systems_own(tmp_path, curves):
    run = run_of(PLAIN, "auto")
    run.bounds.append(Bound("auto", 0, (Depth(40, 20, 36.0), Depth(30, 6, 12.0))))
    draw(run, tmp_path / "run.svg")
    assert curves["-"]["auto"] == (1 / 2, 1 / 5)
    curves.clear()
    run.systems[1]["speculation"] = {"controller": "cost"}
    draw(run, tmp_path / "run.svg")
    assert curves["-"]["auto"] == (30 / 40, 10 / 30)
    assert curves["--"]["auto (fixed lengths)"] == (1 / 2, 1 / 5)


def test_a_rule_that_no_bound_holds_is_drawn_without_one(tmp_path, words):
    run = run_of(PLAIN, "lenient")
    run.bounds.append(Bound("lenient", 0, (Depth(40, 39, 20.0),)))
    run.systems[1]["claim"] = "lossy"
    draw(run, tmp_path / "run.svg")
    assert "position in the draft" in words
    assert not any("most that any" in word for word in words)


def test_a_share_of_few_rounds_is_not_drawn(tmp_path, words):
    run = run_of(PLAIN, "suffix")
    for depths, seen in (((Depth(19, 3, 4.0),), False), ((Depth(20, 3, 4.0),), True)):
        words.clear()
        run.bounds = [Bound("suffix", 0, depths), Bound(PLAIN, 0, (Depth(0, 0, 0.0),))]
        draw(run, tmp_path / "run.svg")
        assert ("position in the draft" in words) == seen


def test_no_two_words_of_a_full_picture_overlap(tmp_path, monkeypatch):
    text = pytest.importorskip("matplotlib.text").Text
    places = {}
    drawn = text.draw

    def spy(self, renderer):
        if self.get_text().strip() and self.get_visible():
            places[self] = self.get_window_extent(renderer)
        return drawn(self, renderer)

    monkeypatch.setattr(text, "draw", spy)
    run = run_of(PLAIN, AGAIN, *(f"draft_model number {i} with an adaptive controller" for i in range(8)), questions=12)
    names = ("summarization", "information extraction", "retrieval-augmented generation")
    for i, question in enumerate(run.questions):
        question["category"] = f"{names[i % 3]} {i}"
    draw(run, tmp_path / "run.png")
    boxes = list(places.items())
    crossing = [
        (one.get_text(), other.get_text())
        for i, (one, box) in enumerate(boxes)
        for other, its in boxes[:i]
        if box.overlaps(its)
    ]
    assert crossing == []


def test_legends_cover_no_data(tmp_path, monkeypatch):
    legend, axes = pytest.importorskip("matplotlib.legend").Legend, pytest.importorskip("matplotlib.axes").Axes
    places: dict[type, dict] = {legend: {}, axes: {}}  # where each was drawn last: once before the layout is done
    for kind, found in places.items():

        def spy(self, renderer, drawn=kind.draw, found=found):
            found[self] = self.get_window_extent(renderer).frozen()
            return drawn(self, renderer)

        monkeypatch.setattr(kind, "draw", spy)
    for drawn, args in ((draw, run_of(PLAIN, AGAIN, "suffix", "hf plain")), (draw_sweep, [point(2), point(4)])):
        for found in places.values():
            found.clear()
        drawn(args, tmp_path / "picture.png")
        assert places[legend]
        assert not any(box.overlaps(data) for box in places[legend].values() for data in places[axes].values())


def test_a_sweep_shows_each_series_with_its_best(tmp_path, words):
    points = [point(2), point(4, 1.7), point(8, 1.2), point(4, 1.1, "early_exit", low=None, high=None, predicted=None)]
    trees = [point(2, label="4x2", series="trees"), point(2, 1.6, label="8x1", series="trees")]
    draw_sweep([*points, *trees, point(4, temperature=1.0)], tmp_path / "sweep.png")
    assert {"suffix: best K=4, 1.70", "early_exit: best K=4, 1.10", "trees: best 8x1, 1.60"} <= set(words)
    assert {"greedy", "temperature 1", "4x2", "8x1"} <= set(words)
    assert "K=2" not in words


def test_a_sweep_of_nothing_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="points: it is empty"):
        draw_sweep([], tmp_path / "sweep.svg")


@pytest.mark.parametrize("name", ["run.pdf", "run", "run.svg.gz"])
def test_a_picture_of_another_kind_is_refused(tmp_path, name):
    with pytest.raises(ValueError, match=r"--plot: .* is not a picture; its name must end in \.svg or \.png"):
        draw(run_of(PLAIN), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ValueError, match=r"--plot: it needs matplotlib \(pip install 'draftproof\[bench\]'\)"):
        require_able(Path("run.svg"))
