"""The trainer: what an experiment is (config), how it learns (batch, learner) and what it leaves behind.

Start with `config.py`, whose fields are the flags of the programs, then read `rlzero/train.py`.
"""
