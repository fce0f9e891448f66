"""What the commands in scripts/ share: they parse their flags and say what is measured; the rest is here.

The modules need Python 3.9 and its standard library. Only those in `torch_side` import PyTorch, and they run as
processes of their own, in whichever Python has it.
"""
