"""A process that compiles kernels: `python -m flexcomp.compiler.worker`.

Reads pickled jobs from standard input until that ends: (symbol, kernel as TVM's JSON, target as text). Answers each on
standard output with a pickled (object file, None) or (None, traceback).
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import traceback


def main() -> None:
    """Until there are no more jobs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever asked is interrupted, and ends this process
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # whatever else is printed is no answer

    import tvm

    from flexcomp.compiler.machine_code import compile_object
    from flexcomp.device import resolve_target

    while True:
        try:
            symbol, kernel, target = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            answer = compile_object(symbol, tvm.ir.load_json(kernel), resolve_target(target)), None
        except Exception:  # whatever it is, the process that builds raises it
            answer = None, traceback.format_exc()
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    main()
