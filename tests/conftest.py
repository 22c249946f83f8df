"""What every test shares: hypothesis profiles, other people's traces, and programs of the operating system."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).parent.parent

hypothesis.settings.register_profile("dev", max_examples=50, deadline=None)
hypothesis.settings.register_profile("ci", max_examples=100, deadline=None, derandomize=True)
hypothesis.settings.register_profile("nightly", max_examples=5_000, deadline=None)
hypothesis.settings.load_profile(os.environ.get("SCOPE_HYPOTHESIS", "ci" if os.environ.get("CI") else "dev"))


def pytest_configure() -> None:
    """Take Ctrl-C, as do programs that tests start, also where a shell that started all this with `&` ignores it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


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


SHARED_TRACES = (
    "hta/a100_alexnet",
    "hta/a100_event_sync_multi_stream",
    "hta/a100_nccl_metadata_rank0of2",
    "hta/a100_train_rank3of8",
    "hta/cpu_only_rank34of300",
    "hta/mi250_minitoy",
    "hta/sampled_rank-0",
    "hta/sampled_rank-1",
    "hta/triton_example",
    "hta/v100_ns_resolution",
    "hta/v100_train_rank1of2",
    "kineto/v100_resnet50_dataloader_bound",
    *(
        f"param/dlrm_v100_8ranks/worker{rank}_step_12.1694128201{end}.pt.trace"
        for rank, end in enumerate((545, 556, 554, 557, 547, 549, 553, 553))
    ),
    "tracelens/h100_bert_small",
    "tracelens/h100_owlv2",
    "tracelens/h100_vit_nsfw",
    "tracelens/mi210_gpu_only",
    "tracelens/mi300_bert_small",
    "tracelens/mi300_hipgraph_decode",
    "tracelens/mi300_torch_compile_triton",
)


@pytest.fixture(scope="session", params=SHARED_TRACES)
def shared_trace(request: pytest.FixtureRequest, shared_traces: Path) -> Path:
    """Each of these traces in turn: a test that takes it runs once a trace."""
    return shared_traces / f"{request.param}.json.gz"
