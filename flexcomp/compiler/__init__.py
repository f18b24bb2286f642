"""The build: a model goes in, a library and its weights come out.

`build.py` is the way through all rooms; `pipeline.py` orders the passes; the rest makes and links the artifact.
"""
