"""Fuzz programs, weights files, greetings and models, run changed artifacts, and draw for property tests: `make fuzz`.

Builds the fuzzers (clang, libFuzzer) and a few small networks in build/fuzz, shares the seconds of all cores out, and prints
what was done.
Ends with 1 at the first report, crash, hang or broken promise; what caused it is then in build/fuzz/found.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from tests.fuzz import properties

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "fuzz"
NETWORKS, FOUND, CORPUS = BUILD / "networks", BUILD / "found", Path(__file__).parent / "corpus"
# Of the seconds: what each fuzzer gets, and the longest input that it makes.
FUZZERS = {"program": (0.18, 8192), "weights": (0.08, 16384), "greeting": (0.06, 2048), "device_kernel": (0.03, 2048)}
ARTIFACTS, PROPERTIES, MODELS = 0.2, 0.1, 0.35


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=120, help="for all of it, on all cores, without compiling")
    parser.add_argument("--only", choices=[*FUZZERS, "artifacts", "properties", "models"], help="give one of them all seconds")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31), help="drawn and printed by default")
    args = parser.parse_args()
    shares = {name: share for name, (share, _) in FUZZERS.items()}
    shares |= {"artifacts": ARTIFACTS, "properties": PROPERTIES, "models": MODELS}
    if args.only:
        shares = {args.only: 1.0}
    print(f"seed {args.seed}", flush=True)
    if fuzzed := [name for name in shares if name not in ("properties", "models")]:
        _build(fuzzed)
        _write_networks()
    FOUND.mkdir(parents=True, exist_ok=True)
    cores = len(os.sched_getaffinity(0))
    longest_first = sorted(shares, key=shares.get, reverse=True)  # so that all cores end together

    def run(name: str) -> int:
        seconds = args.seconds * min(1.0, cores * shares[name])
        match name:
            case "artifacts":
                _artifacts(seconds, args.seed)
            case "properties":
                properties.run(seconds, args.seed)
            case "models":
                _models(seconds, args.seed)
            case _:
                return _fuzz(name, seconds, args.seed)
        return 0

    with ThreadPoolExecutor(cores) as pool:
        try:
            executions = sum(pool.map(run, longest_first))
        except SystemExit:
            pool.shutdown(cancel_futures=True)
            raise
    if executions:
        print(f"{executions:,} executions of readers and checks")
    return 0


def _build(targets: list[str]) -> None:
    if shutil.which("clang++") is None:
        sys.exit("clang++ is missing: apt-get install clang libclang-rt-14-dev")
    BUILD.mkdir(parents=True, exist_ok=True)
    names = [target if target == "artifacts" else f"fuzz_{target}" for target in targets]
    configure = ["cmake", "-S", str(Path(__file__).parent), "-B", str(BUILD), "-DCMAKE_CXX_COMPILER=clang++"]
    _quietly([*configure, f"-DPython_EXECUTABLE={sys.executable}"])
    _quietly(["cmake", "--build", str(BUILD), "--parallel", str(os.cpu_count()), "--target", *names])


def _quietly(command: list[str]) -> None:
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}")


def _write_networks() -> None:
    """The networks and, for the fuzzer, smaller programs, unless they were made by these sources."""
    from flexcomp import runtime_ext
    from flexcomp.program.digest import Checksum, WeightsDigest
    from flexcomp.program.program_bytes import decode_program, decode_weights_digest
    from tests.by_hand import encode_program
    from tests.fuzz import networks
    from tests.runtime import tiny

    sources = [*ROOT.glob("flexcomp/**/*.py"), runtime_ext.runtime_object(), Path(networks.__file__)]
    newest = max(source.stat().st_mtime for source in sources)
    stamp = NETWORKS / "stamp"
    if stamp.exists() and stamp.stat().st_mtime > newest:
        return
    networks.write(NETWORKS)
    seeds = BUILD / "seeds" / "program"
    seeds.mkdir(parents=True, exist_ok=True)
    program = tiny.make_program(2, "tiny_")
    whole = Checksum(0, program.weights_nbytes, 0)
    (seeds / "tiny").write_bytes(encode_program(program, WeightsDigest(4096, 0, program.weights_nbytes, (whole,))))
    for path in NETWORKS.glob("*.program"):
        blob = path.read_bytes()
        program = decode_program(blob)
        short = replace(program, rungs=program.rungs[:1], metadata={}, features=())
        (seeds / path.stem).write_bytes(encode_program(short, decode_weights_digest(blob)))
    stamp.touch()


def _fuzz(name: str, seconds: float, seed: int) -> int:
    """Run a fuzzer; its executions."""
    grown = BUILD / "corpus" / name
    grown.mkdir(parents=True, exist_ok=True)
    corpora = [grown, *(folder for folder in (BUILD / "seeds" / name, CORPUS / name) if folder.exists())]
    command = [str(BUILD / f"fuzz_{name}"), *map(str, corpora), f"-max_len={FUZZERS[name][1]}", f"-seed={seed % (1 << 31) + 1}"]
    command += [f"-max_total_time={max(1, round(seconds))}", "-timeout=20", f"-artifact_prefix={FOUND}/", "-print_final_stats=1"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    if done.returncode:
        sys.exit(f"{done.stderr[-8000:]}\nfuzz_{name} found something: see {FOUND}")
    executions = int(re.search(r"stat::number_of_executed_units: *(\d+)", done.stderr)[1])
    coverage = re.findall(r"cov: (\d+)", done.stderr)
    print(f"fuzz_{name}: {executions:,} executions, {coverage[-1] if coverage else 0} edges covered", flush=True)
    return executions


def _artifacts(seconds: float, seed: int) -> None:
    names = [str(path.with_suffix("")) for path in sorted(NETWORKS.glob("*.program"))]
    command = [str(BUILD / "artifacts"), str(max(1, round(seconds))), str(seed), *names]
    options = "allocator_may_return_null=1:handle_segv=0:handle_abort=0:handle_sigbus=0:handle_sigfpe=0:handle_sigill=0"
    done = subprocess.run(command, cwd=FOUND, env=os.environ | {"ASAN_OPTIONS": options}, check=False)
    if done.returncode:
        sys.exit(f"artifacts found something: see {FOUND}")


def _models(seconds: float, seed: int) -> None:
    command = [sys.executable, "-m", "tests.fuzz.models.run", "--seconds", str(seconds), "--seed", str(seed)]
    if subprocess.run(command, cwd=ROOT, check=False).returncode:
        sys.exit(f"the fuzzer of models found something: see {FOUND / 'models'}")


if __name__ == "__main__":
    sys.exit(main())
