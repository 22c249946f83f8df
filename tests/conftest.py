"""What every test shares: hypothesis profiles, other people's traces, and programs of the operating system."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).parent.parent

hypothesis.settings.register_profile("dev", max_examples=50, deadline=None)
hypothesis.settings.register_profile("ci", max_examples=100, deadline=None, derandomize=True)
hypothesis.settings.register_profile("nightly", max_examples=5_000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("SCOPE_HYPOTHESIS", "ci" if os.environ.get("CI") else "dev"))


def _missing_programs(item: pytest.Item) -> list[str]:
    wanted = [str(name) for marker in item.iter_markers("system") for name in marker.args]
    return [name for name in wanted if shutil.which(name) is None]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a `@pytest.mark.system("program", ...)` test by name, or fail it where all programs must be there."""
    missing = _missing_programs(item)
    if not missing:
        return
    reason = f"needs {', '.join(missing)} (make setup-system)"
    if os.environ.get("SCOPE_REQUIRE_SYSTEM"):
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """Folder of real traces of other people's jobs, which are not part of the repository."""
    folder = Path(os.environ.get("SCOPE_SHARED_TRACES", ROOT.parent / "shared" / "traces"))
    if not folder.is_dir():
        pytest.skip(f"needs the folder of shared traces at {folder} (or SCOPE_SHARED_TRACES)")
    return folder
