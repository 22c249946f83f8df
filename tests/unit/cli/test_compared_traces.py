"""`scope compare` names the ranks and traces of both sides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Done


@pytest.mark.parametrize("form", [(), ("--json",), ("--of", "kernels"), ("--of", "kernels", "--csv")])
def test_both_sides_are_named(
    scope: Callable[..., Done], trace: Callable[..., Path], tmp_path: Path, form: tuple[str, ...]
) -> None:
    """Path, ranks and files of both stand in the text once, and on stderr where the form has no place for them."""
    for rank in (0, 1):
        trace(f"old/rank{rank}.json", rank=rank)
    new = trace("new.json", rank=None)
    done = scope("compare", tmp_path / "old", new, *form)
    assert done.code == 0, done.err
    said = done.err if {"--json", "--csv"} & set(form) else done.out
    text = "".join(said.split())
    assert text.count(f"before:{tmp_path}/old,ranks0-1(rank0.jsonand1more)") == 1
    assert text.count(f"after:{new},1ofunknownrank(new.json)") == 1


def test_no_side_leaves_its_name(scope: Callable[..., Done], trace: Callable[..., Path], tmp_path: Path) -> None:
    """With --redact neither folder, file nor user of a side stands anywhere in any form; figures stay."""
    trace("old/secret0.json", kernel="triton_/home/ann/fused.py")
    new = trace("hidden.json", kernel="triton_/home/ann/fused.py")
    for form in ((), ("--json",), ("--csv",)):
        done = scope("compare", tmp_path / "old", new, "--redact", *form)
        plain = scope("compare", tmp_path / "old", new, *form)
        for word in (str(tmp_path), "secret0", "hidden", "ann/"):
            assert word in plain.out + plain.err or word == "ann/"
            assert word not in done.out + done.err
        assert done.out.count("900") == plain.out.count("900") > 0


def test_a_rank_is_of_the_side_that_holds_its_file(
    scope: Callable[..., Done], trace: Callable[..., Path], tmp_path: Path
) -> None:
    """By path a file of one side gets it, by a name that both have both do, and one that nobody has is told."""
    for folder in ("old", "new"):
        trace(f"{folder}/a.json", rank=None)
    sides = ("compare", tmp_path / "old", tmp_path / "new", "--processes", "1")

    def said(*options: str) -> str:
        return " ".join(scope(*sides, *options).out.split()).replace("- ", "-")

    assert said("--rank", f"{tmp_path}/old/a.json=3").count("rank 3 (a.json)") == 1
    both = said("--rank", "a.json=3")
    assert both.count("rank 3 (a.json)") == 2
    done = scope(*sides, "--rank", "b.json=3")
    assert done.code == 2
    assert "--rank: no such file on either side: b.json" in done.err
