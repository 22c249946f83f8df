"""The catalogue's figures, users' files, and links."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import scope.hardware
from scope.errors import ConfigError, UsageError
from scope.hardware import (
    NETWORK_BITS_PER_S,
    NVLINK,
    Figure,
    builtin_catalogue,
    choose_gpu,
    inter_node_ceiling,
    intra_node_ceiling,
    load_catalogue,
    network_bytes_per_s,
    parse_catalogue,
    pcie_bytes_per_s,
    pcie_payload_bytes_per_s,
)


@pytest.mark.parametrize(
    ("gpu_id", "bf16_tflops", "memory_gb", "memory_tb_per_s", "link_gb_per_s", "balance"),
    [
        ("h20-96gb", 148, 96, 4.0, 450, 37),
        ("a100-sxm4-80gb", 312, 80, 2.039, 300, 153),
        ("h100-sxm", 989.4, 80, 3.35, 450, 295),
        ("h800-sxm", 989.4, 80, 3.35, 200, 295),
        ("b200-hgx", 2250, 180, 7.7, 900, 292),
        ("mi300x", 1307.4, 192, 5.3, 448, 247),
    ],
)
def test_figures_of_the_common_gpus(
    gpu_id: str, bf16_tflops: float, memory_gb: int, memory_tb_per_s: float, link_gb_per_s: float, balance: int
) -> None:
    """Dense peak, memory, bandwidth, link one way and balance are those of the data sheets."""
    gpu = choose_gpu(gpu_id)
    assert gpu.matrix_flop_per_s["bfloat16"].value == pytest.approx(bf16_tflops * 1e12)
    assert gpu.memory_bytes == memory_gb * 10**9
    assert gpu.memory_bytes_per_s is not None
    assert gpu.memory_bytes_per_s.value == pytest.approx(memory_tb_per_s * 1e12)
    assert gpu.link_bytes_per_s is not None
    assert gpu.link_bytes_per_s.value == link_gb_per_s * 10**9
    measured = gpu.balance_flop_per_byte()
    assert measured is not None
    assert round(measured) == balance


def test_every_figure_has_a_source_and_every_gap_a_reason() -> None:
    """No figure of the built-in catalogue stands without a source, and no bandwidth is missing without a reason."""
    for gpu in builtin_catalogue().values():
        figures = [*gpu.matrix_flop_per_s.values(), *gpu.vector_flop_per_s.values()]
        others: list[Figure | None] = [gpu.memory_bytes_per_s, gpu.link_bytes_per_s, gpu.pcie_generation]
        figures.extend(figure for figure in others if figure is not None)
        assert all(len(figure.source) > 5 for figure in figures), gpu.gpu_id
        assert gpu.memory_bytes_per_s is not None or "memory_tb_per_s" in gpu.absent, gpu.gpu_id
        assert gpu.link_bytes_per_s is not None or "link_gb_per_s" in gpu.absent, gpu.gpu_id
        assert gpu.matrix_flop_per_s or {"bfloat16", "matrix_tflops"} & gpu.absent.keys(), gpu.gpu_id


def test_dense_and_not_sparse() -> None:
    """Halving the element size at most doubles a dense peak (Blackwell Ultra's FP4 triples it), so none is sparse."""
    for gpu in builtin_catalogue().values():
        peaks = {dtype: figure.value for dtype, figure in gpu.matrix_flop_per_s.items()}
        if {"bfloat16", "float8"} <= peaks.keys():
            assert peaks["float8"] == pytest.approx(2 * peaks["bfloat16"], rel=0.03), gpu.gpu_id
        if {"bfloat16", "tf32"} <= peaks.keys():
            assert peaks["tf32"] == pytest.approx(peaks["bfloat16"] / 2, rel=0.03), gpu.gpu_id


@pytest.mark.parametrize(
    ("gpu_id", "dtype", "sparse_tflops"),
    [
        # What the vendors' sheets print with sparsity: the dense peak is half of it.
        ("h100-sxm", "bfloat16", 1979), ("h100-sxm", "float8", 3958), ("h100-nvl", "bfloat16", 1671),
        ("h100-nvl", "float8", 3341), ("h200-sxm", "bfloat16", 1979), ("h200-nvl", "float8", 3341),
        ("b200-hgx", "float4", 18_000), ("b200-hgx", "float8", 9_000), ("b200-hgx", "bfloat16", 4_500),
        ("gb200", "float4", 20_000), ("gb200", "float8", 10_000), ("gb200", "bfloat16", 5_000),
        ("gb200", "tf32", 2_500),
        ("gb300", "float8", 10_000), ("l4", "float8", 485), ("a100-sxm4-80gb", "bfloat16", 624),
        ("mi325x", "float8", 5_229.8),
    ],
)  # fmt: skip
def test_the_dense_peak_is_half_of_what_sheets_print_with_sparsity(
    gpu_id: str, dtype: str, sparse_tflops: float
) -> None:
    """No sparse figure stands for a dense one."""
    peak = choose_gpu(gpu_id).matrix_flop_per_s[dtype].value
    assert peak == pytest.approx(sparse_tflops * 1e12 / 2, rel=0.002)


def test_tf32_of_an_mi300x() -> None:
    """AMD's table gives 1,024 FLOP a clock and compute unit, of which 304 run at 2.1 GHz."""
    peak = choose_gpu("mi300x").matrix_peak("tf32")
    assert peak is not None
    assert peak.value == pytest.approx(1024 * 304 * 2.1e9, rel=1e-4)
    assert "vendor's own" not in peak.source


def test_blackwell_ultras_fp4_has_its_own_ratio() -> None:
    """NVIDIA gives 15 PFLOP/s dense and 20 sparse for a GB300's NVFP4: three times FP8, not twice."""
    peaks = choose_gpu("gb300").matrix_flop_per_s
    assert (peaks["float4"].value, peaks["float8"].value) == (15e15, 5e15)


def test_every_source_is_used() -> None:
    """A source that no figure names is a leftover."""
    text = (Path(scope.hardware.__file__).parent / "gpus.toml").read_text(encoding="utf-8")
    sources = tomllib.loads(text)["sources"]
    assert [name for name in sources if f'"{name}"]' not in text] == []


@pytest.mark.parametrize(
    ("gpu_id", "is_primary"),
    [("a100-sxm4-80gb", True), ("a100-pcie-40gb", True), ("gb200", True)]
    + [(gpu_id, False) for gpu_id in ("gh200-96gb", "h800-sxm", "a800-sxm4-80gb", "h100-nvl", "h200-nvl")]
    + [(gpu_id, False) for gpu_id in ("mi325x", "mi350x", "mi355x", "b300-hgx", "h100-sxm")],
)
def test_a_figure_says_whether_it_is_the_vendors_own(gpu_id: str, is_primary: bool) -> None:
    """Peaks of vendors' documents stand as they are, those copied or derived by somebody else say so."""
    peak = choose_gpu(gpu_id).matrix_peak("float16")
    assert peak is not None
    assert peak.source.endswith("; not the vendor's own document") != is_primary


def test_gh200_says_that_it_stands_on_the_h100() -> None:
    """No figure of the GH200's compute is given as if a document of the GH200 stated it."""
    for gpu_id in ("gh200-96gb", "gh200-144gb"):
        gpu = choose_gpu(gpu_id)
        for figure in (*gpu.matrix_flop_per_s.values(), *gpu.vector_flop_per_s.values()):
            assert figure.source.startswith("taken from the H100 SXM, for it is the same GH100 chip")


def test_a_file_without_primary_sources_marks_none_and_a_wrong_name_is_told() -> None:
    """Users' sources stand as they wrote them; a primary source that is none is a mistake with its path."""
    text = '[gpu.mine]\nnames = ["MINE"]\n[gpu.mine.matrix_tflops]\nbfloat16 = [10, "measured"]\n'
    peak = parse_catalogue(text, origin="mine.toml")["mine"].matrix_peak("bfloat16")
    assert peak is not None
    assert peak.source == "measured"
    with pytest.raises(ConfigError, match=r"\$\.primary: no source is called 'other'"):
        parse_catalogue('primary = ["other"]\n' + text, origin="mine.toml")


def test_float32_runs_on_vector_units_where_matrix_units_do_not_take_it() -> None:
    """Full float32 products of an H100 run at 66.9 TFLOP/s, those of an MI250X die on its matrix units at 47.85."""
    h100, mi250x = choose_gpu("h100-sxm").matrix_peak("float32"), choose_gpu("mi250x").matrix_peak("float32")
    assert h100 is not None
    assert mi250x is not None
    assert (h100.value, mi250x.value) == (66.9e12, 47.85e12)
    assert choose_gpu("v100-sxm2-32gb").matrix_peak("bfloat16") is None


def test_an_unknown_choice_names_the_nearest() -> None:
    """A slip of the pen in --gpu lists what was probably meant, and the file in which all ids stand."""
    with pytest.raises(UsageError, match="h100-sxm") as slip:
        choose_gpu("h100-sx")
    (path,) = [word.strip(",") for word in str(slip.value).split() if word.strip(",").endswith(".toml")]
    assert "[gpu.h100-sxm]" in Path(path).read_text()
    assert choose_gpu(" H100-SXM ").gpu_id == "h100-sxm"


def test_a_users_file_lays_over_the_catalogue(tmp_path: Path) -> None:
    """A measured peak replaces the data sheet's, names its file as the source, and keeps all else of its base."""
    path = tmp_path / "mine.toml"
    path.write_text('[gpu.h100-sxm]\nbase = "h100-sxm"\nmatrix_tflops.bfloat16 = 790\n', encoding="utf-8")
    gpu = load_catalogue([path])["h100-sxm"]
    assert gpu.matrix_flop_per_s["bfloat16"] == Figure(value=790e12, source=str(path))
    assert gpu.matrix_flop_per_s["float8"].value == pytest.approx(1978.9e12)
    assert gpu.memory_bytes == 80 * 10**9
    assert gpu.names == choose_gpu("h100-sxm").names


def test_all_mistakes_of_a_file_are_reported_at_once() -> None:
    """Seven mistakes in one file make one error with seven lines, each with its path."""
    text = """
    speed = 1
    [gpu.mine]
    names = "H100"
    memory_gb = -80
    num_sms = 1.5
    colour = "green"
    matrix_tflops.bf16 = 989
    bandwidth.memory_tb_per_s = ["fast", "me"]
    """
    with pytest.raises(ConfigError) as caught:
        parse_catalogue(text, origin="mine.toml")
    lines = str(caught.value).splitlines()
    assert lines[0] == "mine.toml: 7 mistakes"
    assert {line.strip().split(":")[0] for line in lines[1:]} == {
        "$.speed",
        "$.gpu.mine.colour",
        "$.gpu.mine.names",
        "$.gpu.mine.memory_gb",
        "$.gpu.mine.num_sms",
        "$.gpu.mine.matrix_tflops.bf16",
        "$.gpu.mine.bandwidth.memory_tb_per_s",
    }


@pytest.mark.parametrize("text", ["[gpu", "gpu = 3", "", "[gpu]\nmine = 4", "[gpu.mine]\nbase = 'none'"])
def test_a_broken_file_is_a_clear_error(text: str) -> None:
    """What is not TOML, or not a catalogue, is an error that names the file."""
    with pytest.raises(ConfigError, match=r"mine\.toml"):
        parse_catalogue(text, origin="mine.toml")


def test_a_missing_file_is_a_clear_error(tmp_path: Path) -> None:
    """A file that is not there is an error that names it."""
    with pytest.raises(ConfigError, match=r"absent\.toml"):
        load_catalogue([tmp_path / "absent.toml"])


def test_link_rates() -> None:
    """One way: PCIe 4.0 and 5.0 x16 32 and 64 GB/s, NVLink 4 450 GB/s in 18 links of 25, 400 Gb/s 50 GB/s."""
    assert pcie_bytes_per_s(4) == 32 * 10**9
    assert pcie_bytes_per_s(5) == 64 * 10**9
    assert pcie_bytes_per_s(5, num_lanes=8) == 32 * 10**9
    assert pcie_bytes_per_s(9) is None
    payload = pcie_payload_bytes_per_s(4)
    assert payload == 32 * 10**9 * 128 // 130
    assert pcie_payload_bytes_per_s(9) is None
    assert NVLINK[4].bytes_per_s_per_link == 25 * 10**9
    assert [2 * NVLINK[each].bytes_per_s // 10**9 for each in range(1, 7)] == [160, 300, 600, 900, 1800, 3600]
    assert network_bytes_per_s(NETWORK_BITS_PER_S["NDR"]) == 50 * 10**9
    assert network_bytes_per_s(NETWORK_BITS_PER_S["XDR"]) == 100 * 10**9


def test_nvl72_rack() -> None:
    """72 GPUs of NVLink 5 make 130 TB/s, both ways."""
    assert round(72 * 2 * NVLINK[5].bytes_per_s / 1e12) == 130


def test_ceiling_in_a_node() -> None:
    """NVLink one way where there is NVLink, PCIe where there is surely none, unknown where a bridge may sit."""
    assert intra_node_ceiling(choose_gpu("h100-sxm")).bytes_per_s == 450e9
    assert intra_node_ceiling(choose_gpu("l40s")).bytes_per_s == 32e9
    bridged = intra_node_ceiling(choose_gpu("a100-pcie-80gb"))
    assert bridged.bytes_per_s is None
    assert "bridge" in bridged.bound_by
    assert intra_node_ceiling(choose_gpu("a10g")).bytes_per_s is None


def test_ceiling_across_nodes() -> None:
    """Eight NICs of 400 Gb/s make 400 GB/s, below NVLink 4; two nodes of unequal NICs go at the narrower."""
    eight = [50e9] * 8
    full = inter_node_ceiling(link_bytes_per_s=450e9, nic_bytes_per_s={"a": eight, "b": eight})
    assert full.bytes_per_s == 400e9
    uneven = inter_node_ceiling(link_bytes_per_s=450e9, nic_bytes_per_s={"a": eight, "b": [50e9]})
    assert (uneven.bytes_per_s, uneven.bound_by) == (50e9, "network ports of b")
    wide = inter_node_ceiling(link_bytes_per_s=200e9, nic_bytes_per_s={"a": eight, "b": eight})
    assert wide.bytes_per_s == 200e9
    unknown = inter_node_ceiling(link_bytes_per_s=450e9, nic_bytes_per_s={"a": eight, "b": []})
    assert unknown.bytes_per_s is None
    assert "b" in unknown.bound_by
    with pytest.raises(UsageError, match="at least 2"):
        inter_node_ceiling(link_bytes_per_s=None, nic_bytes_per_s={"a": eight})


@pytest.mark.parametrize(
    ("gpu_id", "dtype", "tflops", "memory_tb_per_s"),
    [("l20", "bfloat16", 119.5, 0.864), ("l2", "bfloat16", 96.5, 0.3), ("gb10", "float4", 500, 0.273)],
)
def test_figures_of_small_gpus(gpu_id: str, dtype: str, tflops: float, memory_tb_per_s: float) -> None:
    """Dense peaks and memory of GPUs without NVLink: half the bits, twice the rate; what no source states is absent."""
    gpu = choose_gpu(gpu_id)
    assert gpu.matrix_flop_per_s[dtype].value == pytest.approx(tflops * 1e12)
    assert gpu.memory_bytes_per_s is not None
    assert gpu.memory_bytes_per_s.value == pytest.approx(memory_tb_per_s * 1e12)
    assert gpu.link_bytes_per_s is None
    peaks = {key: figure.value for key, figure in gpu.matrix_flop_per_s.items()}
    wider = {"int8": "bfloat16", "float8": "bfloat16", "bfloat16": "tf32"}
    for narrow, wide in wider.items():
        if wide in peaks:
            # Data sheets round.
            assert peaks[narrow] == pytest.approx(2 * peaks[wide], rel=0.003)
        else:
            assert gpu.absent[wide]
