"""The compiled network as data and as bytes: what is in the library besides code, and the weights file.

`program.py` is the data, `formats.py` the authority for every byte; nothing here knows TVM.
"""
