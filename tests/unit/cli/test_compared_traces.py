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
