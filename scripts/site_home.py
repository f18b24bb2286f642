"""The README as the home page of the site (a hook of MkDocs)."""

from pathlib import Path

from mkdocs.structure.files import File


def on_files(files, config):
    """Add README.md as index.md; its links to pages lose the folder."""
    text = (Path(config.config_file_path).parent / "README.md").read_text()
    files.append(File.generated(config, "index.md", content=text.replace("](docs/", "](")))
    return files
