"""The network in bands of rows, for budgets that whole activations would not fit in.

`split.py` cuts chains of layers, `choose.py` says where that pays, `forms.py` adds the result to a network.
"""
