"""A redacted report says nothing about where it came from, and says the same thing with the same stand-in."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

import polars as pl
import pytest

from scope.report.document import to_document
from scope.report.encoding import encode_json
from scope.report.findings import find_all
from scope.report.redaction import Redactor, make_redactor, redact

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Any

    from scope.report.results import Results


@pytest.mark.parametrize(
    "text",
    [
        "/home/ann/project/train.py",
        "~/project/train.py",
        "../data/x.json",
        "C:\\Users\\ann\\train.py",
        "\\\\server\\share\\x",
        "https://wiki.corp.com/a?b=c",
        "s3://bucket/traces",
        "ann@corp.com",
        "10.0.0.3:29500",
        "fe80:0:0:0:202:b3ff:fe1e:8329",
        "00:1a:2b:3c:4d:5e",
        "gpu01.cluster.local",
        "GPU-12345678-1234-1234-1234-123456789abc",
        "0123456789abcdef0123456789abcdef",
        "src/models/secret_model.py(12): forward",
    ],
)
def test_what_identifies_is_replaced(text: str) -> None:
    """Paths, addresses, hosts and ids leave no part of themselves behind."""
    shown = Redactor().text(f"before {text} after")
    assert shown.startswith("before ")
    assert shown.endswith(" after")
    for part in (
        "ann",
        "corp",
        "project",
        "secret",
        "10.0",
        "1234",
        "gpu01",
        "bucket",
        "server",
        "b3ff",
        "1a:2b",
        "data",
    ):
        assert part not in shown


@pytest.mark.parametrize(
    "text",
    [
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3> >",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_segment_k_off",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "aten::add.Tensor",
        "torch.nn.functional.linear",
        "ProfilerStep#3",
        "350 GB/s, 989.4 TFLOP/s, 295 FLOP/B",
        "operator/(a, b)",
        "rank 3 of 8; step 12 / 40",
        "dp [0-7]",
    ],
)
def test_what_a_report_is_about_stays(text: str) -> None:
    """Names of kernels, operators and groups, and figures, are left alone."""
    assert Redactor().text(text) == text


def test_one_thing_has_one_stand_in() -> None:
    """A file is the same by its path and by its name; two hosts are two."""
    redactor = Redactor(hosts=["gpu17", "gpu18"], users=["ann"], paths=["/data/ann/gpu17_1.2.pt.trace.json.gz"])
    assert redactor.text("/data/ann/gpu17_1.2.pt.trace.json.gz") == "path-1.pt.trace.json.gz"
    assert redactor.text("skipped gpu17_1.2.pt.trace.json.gz") == "skipped path-1.pt.trace.json.gz"
    assert (
        redactor.text("gpu18 waits for gpu17; gpu17 runs ann's job")
        == "host-2 waits for host-1; host-1 runs user-1's job"
    )
    assert redactor.text("gpu170") == "gpu170"


def test_redaction_reaches_into_records_tables_and_mappings() -> None:
    """Text is replaced wherever it stands, and numbers and types stay."""
    redactor = Redactor(hosts=["gpu17"])
    frame = pl.DataFrame({"name": ["gpu17", None, "x"], "kind": ["gpu17", "gpu17", "y"], "n": [1, 2, 3]}).with_columns(
        pl.col("kind").cast(pl.Categorical)
    )
    value = {"gpu17": ("gpu17 down", 3, [None, "gpu17"])}
    assert redact(value, redactor) == {"host-1": ("host-1 down", 3, [None, "host-1"])}
    redacted = redact(frame, redactor)
    assert redacted.schema == frame.schema
    assert redacted.rows() == [("host-1", "host-1", 1), (None, "host-1", 2), ("x", "y", 3)]


def test_a_redacted_report_names_no_path_host_or_user(
    tmp_path: Path, builder: Any, results_of: Callable[..., Results]
) -> None:
    """Neither the folder nor what a kernel's and an annotation's name hold appears in the document."""
    builder.step(1, 0, 1300)
    builder.host("user_annotation", "load /home/ann/data/shard.bin", 5, 10)
    builder.launch("triton_/home/ann/kernels/fused.py", 90, 100, 1000)
    results = results_of(builder)
    redacted = redact(results, make_redactor(results.job))
    redacted.analysis.check()
    text = encode_json(to_document(redacted, find_all(redacted)))
    assert tmp_path.name not in text
    assert "ann" not in text.replace("channels", "").replace("cannot", "").replace("annotation", "")
    assert redacted.analysis.breakdown == results.analysis.breakdown


ENDLESS = {
    "letters": "x",
    "dashes": "-",
    "home folders": "~-",
    "relative paths": "-a/",
    "deep paths": "-a" * 60 + "/",
    "mail": "a" * 255 + "@",
    "domains": "@x",
    "extensions": ".pt",
    "hexadecimal": "1:1:1:" + "a" * 60 + "g ",
}


@pytest.mark.parametrize("unit", ENDLESS.values(), ids=list(ENDLESS))
def test_a_long_name_costs_no_more_than_its_length(unit: str) -> None:
    """Eight times the length takes some eight times the processor's time, far from the 64 times of its square."""
    taken: list[float] = []
    for length in (5_000, 40_000):
        text = (unit * length)[:length]
        times: list[float] = []
        for _ in range(5):
            redactor = Redactor()
            before = time.process_time()
            redactor.text(text)
            times.append(time.process_time() - before)
        taken.append(min(times))
    assert taken[1] < 32 * max(taken[0], 0.001)


@pytest.mark.parametrize(
    "secret",
    [
        "ann+" * 500 + "x@corp.com",
        "ann-" * 500 + "/x/train.py",
        "ann/" * 500 + "train.py",
        "~ann" + "-ann" * 500 + "/ann/x",
        "/ann" * 500,
        "1:2:3:" + "ann:".replace("n", "a") * 200 + "b",
    ],
    ids=["mail", "first folder", "folders", "home folder", "path", "address"],
)
def test_what_identifies_goes_whole_however_long_it_is(secret: str) -> None:
    """No bound of a repeat leaves a part of a long address or path behind."""
    shown = Redactor().text(f"before {secret} after")
    assert re.fullmatch(r"before (user|path|address)-1(\.py)? after", shown), shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node7-bob@corp.com", "host-1user-1"),
        ("node7 bob@corp.com", "host-1 user-1"),
        ("node7:-bob@corp.com", "host-1:user-1"),
        ("a/b.py-bob@corp.com", "path-1.pyuser-1"),
        ("10.0.0.1:80-bob@corp.com", "address-1user-1"),
        ("10.0.0.1:80-src/secret.py", "address-1-path-1.py"),
        ("x//-src/secret.py", "x//-path-1.py"),
    ],
)
def test_what_follows_another_at_once_is_replaced_too(text: str, expected: str) -> None:
    """An address or a path that begins in the middle of a word, right behind what was replaced, does not stay."""
    assert Redactor(hosts=["node7"]).text(text) == expected
