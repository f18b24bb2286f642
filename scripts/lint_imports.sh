#!/usr/bin/env bash
# Checks the contracts of pyproject.toml on imports: which package uses which.
#
#   scripts/lint_imports.sh VENV
#
# passes/ and schedules/ are parts of flexcomp only once they are installed: links put them where they belong.
set -euo pipefail
venv=$(realpath "$1")
root=$(cd "$(dirname "$0")/.." && pwd)
tree=$root/build/imports
rm -rf "$tree"
mkdir -p "$tree/flexcomp"
ln -s "$root"/flexcomp/* "$root/passes" "$root/schedules" "$root/runtime_ext" "$tree/flexcomp"
cd "$tree"
# -S: without the finder of the editable install, which knows other places for the same names.
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
PYTHONPATH=$tree:$site exec "$venv/bin/python" -S -c 'from importlinter.cli import lint_imports_command as main; main()' \
    --config "$root/pyproject.toml" --no-cache
