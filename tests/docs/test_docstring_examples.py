"""The examples in docstrings do what they show."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("scope", "exporters", "dashboards")


def find_modules() -> list[str]:
    """Return the names of the modules that hold an example; they are not imported to be looked for."""
    files = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))
    return [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in files
        if ">>> " in path.read_text(encoding="utf-8")
    ]


@pytest.mark.docs
@pytest.mark.parametrize("name", find_modules())
def test_the_examples_of_a_module_do_what_they_show(name: str) -> None:
    """Each gives what stands below it; a module is left out where an extra that it imports is not installed."""
    try:
        module = importlib.import_module(name)  # noqa: TID251 - the modules are found by what stands in them
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] in PACKAGES:
            raise
        pytest.skip(f"needs {error.name}")
    told: list[str] = []
    runner = doctest.DocTestRunner()
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, module.__name__):
        runner.run(test, out=told.append)
    results = runner.summarize(verbose=False)
    assert not results.failed, "".join(told)
    source = Path(str(module.__file__)).read_text(encoding="utf-8")
    assert results.attempted == source.count(">>> "), f"{name} holds examples where nobody looks for them"
