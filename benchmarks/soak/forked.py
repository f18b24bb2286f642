"""The work of a forked child of a soak: everything anew, next to inherited sessions that cannot be used."""

from __future__ import annotations

import faulthandler
import os
import random
import shutil
import signal
from pathlib import Path

import numpy as np

import flexcomp
from benchmarks.soak.files import Expected, digest, version_files
from flexcomp.errors import ExecutionError, FlexcompError

LIMIT_S = 120  # then the child hangs, and ends itself
SHOWN_S = 40  # then the child prints its stacks: others may have the cores, or somebody a lock
RIGHT, WRONG_OUTPUT, USED_THE_PARENTS, OTHER_ERROR = range(4)
MEANINGS = ("right", "wrong output", "an inherited session ran", "an unexpected error")


def fork_and_check(chance: random.Random, inherited: flexcomp.Session, expected: Expected, store: Path, scratch: Path) -> str:
    """The result of a child, in words; "right" if all is well. No other thread may be loading a library."""
    seed = chance.getrandbits(32)
    child = os.fork()
    if child == 0:
        code = OTHER_ERROR
        try:
            signal.alarm(LIMIT_S)
            faulthandler.dump_traceback_later(SHOWN_S)
            code = _in_child(random.Random(seed), inherited, expected, store, scratch / str(os.getpid()))
        except FlexcompError as error:
            os.write(2, f"in a child: {type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    shutil.rmtree(scratch / str(child), ignore_errors=True)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"it did not end in {LIMIT_S} s" if number == signal.SIGALRM else signal.strsignal(number) or str(number)
    code = os.WEXITSTATUS(status)
    return MEANINGS[code] if code < len(MEANINGS) else f"exit status {code}"


def _in_child(chance: random.Random, inherited: flexcomp.Session, expected: Expected, store: Path, folder: Path) -> int:
    """Nothing here takes a lock that threads of the parent may have held."""
    try:
        inherited.run({port.name: np.zeros(port.shape, port.dtype) for port in inherited.inputs})
        return USED_THE_PARENTS
    except ExecutionError as error:
        if "forked" not in str(error) and "closed" not in str(error):
            raise
    if chance.random() < 0.5:
        inherited.close()
    folder.mkdir(parents=True)
    library = folder / f"{expected.name}.so"
    open_ones = []
    for version in chance.sample(sorted(expected.outputs), 2):  # files with a new inode each, over those that are open
        for source in version_files(store, expected.name, version):
            fresh = folder / "fresh"
            shutil.copyfile(source, fresh)
            fresh.rename(library.with_suffix(source.suffix))
        threads = chance.choice(sorted(expected.outputs[version]))
        open_ones.append((version, threads, flexcomp.load(library, "min", threads)))
        for opened, count, session in open_ones:
            for number, given in enumerate(expected.inputs):
                if digest(session.run(given)["output"]) not in expected.outputs[opened][count][number]:
                    return WRONG_OUTPUT
    for _, _, session in open_ones:
        session.close()
    return RIGHT
