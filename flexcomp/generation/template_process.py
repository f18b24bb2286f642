"""The program of a process that forms conversations (`template.py`): the template first, then messages, each with its length.

It uses none of flexcomp, so that it starts quickly, and takes little memory.
"""

from __future__ import annotations

import json
import os
import resource
import select
import sys
from typing import Any

_IDLE_S = 30.0
_MOST_MEMORY = 128 << 20
_LONGEST = 1 << 24  # characters of a conversation


def main() -> None:
    """Answer until nobody asks for a while, or the other end is closed."""
    packages, seconds = sys.argv[1], float(sys.argv[2])
    sys.path.append(packages)
    source, template = _read().decode(), None
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while asked := _read():
        used = resource.getrusage(resource.RUSAGE_SELF)
        # In whole seconds: then the system ends the process, whatever computes.
        resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime + seconds) + 1, resource.RLIM_INFINITY))
        try:
            template = template or _compiled(source)
            answer = {"text": _formed(template, json.loads(asked))}
        except MemoryError:
            answer = {"error": f"takes more than {_MOST_MEMORY >> 20} MiB of memory: correct it"}
        except RecursionError:
            answer = {"error": "calls itself without end: correct it"}
        except Exception as error:  # whatever a template raises is an answer: the process serves the next messages
            answer = {"error": f"refuses the messages: {str(error)[:2000]}"}
        _write(json.dumps(answer).encode())


def _compiled(source: str) -> Any:
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment.globals["raise_exception"] = refuse
    return environment.from_string(source)


def _formed(template: Any, asked: dict[str, Any]) -> str:
    parts, length = [], 0
    for part in template.generate(messages=asked["messages"], add_generation_prompt=True, **asked["names"]):
        parts.append(part)
        length += len(part)
        if length > _LONGEST:
            raise ValueError(f"it makes more than {_LONGEST} characters")
    return "".join(parts)


def _read() -> bytes:
    """The next text; none at the end."""
    if not select.select([0], [], [], _IDLE_S)[0]:
        return b""
    return _exactly(int.from_bytes(_exactly(8), "little"))


def _exactly(nbytes: int) -> bytes:
    """So many bytes; none if the other end is closed before."""
    found = bytearray()
    while len(found) < nbytes:
        if not (more := os.read(0, nbytes - len(found))):
            return b""
        found += more
    return bytes(found)


def _write(text: bytes) -> None:
    left = memoryview(len(text).to_bytes(8, "little") + text)
    while left:
        left = left[os.write(1, left) :]


if __name__ == "__main__":
    main()
