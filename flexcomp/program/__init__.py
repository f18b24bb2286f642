"""The compiled network as data and as bytes: what is in the library besides code, and the weights file.

`program.py` is the data, `program_bytes.py` and `weights_file.py` are the authorities for every byte. Nothing here knows TVM.
"""

from flexcomp.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    program="ALIGN Arg CUDA CountArg DEFAULT EXTENTS FirstArg HOST Interleaved Layer PAGE Port Preparation Program "
        "RowsArg Rung ScratchArg State Strided TensorType ValidArg Value ValueArg WeightArg Weights",
    tapes="Delivery Operation Prepare Read Step Tapes",
    tape_writer="Cold Load Prepared tapes_of",
    program_bytes="PROGRAM_KIND decode_program decode_shapes encode_program encode_shapes",
    device_kernel="CODE_NBYTES COPIED_NBYTES DeviceKernel Extent Image Kind Launch MEMORY_UNIT PINNED_NBYTES",
    weights_file="write_weights",
    weight_errors="Narrowing WeightErrors",
    arithmetic_errors="ArithmeticErrors",
    digest="WeightsDigest",
    prediction="LayerTime Prediction from_program to_metadata",
    nodes="titled",
    choices="Candidate worth_recording",
    library="ELF_MACHINES require_library",
)
