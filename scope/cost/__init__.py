"""What work should cost: FLOPs and bytes of operators, bytes and times of collectives, memory of a training state."""

from scope.cost.call import Argument, OperatorCall, TensorArg, parse_call
from scope.cost.collectives import (
    bytes_per_link,
    data_parallel_step_bytes,
    expected_time_ns,
    num_hops,
    uneven_all_to_all_bytes,
)
from scope.cost.dtypes import dtype_in_kernel_name, element_bytes, matrix_path, normalise_dtype
from scope.cost.operators import (
    estimate_call,
    estimate_operator,
    has_model,
    has_part_models,
    is_matrix_operator,
    modelled_operators,
)
from scope.cost.result import MATRIX_FAMILIES, OperatorCost
from scope.cost.training import (
    StateBytes,
    TransformerShape,
    checkpoint_bytes,
    decode_tokens_per_s,
    layout_problems,
    least_gpus,
    mixed_precision_adam_bytes,
    moe_active_parameters,
    run_seconds,
    transformer_flops_per_token,
)

__all__ = [
    "MATRIX_FAMILIES",
    "Argument",
    "OperatorCall",
    "OperatorCost",
    "StateBytes",
    "TensorArg",
    "TransformerShape",
    "bytes_per_link",
    "checkpoint_bytes",
    "data_parallel_step_bytes",
    "decode_tokens_per_s",
    "dtype_in_kernel_name",
    "element_bytes",
    "estimate_call",
    "estimate_operator",
    "expected_time_ns",
    "has_model",
    "has_part_models",
    "is_matrix_operator",
    "layout_problems",
    "least_gpus",
    "matrix_path",
    "mixed_precision_adam_bytes",
    "modelled_operators",
    "moe_active_parameters",
    "normalise_dtype",
    "num_hops",
    "parse_call",
    "run_seconds",
    "transformer_flops_per_token",
    "uneven_all_to_all_bytes",
]
