"""Errors a user can meet. All derive from FlexcompError; messages name numbers, layers and the way out."""

from __future__ import annotations

from flexcomp.deprecated import OldAttribute, seconds


class FlexcompError(Exception):
    """Base of every error that flexcomp raises on purpose."""


class BudgetError(FlexcompError):
    """The memory budget is malformed, or below the smallest budget that has a plan."""


class UnsupportedModelError(FlexcompError):
    """The model is valid, but has a part that cannot be compiled."""


class ModelError(FlexcompError):
    """The model file is broken or not a model."""


class TargetError(FlexcompError):
    """The target is unknown, this machine cannot link for it, or the processor lacks features that the library needs."""


class CompilerError(FlexcompError):
    """A process that compiled kernels was ended: memory ran out, or the target lacks an instruction."""


class ArtifactError(FlexcompError):
    """The library or its weights file is missing, damaged, of another version, or of another model."""


class TuningError(FlexcompError):
    """A tuning database is broken, or a tuner has no device to measure on."""


class DeviceError(FlexcompError):
    """A remote device or its tracker cannot be reached, is busy, or has ended the session."""


class StorageError(FlexcompError):
    """Weights could not be read during an inference, and the session stays usable; or the weights file changed: load it again."""


class ExecutionError(FlexcompError):
    """A kernel failed, or the session is closed."""


class CancelledError(FlexcompError):
    """An inference was cancelled. The session is as before the inference."""


class InputError(FlexcompError, ValueError):
    """An input has the wrong name, shape or element type, or an option has a wrong value."""


class RefusedError(FlexcompError):
    """A pool does not run a request: too many requests wait, or the deadline cannot be met."""

    retry_after_s = OldAttribute("retry_after_ms", seconds)

    def __init__(self, message: str, reason: str, retry_after_ms: float) -> None:
        super().__init__(message)
        self.reason = reason  # "queue" or "deadline"
        self.retry_after_ms = retry_after_ms  # when asking again may help

    def __reduce__(self) -> tuple:
        return type(self), (str(self), self.reason, self.retry_after_ms)
