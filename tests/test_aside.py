"""Files are there in full or not at all, and what grows is kept."""

import os

import pytest

from draftproof.aside import growing, part_of, whole


def test_a_file_is_replaced_when_all_is_written(tmp_path):
    path = tmp_path / "a"
    path.write_text("old")
    with whole(path) as place:
        place.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_goes_wrong_leaves_what_was_there_and_nothing_else(error, tmp_path):
    path = tmp_path / "a"
    path.write_text("old")

    def fail() -> None:
        with whole(path) as place:
            place.write_text("half")
            raise error

    with pytest.raises(error):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_was_growing_stays_and_becomes_the_file_at_the_end(tmp_path):
    path, part = tmp_path / "a", tmp_path / "a.part"
    assert part_of(path) == part

    def fail() -> None:
        with growing(path) as file:
            file.write("one\n")
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        fail()
    assert (part.read_text(), path.exists()) == ("one\n", False)
    with growing(path) as file:
        file.write("two\n")
        assert part.read_text() == "two\n"
    assert (path.read_text(), part.exists()) == ("two\n", False)


def test_what_grew_nothing_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match="stop"), growing(tmp_path / "a"):
        raise ValueError("stop")
    assert list(tmp_path.iterdir()) == []


def test_links_are_followed_and_a_pipe_stays_one(tmp_path):
    real, link, pipe = tmp_path / "real", tmp_path / "link", tmp_path / "pipe"
    link.symlink_to(real)
    with whole(link) as place:
        place.write_text("new")
    assert (link.is_symlink(), real.read_text()) == (True, "new")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with whole(pipe) as place:
        place.write_text("new")
    assert (pipe.is_fifo(), os.read(reader, 10), part_of(pipe)) == (True, b"new", pipe)
    os.close(reader)
