"""Pictures that commands draw: what their files are asked before any work."""

from __future__ import annotations

from pathlib import Path

from flexcomp.files import require_writable


def require_picture(picture: Path, library: Path) -> None:
    """Raise InputError for a format that is not known, and OSError if the picture could not be written."""
    from flexcomp.report import picture_format

    picture_format(picture)
    require_writable(picture, reading=[library, library.with_suffix(".weights")])
