"""The build: a model goes in, a library and its weights come out.

`builder.py` is the way through all rooms; `pipeline.py` orders the passes; the rest makes and links the artifact.
"""

from flexcomp.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    builder="build types_of",
    artifact="Artifact",
    options="Options Request Weights options_of",
    shapes="declared_shapes",
    model_folder="ModelFolder read_model_folder",
    probing="probed_profile",
    weights="evaluate",
    weight_types="WeightTypes",
    calibration="Given",
    machine_code="by_symbol compile_module",
    linker="cache_for compiled cross_compiler linker_for own_flags require_linker runtime_object_for",
)
