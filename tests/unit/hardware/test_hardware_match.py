"""Devices by the names that traces and NVML really give them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope.hardware import DeviceFacts, Gpu, builtin_catalogue, match_gpu
from scope.hardware.match import _holds_words  # pyright: ignore[reportPrivateUsage]

GIB = 2**30


@pytest.mark.parametrize(
    ("name", "memory_bytes", "num_sms", "capability", "gpu_id"),
    [
        ("NVIDIA H100 80GB HBM3", 85_018_279_936, 132, (9, 0), "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", None, None, None, "h100-sxm"),
        ("NVIDIA H100 PCIe", 85 * 10**9, 114, (9, 0), "h100-pcie"),
        ("NVIDIA H100 NVL", 100 * 10**9, 132, (9, 0), "h100-nvl"),
        ("NVIDIA H200", 150 * 10**9, 132, (9, 0), "h200-sxm"),
        ("NVIDIA H200 NVL", 150 * 10**9, 132, (9, 0), "h200-nvl"),
        ("NVIDIA GH200 480GB", 102 * 10**9, 132, (9, 0), "gh200-96gb"),
        ("NVIDIA GH200 480GB", None, None, None, "gh200-96gb"),
        ("NVIDIA GH200 144G HBM3e", 151 * 10**9, 132, (9, 0), "gh200-144gb"),
        ("NVIDIA H800", 85_018_279_936, 132, (9, 0), "h800-sxm"),
        ("NVIDIA H20", 102 * 10**9, 78, (9, 0), "h20-96gb"),
        ("NVIDIA H20-3e", 150 * 10**9, 78, (9, 0), "h20-141gb"),
        ("Tesla V100-SXM2-16GB", 16_945_512_448, 80, (7, 0), "v100-sxm2-16gb"),
        ("Tesla V100-SXM2-16GB", None, None, None, "v100-sxm2-16gb"),
        ("Tesla V100-SXM2-32GB", 34_089_730_048, 80, (7, 0), "v100-sxm2-32gb"),
        ("Tesla V100-PCIE-32GB", 34_089_730_048, 80, (7, 0), "v100-pcie-32gb"),
        ("Tesla V100S-PCIE-32GB", 34_089_730_048, 80, (7, 0), "v100s-pcie"),
        ("A100-SXM4-40GB", 42_297_524_224, 108, (8, 0), "a100-sxm4-40gb"),
        ("NVIDIA A100-SXM4-40GB", 42_297_524_224, 108, (8, 0), "a100-sxm4-40gb"),
        ("NVIDIA A100-SXM4-80GB", 84_974_239_744, 108, (8, 0), "a100-sxm4-80gb"),
        ("NVIDIA A100 80GB PCIe", 84_974_239_744, 108, (8, 0), "a100-pcie-80gb"),
        ("NVIDIA A100-PCIE-40GB", 42_297_524_224, 108, (8, 0), "a100-pcie-40gb"),
        ("NVIDIA A10", 23_836_688_384, 72, (8, 6), "a10"),
        ("NVIDIA A10G", 23_836_688_384, 80, (8, 6), "a10g"),
        ("NVIDIA L4", 23_580_639_232, 58, (8, 9), "l4"),
        ("NVIDIA L40S", 47_810_936_832, 142, (8, 9), "l40s"),
        ("NVIDIA L40", 47_810_936_832, 142, (8, 9), "l40"),
        ("NVIDIA L20", 47_810_936_832, 92, (8, 9), "l20"),
        ("NVIDIA L2", 24_050_000_000, None, (8, 9), "l2"),
        ("NVIDIA GB10", 128_500_000_000, 48, (12, 1), "gb10"),
        ("NVIDIA H20-3e", 150_000_000_000, 78, (9, 0), "h20-141gb"),
        ("NVIDIA B200", 192_265_846_784, 148, (10, 0), "b200-hgx"),
        ("NVIDIA GB200", 197 * 10**9, 152, (10, 0), "gb200"),
        ("NVIDIA B300 SXM6 AC", 288_400_000_000, 148, (10, 3), "b300-hgx"),
        ("NVIDIA B200", None, None, None, "b200-hgx"),
        ("NVIDIA GB300", 298 * 10**9, 152, (10, 3), "gb300"),
        ("NVIDIA H800 PCIe", 85_018_279_936, 114, (9, 0), "h800-pcie"),
        ("NVIDIA H800", None, None, None, "h800-sxm"),
        ("NVIDIA H100 80GB HBM2e", 85_018_279_936, 114, (9, 0), "h100-pcie"),
        ("NVIDIA A800-SXM4-80GB", 84_974_239_744, 108, (8, 0), "a800-sxm4-80gb"),
        ("NVIDIA A800-SXM4-40GB", 42_297_524_224, 108, (8, 0), "a800-sxm4-40gb"),
        ("NVIDIA A800-SXM4-40GB", None, None, None, "a800-sxm4-40gb"),
        ("NVIDIA A800 80GB PCIe", 84_974_239_744, 108, (8, 0), "a800-pcie-80gb"),
        ("NVIDIA A30", 25_300_000_000, 56, (8, 0), "a30"),
        ("NVIDIA A40", 47_600_000_000, 84, (8, 6), "a40"),
        ("Tesla P100-PCIE-12GB", 12_790_000_000, 56, (6, 0), "p100-pcie-12gb"),
        ("Tesla P100-PCIE-16GB", 17_071_734_784, 56, (6, 0), "p100-pcie-16gb"),
        ("Tesla P100-SXM2-16GB", 17_071_734_784, 56, (6, 0), "p100-sxm2"),
        ("Tesla V100-PCIE-16GB", 16_945_512_448, 80, (7, 0), "v100-pcie-16gb"),
        ("Tesla T4", 15_843_721_216, 40, (7, 5), "t4"),
        ("NVIDIA GeForce RTX 4090", 25_386_352_640, 128, (8, 9), "rtx-4090"),
        ("NVIDIA GeForce RTX 5090", 33_700_000_000, 170, (12, 0), "rtx-5090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 101_970_000_000, 188, (12, 0), "rtx-pro-6000"),
        ("AMD Instinct MI300A", 137_400_000_000, 228, (9, 4), "mi300a"),
        ("AMD Instinct MI325X", 274_877_906_944, 304, (9, 4), "mi325x"),
        ("AMD Instinct MI325 OAM", 274_877_906_944, 304, (9, 4), "mi325x"),
        ("AMD Instinct MI350X", 309_220_868_096, 256, (9, 5), "mi350x"),
        ("AMD Instinct MI355X", 309_220_868_096, 256, (9, 5), "mi355x"),
        ("AMD Instinct MI355 OAM", 309_220_868_096, 256, (9, 5), "mi355x"),
        ("AMD Instinct MI300X", 206_141_652_992, 304, (9, 4), "mi300x"),
        ("AMD Instinct MI300X VF", 205_571_227_648, 304, (9, 4), "mi300x"),
        ("AMD Instinct MI210", 68_702_699_520, 104, (9, 0), "mi210"),
        ("AMD Instinct MI250X/MI250", 68_702_699_520, 104, (9, 0), "mi250"),
        ("AMD Instinct MI250X/MI250", 68_702_699_520, 110, (9, 0), "mi250x"),
        ("", 206_141_652_992, 304, (9, 4), "mi300x"),
    ],
)
def test_a_real_name_is_one_gpu(
    name: str, memory_bytes: int | None, num_sms: int | None, capability: tuple[int, int] | None, gpu_id: str
) -> None:
    """Each name, with what the trace says beside it, is the variant that it belongs to."""
    match = match_gpu(
        DeviceFacts(name=name, total_memory_bytes=memory_bytes, num_sms=num_sms, compute_capability=capability)
    )
    assert match.gpu is not None, match.reason
    assert match.gpu.gpu_id == gpu_id
    assert match.gpu.share is None


@pytest.mark.parametrize(
    ("facts", "candidates"),
    [
        (DeviceFacts(name="NVIDIA A100-PG509-200", total_memory_bytes=42_297_524_224, num_sms=108),
         {"a100-sxm4-40gb", "a100-pcie-40gb"}),
        (DeviceFacts(name="AMD Radeon Graphics", total_memory_bytes=68_702_699_520, num_sms=104,
                     compute_capability=(9, 0)), {"mi210", "mi250"}),
        (DeviceFacts(name="NVIDIA H100"), {"h100-sxm", "h100-pcie", "h100-nvl"}),
        (DeviceFacts(name="", total_memory_bytes=85_018_279_936, num_sms=132, compute_capability=(9, 0)),
         {"h100-sxm", "h800-sxm"}),
        (DeviceFacts(name="NVIDIA GH200"), {"gh200-96gb", "gh200-144gb"}),
        (DeviceFacts(name="NVIDIA A800-SXM4"), {"a800-sxm4-40gb", "a800-sxm4-80gb"}),
        (DeviceFacts(name="AMD Instinct", total_memory_bytes=309_220_868_096, num_sms=256, compute_capability=(9, 5)),
         {"mi350x", "mi355x"}),
    ],
)  # fmt: skip
def test_an_ambiguous_device_names_its_candidates(facts: DeviceFacts, candidates: set[str]) -> None:
    """Where several variants fit, none is chosen: the answer lists them and says how to choose."""
    match = match_gpu(facts)
    assert match.gpu is None
    assert {gpu.gpu_id for gpu in match.candidates} == candidates
    assert "--gpu" in match.reason


@pytest.mark.parametrize(
    "facts",
    [
        DeviceFacts(name=""),
        DeviceFacts(name="AMD Radeon Graphics"),
        DeviceFacts(name="Quadro P2000", total_memory_bytes=5 * 10**9, num_sms=8),
        DeviceFacts(name="NVIDIA GeForce RTX 4090 Laptop GPU", total_memory_bytes=16 * GIB, num_sms=76),
        DeviceFacts(name="NVIDIA A100X"),
        DeviceFacts(name="NVIDIA H20Z"),
        DeviceFacts(name="AMD Instinct MI308X", total_memory_bytes=206_141_652_992, num_sms=80),
        DeviceFacts(name="NVIDIA H100 80GB HBM3 MIG 1g.10gb"),
    ],
)
def test_an_unknown_device_is_no_default(facts: DeviceFacts) -> None:
    """A device that the catalogue does not know has no GPU, no candidates and a reason."""
    match = match_gpu(facts)
    assert match.gpu is None
    assert match.usable is None
    assert match.reason


def test_a_device_that_contradicts_its_name_is_not_that_gpu() -> None:
    """An H100 SXM has 80 GB: one that shows 141 GB is something else, and nothing of the H100 is used."""
    match = match_gpu(DeviceFacts(name="NVIDIA H100 80GB HBM3", total_memory_bytes=150 * 10**9, num_sms=132))
    assert match.gpu is None
    assert match.usable is None
    assert "h100-sxm" in match.reason


@pytest.mark.parametrize(
    "facts",
    [
        # Made for one site: 64 GB and 124 SMs, where the A100s of the catalogue have 40 or 80 GB and 108.
        DeviceFacts(name="NVIDIA A100-SXM-64GB", total_memory_bytes=68 * 10**9, num_sms=124),
        DeviceFacts(name="NVIDIA H100 64GB HBM2", total_memory_bytes=68 * 10**9, num_sms=132),
        # More memory than any H100 of the catalogue, by its name; the driver shows as much as it does of an NVL.
        DeviceFacts(name="NVIDIA H100 96GB HBM3", total_memory_bytes=94 * GIB, num_sms=132, compute_capability=(9, 0)),
        DeviceFacts(name="NVIDIA A800 40GB Active", total_memory_bytes=42_297_524_224, num_sms=108),
    ],
)
def test_a_special_edition_takes_no_figure_of_its_family(facts: DeviceFacts) -> None:
    """Where memory or SM count rule out every GPU of the name, none is a candidate and none lends its peak."""
    match = match_gpu(facts)
    assert match.gpu is None
    assert match.candidates == ()
    assert match.usable is None
    assert "memory or SM count" in match.reason


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (DeviceFacts(name="AMD Radeon Graphics"), "memory, CU count and architecture, which would tell it,"),
        (
            DeviceFacts(name="AMD Instinct MI300X", total_memory_bytes=300 * 10**9, num_sms=305),
            "its memory or CU count",
        ),
        (DeviceFacts(name="Graphics Device"), "memory, SM count and compute capability, which would tell it,"),
    ],
)
def test_units_are_called_as_their_vendor_calls_them(facts: DeviceFacts, said: str) -> None:
    """AMD has compute units and architectures, NVIDIA streaming multiprocessors and compute capabilities."""
    assert said in match_gpu(facts).reason


@pytest.mark.parametrize("name", ["NVIDIA L20D", "NVIDIA A30X", "NVIDIA H20Z", "NVIDIA B200X"])
def test_a_letter_more_is_another_gpu(name: str) -> None:
    """A name that only begins as one of the catalogue does is unknown, whatever the memory and SM count beside it."""
    facts = DeviceFacts(name=name, total_memory_bytes=47 * GIB, num_sms=92, compute_capability=(8, 9))
    for match in (match_gpu(facts), match_gpu(DeviceFacts(name=name))):
        assert match.usable is None
        assert "no such GPU" in match.reason


def test_candidates_share_what_they_agree_on() -> None:
    """Both 40 GB A100s do 312 TFLOP/s at 1.555 TB/s; only their links differ, and those are absent."""
    match = match_gpu(DeviceFacts(name="NVIDIA A100-PG509-200", total_memory_bytes=42_297_524_224, num_sms=108))
    usable = match.usable
    assert usable is not None
    peak = usable.matrix_peak("bfloat16")
    assert peak is not None
    assert peak.value == 312e12
    assert usable.memory_bytes_per_s is not None
    assert usable.memory_bytes_per_s.value == 1.555e12
    assert usable.link_bytes_per_s is None
    assert "differ" in usable.why_absent("link_gb_per_s")


def test_mig_instance_has_its_share() -> None:
    """A 3g.40gb instance of an H100 with 60 of 132 SMs has that share of the peak and half of the bandwidth."""
    match = match_gpu(DeviceFacts(name="NVIDIA H100 80GB HBM3 MIG 3g.40gb", num_sms=60))
    gpu = match.gpu
    assert gpu is not None
    assert gpu.matrix_flop_per_s["bfloat16"].value == pytest.approx(989.4e12 * 60 / 132)
    assert gpu.memory_bytes_per_s is not None
    assert gpu.memory_bytes_per_s.value == pytest.approx(3.35e12 / 2)
    assert gpu.link_bytes_per_s is None
    assert gpu.share is not None
    assert "60 of 132 SMs" in gpu.share


@pytest.mark.parametrize(
    ("profile", "share"), [("1g.5gb", 1 / 8), ("2g.10gb", 2 / 8), ("3g.20gb", 4 / 8), ("7g.40gb", 1)]
)
def test_mig_memory_slices(profile: str, share: float) -> None:
    """The memory slices of an A100's instances are those of the MIG user guide: 1, 2, 4 and 8 of 8."""
    match = match_gpu(DeviceFacts(name=f"NVIDIA A100-SXM4-40GB MIG {profile}", num_sms=14))
    assert match.gpu is not None
    assert match.gpu.memory_bytes_per_s is not None
    assert match.gpu.memory_bytes_per_s.value == pytest.approx(1.555e12 * share)


def test_amd_compute_partition_has_its_share() -> None:
    """One of eight partitions of an MI300X has 38 of 304 compute units and an eighth of the peak."""
    match = match_gpu(DeviceFacts(name="AMD Instinct MI300X", total_memory_bytes=24 * GIB, num_sms=38))
    assert match.gpu is not None
    assert match.gpu.matrix_flop_per_s["bfloat16"].value == pytest.approx(1307.4e12 / 8)


def test_every_gpu_finds_itself() -> None:
    """Each GPU of the catalogue, described by its own name and properties, is matched or is one of the candidates."""

    def finds_itself(gpu: Gpu) -> bool:
        memory = None if gpu.memory_bytes is None else round(gpu.memory_bytes * 1.06)
        facts = DeviceFacts(
            name=max(gpu.names, key=len), total_memory_bytes=memory, num_sms=gpu.num_sms,
            compute_capability=gpu.compute_capability,
        )  # fmt: skip
        match = match_gpu(facts)
        return match.gpu == gpu or gpu in match.candidates

    assert [gpu.gpu_id for gpu in builtin_catalogue().values() if not finds_itself(gpu)] == []


@given(
    st.lists(st.sampled_from(["l20", "l2", "20", "d", " ", "-", "x"]), max_size=6).map("".join),
    st.sampled_from(["l20", "l2", "l20-l2", "x l2"]),
)
def test_words_of_a_name_are_whole(name: str, words: str) -> None:
    """Equal to the pattern that says it: neither a letter nor a digit stands before or behind."""
    pattern = rf"(?<![a-z0-9]){re.escape(words)}(?![a-z0-9])"
    assert _holds_words(name, words) == (re.search(pattern, name) is not None)
