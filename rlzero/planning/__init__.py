"""Planning a run without its accelerators: what `rlzero.plan` compiles, reads and estimates. Start at `program.py`."""
