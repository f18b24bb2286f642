"""`flexcomp build`: compile a model and write the library and its weights file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from flexcomp.cli.command import HelpAll
from flexcomp.cli.common import (
    CANNOT_BUILD,
    USAGE,
    checked_budget,
    exit_on_error,
    parse_extents,
    parse_pads,
    parse_shapes,
    parse_states,
    parse_values,
    require_model,
)
from flexcomp.cli.names import BUDGETS, completed, known_option
from flexcomp.cli.operator_options import Operators, custom_operators
from flexcomp.cli.weight_options import Calibration, MaxError, Weights, types_by_pattern, weight_types
from flexcomp.compiler.known import (
    ARITHMETICS,
    CONTEXT,
    DEFAULT_ARITHMETIC,
    DEFAULT_STORE,
    KERNELS,
    STATE_TYPES,
    STORES,
)
from flexcomp.device.presets import GPU_PRESETS, PRESETS
from flexcomp.errors import InputError
from flexcomp.files import require_space, require_writable
from flexcomp.plan import STRATEGIES
from flexcomp.report.progress import BuildProgress
from flexcomp.runtime import parse_budget


def build(
    model: Annotated[Path, typer.Argument(help="An .onnx file, or a decoder's folder as hubs lay it out.")],
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            help="The library to write: NAME.so, or NAME.o for programs in C. NAME.weights is written next to it.",
        ),
    ],
    target: Annotated[
        str,
        typer.Option(
            help=f"The device: native (this machine), {', '.join([*PRESETS, *GPU_PRESETS])}, options of LLVM, "
            "e.g. 'llvm -mtriple=aarch64-linux-gnu -mcpu=cortex-a76', or a GPU, e.g. 'cuda -arch=sm_87', with such options "
            "for the CPU next to it.",
            autocompletion=completed(["native", *PRESETS, *GPU_PRESETS]),
        ),
    ] = "native",
    budget: Annotated[
        str | None,
        typer.Option(
            callback=checked_budget,
            autocompletion=completed(BUDGETS),
            help="Make a plan for this memory: 64MB, 64MiB, bytes, a fraction such as 0.1 or 10%, min, or all (everything "
            "resident). The library always has plans from the smallest budget to everything resident.",
        ),
    ] = None,
    input: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME:1,3,224,224", help="Shape of an input with dynamic axes; extents may be names of --shape."),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=16,64",
            rich_help_panel="Model",
            help="Extents of a name in --input. The library has every combination of them, over one weights file.",
        ),
    ] = None,
    pad: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=0",
            rich_help_panel="Model",
            help="Sessions pad this input with this number, up to the next extent of --shape. Refused if outputs change.",
        ),
    ] = None,
    input_value: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=16000",
            rich_help_panel="Model",
            help="The value of this input in all inferences: a constant of the library.",
        ),
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(help="Measured rates of the machine that will run the network, from `flexcomp profile`.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads to compile for; by default as many as the target has cores.")
    ] = None,
    strategy: Annotated[str, known_option(STRATEGIES, "The planner", rich_help_panel="Planning")] = "best",
    kernels: Annotated[
        str,
        known_option(
            KERNELS,
            "Kernels of the library; 'auto': for every budget the fastest that fit; 'flexnn': the first that fits in "
            "FlexNN's order",
            rich_help_panel="Planning",
        ),
    ] = "auto",
    store: Annotated[
        str,
        known_option(
            STORES,
            "Forms of weights in the file; 'once': one, from which loading prepares others; 'prepared': those of all kernels; "
            "'auto': one, and up to a quarter more bytes where preparing is impossible or slow",
            rich_help_panel="Weights",
        ),
    ] = DEFAULT_STORE,
    state: Annotated[
        list[str] | None,
        typer.Option(
            metavar="OUTPUT=INPUT",
            help="The output becomes this input of the next inference, unseen by callers. A * on both sides stands for the same "
            "text: 'present.*=past_key_values.*'. An input with its own name stays as it is set.",
        ),
    ] = None,
    state_type: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[PATTERN=]TYPE",
            rich_help_panel="Weights",
            help="Keep caches of keys and values in float16 or int8; or those of the inputs that match a pattern.",
        ),
    ] = None,
    onnx: Annotated[
        str | None,
        typer.Option(metavar="FILE", rich_help_panel="Language models", help="The .onnx file, if a folder has several."),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            min=1,
            rich_help_panel="Language models",
            help=f"Tokens that a folder's decoder keeps; by default {CONTEXT}, or the decoder's maximum if this is less.",
        ),
    ] = None,
    operators: Operators = None,
    weights: Weights = None,
    max_error: MaxError = None,
    calibration: Calibration = None,
    arithmetic: Annotated[
        str,
        known_option(
            ARITHMETICS,
            "The type that layers multiply; float16 on AArch64 with half precision, bfloat16 on x86 with AVX512_BF16 and "
            "AArch64 with BF16: for activations, too; int8: for weights in blocks, times activations rounded to 8 bits; auto: "
            "16 bits, where outputs stay within --max-error",
        ),
    ] = DEFAULT_ARITHMETIC,
    tf32: Annotated[
        bool,
        typer.Option(
            "--tf32",
            rich_help_panel="GPUs",
            help="Multiply on the tensor cores of a GPU from sm_80 on: operands are rounded to TF32, 10 bits of mantissa.",
        ),
    ] = False,
    tuning: Annotated[
        Path | None, typer.Option(metavar="DATABASE", help="Use the times that `flexcomp tune` measured.")
    ] = None,
    cache: Annotated[
        bool,
        typer.Option(
            "--cache/--no-cache",
            rich_help_panel="This machine",
            help="Keep machine code of kernels for other builds, and use kept code.",
        ),
    ] = True,
    probe: Annotated[
        bool | None,
        typer.Option(
            "--probe/--no-probe",
            rich_help_panel="This machine",
            show_default=False,
            envvar="FLEXCOMP_PROBE",
            help="Measure the storage under the output and a core, once, for plans of this machine without --profile. "
            "By default builds try that.",
        ),
    ] = None,
    help_all: HelpAll = False,
) -> None:
    """Compile MODEL for a device and a memory budget.

    A folder holds a decoder, an encoder or both, and a tokenizer. Shapes, state and padding follow from its files, unless options
    say otherwise; files for text are copied next to the library, where `flexcomp generate` and `serve` find them.
    """
    extents = parse_extents(shape or [])
    inputs = parse_shapes(input or [], extents)
    pads = parse_pads(pad or [])
    states = parse_states(state or [])
    values = parse_values(input_value or [])
    types = weight_types(weights or [])
    state_types = types_by_pattern(state_type or [], STATE_TYPES, "--state-type")
    if output.suffix not in (".so", ".o"):
        raise typer.BadParameter(f"'{output}' does not end in .so, nor in .o", param_hint="'--output'")
    # Checks come first: importing and compiling take minutes.
    with exit_on_error(CANNOT_BUILD):
        hub = None
        if model.is_dir():
            from flexcomp.compiler import read_model_folder

            hub = read_model_folder(model, onnx, context)
            hub.require_room_for_texts(output.parent)
            model, inputs = hub.model, {**hub.input_shapes, **inputs}
            states, extents, pads = {**hub.state, **states}, extents or dict(hub.shapes), {**hub.pad, **pads}
        elif onnx is not None or context is not None:
            raise InputError(f"--onnx and --context are for a model's folder, and {model} is none")
        part = None if hub is None else hub.encoder
        sources = [model] if part is None else [model, part.model.encoder, part.model.decoder]
        outputs = [output] if hub is None else hub.libraries(output)
        for source in sources:
            require_model(source)
        for path in (one for library in outputs for one in (library, library.with_suffix(".weights"))):
            require_writable(path, reading=sources)
        for beside in (library.with_suffix(".weights") for library in outputs):
            if beside.exists():
                from flexcomp.frontend import external_files

                require_writable(beside, reading=set().union(*map(external_files, sources)))
        require_space(output, model.stat().st_size, "the model alone")
    with exit_on_error(USAGE):
        added = custom_operators(operators)
        from flexcomp.device import load_profile
        from flexcomp.profiling import Database

        rates = None if profile is None else load_profile(profile)
        if tuning is not None:
            Database.read(tuning)
    with exit_on_error(CANNOT_BUILD):
        from flexcomp import build as compile_model
        from flexcomp.compiler import require_linker
        from flexcomp.device import require_supported, resolve_target, with_arithmetic, with_tf32

        resolved = resolve_target(target)
        require_supported(resolved)
        if tf32:
            with_tf32(resolved)
        with_arithmetic(resolved, arithmetic)
        if (note := require_linker(resolved)) is not None:
            typer.echo(f"{model.name}: {note}", err=True)

        if probe is not False and target == "native" and rates is None:
            from flexcomp.compiler import probed_profile

            folder = next(folder for folder in output.absolute().parents if folder.exists())  # the others will be made
            try:
                rates, note = probed_profile(folder, resolved)
            except InputError as error:
                if probe:
                    raise
                note = f"{error}; planned for guessed rates"
            typer.echo(f"{model.name}: {note}", err=True)
        options: dict[str, Any] = dict(
            target=resolved, budget=budget, threads=threads, strategy=strategy, kernels=kernels, store=store, profile=rates,
            probe=False, tuning=tuning, cache=cache, weights=types, max_error=max_error, tf32=tf32, arithmetic=arithmetic,
            custom_operators=added,
        )  # fmt: skip
        with BuildProgress(model.name) as progress:
            artifact = compile_model(
                str(model), input_shapes=inputs or None, shapes=extents or None, input_values=values or None, pad=pads or None,
                state=states or None, state_type=state_types, calibration=calibration, progress=progress, **options,
            )  # fmt: skip
            artifact.export_library(str(output), progress=progress)
        if part is not None:
            with BuildProgress(part.model.encoder.name) as progress:
                encoder = compile_model(
                    part.model, input_shapes=part.input_shapes, shapes=part.shapes or None, pad=part.pad or None,
                    progress=progress, **options,
                )  # fmt: skip
                encoder.export_library(str(outputs[1]), progress=progress)
        if hub is not None:
            hub.copy_texts(output.parent)
        from flexcomp.report import closing_lines

        for one, path in zip([artifact] if part is None else [artifact, encoder], outputs, strict=True):
            for line in closing_lines(one.programs, path, parse_budget(budget), here=target == "native"):
                typer.echo(line)
