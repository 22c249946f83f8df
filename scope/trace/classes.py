"""What a device event is, from the collective's metadata, the operator above it and its own name.

The order decides: the user's patterns, metadata and names of communication, copies; then kernels whose names say what
they are whatever launched them (torch's generic elementwise and reduction templates); then the operator, innermost
first; last the kernel's name.
"""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from scope.errors import ConfigError
from scope.structs import Record
from scope.trace.schema import KERNEL_CLASSES
from scope.trace.untyped import as_list, as_mapping

if TYPE_CHECKING:
    from pathlib import Path

_MOST_NAMES: Final = 16384
"""How many names' classes are remembered: the ranks of a job run the same kernels, and searching is dear."""

_HEAD, _TAIL = 1024, 256
"""Characters of a name that are searched: what tells a kernel stands first or last, and searching is quadratic."""

RULES_VERSION: Final = 13
"""Part of the key of the cache: raise it with every change of the rules."""


class Rule(NamedTuple):
    """Names that a pattern finds are of a class.

    Attributes:
        label: The class.
        pattern: What is searched; compiled when a name is first searched for it, since no trace needs them all.
        words: Texts in lower case, one of which stands in every name of ASCII that the pattern finds. Most names hold
            none of them, which is seen ten times faster than the pattern fails. Without any, it is always tried.
    """

    label: str
    pattern: str
    words: tuple[str, ...] = ()


def _rules(*given: tuple[str, str] | tuple[str, str, str], flags: str = "") -> tuple[Rule, ...]:
    return tuple(Rule(label, flags + pattern, tuple(" ".join(words).split())) for label, pattern, *words in given)


_compiled: Final = cache(re.compile)


COMMUNICATION_LIBRARIES: Final = _rules(
    # Names that nobody demangled, as ROCm's often are, hold the length of a word before it: `_ZN4mori3moe`.
    ("uccl", r"(?<![a-z])uccl(?:::|_|\d)", "uccl"),
    ("nixl", r"(?<![a-z])nixl", "nixl"),
    ("mori", r"(?<![a-z])mori(?:::|\d)|(?<![a-z])Ep(?:Dispatch|Combine)\w*Kernel", "mori epdispatch epcombine"),
    (
        "deep_ep",
        r"deep_?ep|hybrid_ep::|(?<![a-z])(?:inter|intra)node(?:_ll)?(?:::|\d)",
        "deepep deep_ep hybrid_ep internode intranode",
    ),
    (
        "nvshmem",
        r"nvshmem|(?:barrier|sync|quiet|signal|wait|rdxn|alltoall|fcollect|bcast|reducescatter)\w*_on_stream_kernel",
        "nvshmem _on_stream_kernel",
    ),
    (
        "symmetric_memory",
        r"symm_mem|symmetric_memory|multimem|(?:one|two)_shot_all_?reduce|ncclSym",
        "symm_mem symmetric_memory multimem _shot_all ncclsym",
    ),
    ("userbuffers", r"userbuffers", "userbuffers"),
    (
        "custom",
        r"cross_device_reduce|(?:one|two)_?shot|all_?reduce_fusion|quick_?reduce|custom_all_?reduce|mscclpp|lamport"
        r"|local_device_load_rmsnorm|reduce_scatter_cross_device|moeA2A|moe_?comm(?!on)|moe_?distribute_?(?:dispatch|combine)"
        r"|\bpplx::|\ba2a_(?:dispatch|combine)",
        "cross_device one_shot oneshot two_shot twoshot reduce_fusion quick_reduce quickreduce custom_all mscclpp"
        " lamport local_device_load moea2a moe_comm moecomm moe_distribute moedistribute pplx:: a2a_",
    ),
    ("rccl", r"rccl|msccl", "rccl msccl"),
    # NCCL's kernel for groups of one rank does not bear its name.
    ("nccl", r"nccl|(?<![a-z])oneRankReduce", "nccl onerankreduce"),
    ("hccl", r"hccl|\bhcom_", "hccl hcom_"),
    ("oneccl", r"oneccl|\bxccl", "oneccl xccl"),
    ("gloo", r"gloo", "gloo"),
    # No library's name, but a collective's. Case matters: `SmallReduce` is no all-reduce.
    (
        "custom",
        r"(?-i:(?<![A-Za-z])all_?(?:reduce|gather)|All_?(?:Reduce|Gather))|reduce_?scatter|all_?to_?all|all2all",
        "allreduce all_reduce allgather all_gather reducescatter reduce_scatter allto all_to all2all",
    ),
    flags="(?i)",
)
"""Kernel names by the library that communicates; first match wins."""

_LOCAL: Final = "get_dispatch_layout"
"""DeepEP's kernel, and that of libraries after it, which counts a rank's tokens by their targets and moves nothing."""

_SETS: Final = _rules(
    (
        "set",
        r"__amd_rocclr_fill(?:Buffer|Image)|^(?:hip)?Memset|^FillBuffer",
        "__amd_rocclr_fill memset fillbuffer",
    ),
    flags="(?i)",
)
_COPIES_AND_SETS: Final = (
    _rules(
        (
            "copy",
            r"__amd_rocclr_copy(?:Buffer|Image)|^MEMORY_COPY_|^(?:hip)?Memcpy|^CopyDevice|^CopyHost|^dma",
            "__amd_rocclr_copy memory_copy_ memcpy copydevice copyhost dma",
        ),
        flags="(?i)",
    )
    + _SETS
)

_COMPILED_KERNELS: Final = _rules(
    ("fused", r"^triton_(?:poi|red|per|for|unk|spl|mix)_"),
    ("gemm", r"^triton_(?:tem_.*(?:mm|linear)|(?:(?:scaled|grouped)_)?b?mm(?:_\d+)?$)"),
    ("attention", r"^triton_tem_.*(?:attention|flex)"),
    ("convolution", r"^triton_tem_.*conv"),
)
"""Kernels of compiled graphs bear the names of all operators around them, those of collectives among them."""

# What stands behind the first such words stands behind all of them: `^(?>.*?words).*` looks at the first alone, where
# `words.*` would start anew at each, in a time of the name's length squared.
_GENERIC_KERNELS: Final = _rules(
    (
        "normalisation",
        r"(?m)^(?>.*?at::native::).*(?:layer_norm|LayerNorm|batch_norm|group_norm|GroupNorm|RowwiseMoments|rms_norm)",
        "norm rowwisemoments",
    ),
    (
        "embedding",
        r"(?m)^(?>.*?at::native::).*(?:embedding|EmbeddingBag|indexSelect|krn_partial|compute_grad_weight|sum_and_scatter)",
        "embedding indexselect krn_partial compute_grad_weight sum_and_scatter",
    ),
    (
        "reduction",
        r"(?m)^(?>.*?at::native::).*(?:reduce_kernel|softmax|SoftMax|cunn_|nll_loss|ReduceOp)",
        "reduce_kernel softmax cunn_ nll_loss reduceop",
    ),
    (
        "optimizer",
        r"(?:FusedAdam|FusedSgd|FusedAdagrad|AdamFunctor|AdagradFunctor|LAMB)",
        "fusedadam fusedsgd fusedadagrad adamfunctor adagradfunctor lamb",
    ),
    (
        "elementwise",
        r"(?m)^(?>.*?at::native::).*(?:elementwise_kernel|CatArray|index_kernel|indexFunc|fused_dropout|triu_tril)",
        "elementwise_kernel catarray index_kernel indexfunc fused_dropout triu_tril",
    ),
    ("fused", r"^(?:CudaCodeGen|nvfuser|kernel_cuda_fusion)", "cudacodegen nvfuser kernel_cuda_fusion"),
    ("other", r"\bcheckForNaN\b", "checkfornan"),
)

_COMMUNICATION_OPERATORS: Final = _rules(
    ("communication", r"^(?:record_param_comms$|_?c10d(?:_functional)?::|symm_mem::|_C_custom_ar::)"),
)
_OPERATORS: Final = _COMMUNICATION_OPERATORS + _rules(
    (
        "attention",
        r"(?i)scaled_dot_product|flash_?attn|flash_attention|efficient_attention|flex_attention|cudnn_attention|fmha"
        r"|fused_attn|varlen_attn|paged_attention|unified_attention|xformers|mha_(?:fwd|bwd|batch)|\bmla_",
        "scaled_dot_product attn attention fmha xformers mha_ mla_",
    ),
    (
        "convolution",
        r"(?i)convolution|::_?(?:slow_|thnn_|cudnn_|miopen_|mkldnn_)?conv(?:_?(?:transpose|depthwise))?(?:_?[123]d)|cudnn_conv|miopen_conv",
        "conv",
    ),
    (
        "gemm",
        r"::_?(?:(?:scaled_|grouped_|int_|scaled_grouped_|sparse_semi_structured_)*(?:add)?mm|b?addbmm|bmm|addmv|mv|dot|vdot"
        r"|matmul|(?:sparse_semi_structured_)?linear|einsum|bilinear|tensordot|addr|ger|gemm\w*|\w*_gemm\w*|cublas\w*"
        r"|\w*scaled_mm|cslt_sparse_mm|weight_int[48]pack_mm\w*|dyn_quant_matmul_4bit)(?:_v2)?(?:_out|_)?$",
    ),
    ("normalisation", r"(?i)(?:batch|layer|group|instance|rms|local_response)_?norm", "norm"),
    ("embedding", r"(?i)embedding", "embedding"),
    (
        "optimizer",
        r"(?i)_fused_(?:adam|adamw|sgd|adagrad)|multi_tensor_(?:adam|sgd|lamb)|::_foreach_(?!norm)|Optimizer\.step",
        "_fused_ multi_tensor_ ::_foreach_ optimizer.step",
    ),
    (
        "reduction",
        r"::_?(?:sum|nansum|mean|max|min|amax|amin|aminmax|argmax|argmin|prod|norm|linalg_vector_norm|var|std|var_mean|std_mean"
        r"|any|all|logsumexp|log_softmax|softmax|_?log_softmax_backward_data|_?softmax_backward_data|_softmax|topk|sort|argsort"
        r"|cumsum|cumprod|nll_loss\w*|cross_entropy_loss|mse_loss|l1_loss|smooth_l1_loss|count_nonzero|unique\w*|bincount"
        r"|foreach_norm|is_nonzero|median|kthvalue|histc)(?:_forward|_backward)?(?:_out|_)?$",
    ),
    ("fused", r"^triton_|^nvFuser|^(?:CompiledFxGraph|torch_compile)"),
    (
        "elementwise",
        r"::_?(?:add|sub|rsub|mul|div|neg|abs|exp|log|log1p|sqrt|rsqrt|pow|square|sin|cos|tanh|sigmoid|relu|gelu|silu|mish|elu"
        r"|leaky_relu|hardtanh|hardswish|softplus|threshold|clamp|clamp_min|clamp_max|where|masked_fill|fill|zero|copy|to|clone|contiguous"
        r"|cat|stack|native_dropout|dropout|bernoulli|eq|ne|lt|le|gt|ge|logical_\w+|bitwise_\w+|floor|ceil|round|isnan|isinf|isfinite"
        r"|arange|full|ones|zeros|rand|randn|normal|uniform|random|addcmul|addcdiv|lerp|reciprocal|maximum|minimum|index|index_put"
        r"|gather|scatter|scatter_add|masked_select|roll|flip|repeat|tril|triu|upsample\w*|pad|constant_pad_nd|slice_backward|erf)"
        r"(?:_impl)?(?:_forward|_backward)?(?:_out|_)?$",
    ),
)

_KERNELS: Final = _rules(
    # One template for lists of tensors: what it applies to them says what it is.
    (
        "optimizer",
        r"(?m)^(?>.*?multi_tensor_apply).*(?i:adam|sgd|lamb(?!da)|adagrad|novograd|\blion)",
        "multi_tensor_apply",
    ),
    ("reduction", r"(?m)^(?>.*?multi_tensor_apply).*Norm", "multi_tensor_apply"),
    ("elementwise", r"(?m)^(?>.*?multi_tensor_apply).*Functor", "multi_tensor_apply"),
    # Norms that quantise or rotate their result too.
    ("normalisation", r"(?i)(?:layer|rms|qk)_?norm", "layernorm layer_norm rmsnorm rms_norm qknorm qk_norm"),
    (
        "elementwise",
        # DeepGEMM's namespace holds what prepares its scales too.
        r"(?i)_and_cache_|\bcast_|rotary|\brope_|_rope_|_quant(?:ize)?_|moe_permute|transpose_kernel"
        r"|deep_gemm::(?:transpose|pack)_",
        "_and_cache_ cast_ rotary rope_ _quant moe_permute transpose_kernel deep_gemm::",
    ),
    (
        "attention",
        # FlashInfer is a library of attention, norms, sampling and more.
        r"(?i)(?<!transformer_engine::)(?:flash(?!_?infer)|fmha|attention|attn|\bmha_|_mha_|\bmla_|_mla_"
        r"|(?:prefill|decode)\w*kv_?cache|flashinfer::\w*merge_?states?|(?<![a-z])pa_(?:bf16|fp16|fp8|fwd|decode|prefill)"
        r"|compute_dot_do_o|convert_dq)"
        r"|^_(?:fwd|bwd)_(?:grouped_)?kernel(?:_stage\d|_dk_?dv|_dq|_one_col_block)?$"
        r"|^_?bwd_(?:preprocess|kernel_(?:fuse|d[kqv]|causal|noncausal))",
        "flash fmha attention attn mha_ mla_ kvcache kv_cache pa_ compute_dot_do_o convert_dq _fwd_ _bwd_"
        " bwd_preprocess bwd_kernel_",
    ),
    (
        "convolution",
        r"(?i)conv(?!ert)|winograd|wgrad|dgrad|fprop|implicit_gemm|im2d?2?col|vol2col|nchwToNhwc|nhwcToNchw|miopenSp3|igemm|SubTensor"
        r"|MIOpenGemm|[sh]\d*cudnn|fft2d_[cr]2[cr]",
        "conv winograd wgrad dgrad fprop implicit_gemm im2 vol2col nchwtonhwc nhwctonchw miopensp3 igemm"
        " subtensor miopengemm cudnn fft2d_",
    ),
    (
        "normalisation",
        r"(?i)(?:batch|layer|group|rms|instance)_?norm|\bbn_(?:fw|bw)|\bln_(?:fwd|bwd|parallel)|MIOpenBatchNorm|_norm_kernel|l2norm_(?:fwd|bwd)"
        r"|GammaBeta|cuComputeGradInput",
        "norm bn_fw bn_bw ln_fwd ln_bwd ln_parallel gammabeta cucomputegradinput",
    ),
    (
        "gemm",
        # What CuTe's compiler makes bears the name of CUTLASS, whatever it computes.
        r"(?i)(?<!fb)gemm|gemv|fused_moe_kernel|(?<![a-z])fmoe|\bmarlin|machete|(?:\b|_)bmm_|Cijk_|nvjet|(?<!\bkernel_)cutlass"
        r"(?!_kernels)|cublas|splitK|matmul|tensile|_mm_kernel|scaled_mm|wgmma|s\d+816|::dot_kernel|\bdot_kernel",
        "gemm gemv fused_moe_kernel fmoe marlin machete bmm_ cijk_ nvjet cutlass cublas splitk matmul tensile"
        " _mm_kernel scaled_mm wgmma 816 dot_kernel",
    ),
    ("embedding", r"(?i)embedding|indexSelect", "embedding indexselect"),
    ("optimizer", r"(?i)(?<!h)adam|sgd|lamb(?!da)|\bk(?:Precondition)?Optimizer", "adam sgd lamb optimizer"),
    ("fused", r"^triton_|(?i:nvfuser)|fused_", "triton_ nvfuser fused_"),
    (
        "reduction",
        r"(?i)reduce|softmax|cross_entropy|argmax|amax_kernel|topk|sort|scan|cub::|rocprim::|pool",
        "reduce softmax cross_entropy argmax amax_kernel topk sort scan cub:: rocprim:: pool",
    ),
    (
        "elementwise",
        r"(?i)elementwise|vectorized|unrolled|copy|fill|CatArray|index|indices|gather|scatter|dropout|where|arange|transpose|pointwise"
        r"|act_and_mul|element_mul|swiglu|geglu|silu|gelu|quant|cvt_fp|\bcast|_cast|rotary|rope|tensor_kernel|op_tensor|distribution",
        "elementwise vectorized unrolled copy fill catarray index indices gather scatter dropout where arange"
        " transpose pointwise act_and_mul element_mul swiglu geglu silu gelu quant cvt_fp"
        " cast rotary rope tensor_kernel op_tensor distribution",
    ),
)

_COPY_DIRECTIONS: Final = _rules(
    ("H2D", r"(?i)HtoD|\b[MH]2D\b|Host\s?To\s?Device|HOST_TO_DEVICE|(?:Host|Pinned|Pageable) -> Device"),
    ("D2H", r"(?i)DtoH|\bD2[MH]\b|Device\s?To\s?Host|DEVICE_TO_HOST|Device -> (?:Host|Pinned|Pageable)"),
    ("P2P", r"(?i)PtoP|Peer"),
    ("D2D", r"(?i)DtoD|\bD2D\b|Device\s?To\s?Device|DEVICE_TO_DEVICE|Device -> Device"),
    ("H2H", r"(?i)HtoH|Host\s?To\s?Host|HOST_TO_HOST"),
)


class Pattern(Record, frozen=True):
    """A pattern of the user: kernels whose names it finds are of this class."""

    expression: re.Pattern[str]
    kernel_class: str


def read_patterns(path: Path) -> tuple[Pattern, ...]:
    """Read the user's patterns: a TOML file with `[[kernel]]` tables of `pattern` and `class`.

    Raises:
        ConfigError: The file cannot be read, or has mistakes; the message lists all of them.
    """
    # Few commands are given patterns, and all of them import this module.
    import tomllib

    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        message = f"{path}: cannot be read: {error.strerror or error}"
        raise ConfigError(message) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        message = f"{path}: is not TOML: {error}"
        raise ConfigError(message) from error
    entries = as_list(document.get("kernel", []))
    problems = [f"$.{key}: unknown; only [[kernel]] tables are known" for key in document if key != "kernel"]
    if not isinstance(document.get("kernel", []), list):
        problems.append("$.kernel: is not a list; write [[kernel]] with two pairs of brackets")
    patterns: list[Pattern] = []
    for index, entry in enumerate(entries):
        pattern = _pattern(entry, f"$.kernel[{index}]", problems)
        if pattern is not None:
            patterns.append(pattern)
    if problems:
        message = f"{path}: {len(problems)} mistakes: " + "; ".join(problems)
        raise ConfigError(message)
    return tuple(patterns)


def _pattern(entry: object, where: str, problems: list[str]) -> Pattern | None:
    fields = as_mapping(entry)
    expression, kernel_class = fields.get("pattern"), fields.get("class")
    if not isinstance(expression, str):
        problems.append(f"{where}.pattern: must be a regular expression in quotes")
    if kernel_class not in KERNEL_CLASSES:
        problems.append(f"{where}.class: {kernel_class!r} is none of {', '.join(KERNEL_CLASSES)}")
    if not isinstance(expression, str) or kernel_class not in KERNEL_CLASSES:
        return None
    try:
        return Pattern(re.compile(expression), str(kernel_class))
    except re.error as error:
        problems.append(f"{where}.pattern: {error}")
        return None


def _first(rules: tuple[Rule, ...], name: str) -> str | None:
    name = _searched(name)
    # Letters of other scripts may be equal to a Latin one but for their case.
    lowered = name.lower() if name.isascii() else None
    for label, pattern, words in rules:
        may_match = lowered is None or not words or any(word in lowered for word in words)
        if may_match and _compiled(pattern).search(name):
            return label
    return None


def _searched(name: str) -> str:
    """Return what is searched of a name; no pattern matches across the cut, which is a line's end."""
    return name if len(name) <= _HEAD + _TAIL else f"{name[:_HEAD]}\n{name[-_TAIL:]}"


@lru_cache(maxsize=_MOST_NAMES)
def communication_library(name: str) -> str | None:
    """Return the library that a kernel's name belongs to, or None when it names none that communicates."""
    return None if _LOCAL in _searched(name) else _first(COMMUNICATION_LIBRARIES, name)


@lru_cache(maxsize=_MOST_NAMES)
def fixed_class(name: str, patterns: tuple[Pattern, ...] = (), *, is_collective: bool = False) -> str | None:
    """Return the class that a kernel has whatever operator launched it, or None.

    Args:
        name: The kernel's name.
        patterns: The user's patterns, tried first.
        is_collective: The trace says that the kernel is part of a collective; only a name that is plainly no
            communication (a cast before it, the search for NaN) stands against that.
    """
    name = _searched(name)
    for pattern in patterns:
        if pattern.expression.search(name):
            return pattern.kernel_class
    compiled = _first(_COMPILED_KERNELS, name)
    if compiled is not None:
        return compiled
    if communication_library(name) is not None:
        return "communication"
    if _first(_COPIES_AND_SETS, name) is not None:
        return "memory"
    generic = _first(_GENERIC_KERNELS, name)
    return "communication" if generic is None and is_collective else generic


@lru_cache(maxsize=_MOST_NAMES)
def operator_class(name: str) -> str | None:
    """Return the class of the kernels that an operator of this name launches, or None when it does not tell."""
    return _first(_OPERATORS, name)


@lru_cache(maxsize=_MOST_NAMES)
def is_communication_operator(name: str) -> bool:
    """Say whether `operator_class` of a name is communication, without compiling the patterns of other classes."""
    return _first(_COMMUNICATION_OPERATORS, name) is not None


@lru_cache(maxsize=_MOST_NAMES)
def kernel_class(name: str) -> str:
    """Return the class by the kernel's name alone."""
    return _first(_KERNELS, name) or "other"


_TELLING_CLASSES: Final = frozenset({"gemm", "attention", "convolution", "normalisation"})


def class_under(operator: str | None, name: str) -> str:
    """Return the class of a kernel whose name is not decisive, launched by operators of the class `operator`.

    What an operator of communication launches communicates, unless its name says that it multiplies or the like, as
    in operators that fuse both.
    """
    if operator is None:
        return kernel_class(name)
    own = kernel_class(name) if operator == "communication" else None
    return own if own in _TELLING_CLASSES else operator


def copy_kind(name: str, argument: str = "") -> str | None:
    """Return the direction of a copy, `set`, or None when neither its name nor its `kind` argument tells."""
    if _first(_SETS, name) is not None:
        return "set"
    return _first(_COPY_DIRECTIONS, argument) or _first(_COPY_DIRECTIONS, name)
