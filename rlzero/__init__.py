"""rlzero: reinforcement learning of reasoning language models on verifiable rewards, in pure JAX.

Three storeys; imports only point down:

    kernels     pure functions of arrays; they import jax and nothing else
    library     models, rollout, rewards, data, training
    programs    train, evaluate, pretrain; each `main` reads from top to bottom

Array names carry their shape as a suffix where it helps (`tokens_BS`). The letters, used in code and docstrings alike:

    B  sequences                          V  vocabulary
    P  prompts (groups)                   D  model width
    G  responses per prompt (group size)  H  query heads
    T  completion tokens                  K  key-value heads
    S  prompt + completion tokens         L  layers
    N  packed tokens                      F  feed-forward width

Importing this package imports nothing else. Read `rlzero/train.py` next: its loop is the whole method.
"""

__version__ = "0.1.0"
