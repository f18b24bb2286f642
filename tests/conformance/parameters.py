"""Which inputs of a node test are parameters: initialisers, as in the networks that users have.

ONNX's node tests pass everything as inputs, also what no exporter makes one: the axes of a Reduce, the weights of a
convolution. flexcomp compiles networks of static shapes, whose weights lie in a file. So by a fixed table, whatever the
outcome of the test, an input is made an initialiser with the value that the test gives it, if

- its value decides shapes of results, or which code is run: shapes, axes, pads, counts, bounds, thresholds; or
- networks keep it as a weight: filters, biases, scales and statistics of normalisation, quantisation parameters.

All others, data, indices, masks and states, remain inputs, the second operand of binary operators and of MatMul as well.
"""

from __future__ import annotations

import onnx

_RECURRENT = ("W", "R", "B", "P")
_WINDOW = ("size",)
_REDUCE = ("axes",)

# operator → names of formal parameters in its schema
PARAMETERS: dict[str, tuple[str, ...]] = {
    "AffineGrid": ("size",),
    "BatchNormalization": ("scale", "B", "input_mean", "input_var"),
    "BlackmanWindow": _WINDOW,
    "CausalConvWithState": ("weight", "bias"),
    "CenterCropPad": ("shape",),
    "Clip": ("min", "max"),
    "Col2Im": ("image_shape", "block_shape"),
    "ConstantOfShape": ("input",),
    "Conv": ("W", "B"),
    "ConvInteger": ("w", "x_zero_point", "w_zero_point"),
    "ConvTranspose": ("W", "B"),
    "CumProd": ("axis",),
    "CumSum": ("axis",),
    "DFT": ("dft_length", "axis"),
    "DeformConv": ("W", "B"),
    "DequantizeLinear": ("x_scale", "x_zero_point"),
    "Dropout": ("ratio", "training_mode"),
    "Expand": ("shape",),
    "GRU": _RECURRENT,
    "Gemm": ("B", "C"),
    "GroupNormalization": ("scale", "bias"),
    "HammingWindow": _WINDOW,
    "HannWindow": _WINDOW,
    "InstanceNormalization": ("scale", "B"),
    "LSTM": _RECURRENT,
    "LayerNormalization": ("Scale", "B"),
    "Loop": ("M", "cond"),
    "MatMulInteger": ("B", "a_zero_point", "b_zero_point"),
    "MaxUnpool": ("output_shape",),
    "MelWeightMatrix": ("num_mel_bins", "dft_length", "sample_rate", "lower_edge_hertz", "upper_edge_hertz"),
    "NegativeLogLikelihoodLoss": ("weight",),
    "NonMaxSuppression": ("max_output_boxes_per_class", "iou_threshold", "score_threshold"),
    "OneHot": ("depth", "values"),
    "PRelu": ("slope",),
    "Pad": ("pads", "constant_value", "axes"),
    "QLinearConv": ("x_scale", "x_zero_point", "w", "w_scale", "w_zero_point", "y_scale", "y_zero_point", "B"),
    "QLinearMatMul": (
        "a_scale", "a_zero_point", "b", "b_scale", "b_zero_point", "y_scale", "y_zero_point",
    ),
    "QuantizeLinear": ("y_scale", "y_zero_point"),
    "RMSNormalization": ("scale",),
    "RNN": _RECURRENT,
    "Range": ("start", "limit", "delta"),
    **{
        f"Reduce{kind}": _REDUCE
        for kind in ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
    },
    "Reshape": ("shape",),
    "Resize": ("roi", "scales", "sizes"),
    "STFT": ("frame_step", "window", "frame_length"),
    "Slice": ("starts", "ends", "axes", "steps"),
    "SoftmaxCrossEntropyLoss": ("weights",),
    "Split": ("split",),
    "Squeeze": ("axes",),
    "Tile": ("repeats",),
    "TopK": ("K",),
    "Trilu": ("k",),
    "Unsqueeze": ("axes",),
    "Upsample": ("scales",),
}  # fmt: skip


def parameters_of(node: onnx.NodeProto, opset: int) -> set[str]:
    """Names of the node's inputs that are parameters."""
    chosen = PARAMETERS.get(node.op_type, ()) if node.domain in ("", "ai.onnx") else ()
    formal = [i.name for i in onnx.defs.get_schema(node.op_type, opset, node.domain).inputs]
    return {given for name, given in zip(formal, node.input, strict=False) if name in chosen and given}
