"""The compiled network as data and as bytes: what is in the library besides code, and the weights file.

`program.py` is the data, `formats.py` the authority for every byte; nothing here knows TVM.
"""

from flexcomp.doors import door

__getattr__, __dir__, __all__ = door(
    __name__,
    program="ALIGN Arg CountArg FirstArg Layer Load PAGE Port Program Rung ScratchArg Step TensorType Value ValueArg WeightArg "
        "Weights",
    formats="PROGRAM_KIND WeightsDigest decode_program encode_program write_weights",
    prediction="LayerTime Prediction from_program to_metadata",
    choices="Offer worth_recording",
    library="ELF_MACHINES require_library",
)
