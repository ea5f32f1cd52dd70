"""DAPO on Qwen2.5-32B: 50 points on AIME 2024 (avg@32) in the paper, from a base model that starts near 0.

    hf download Qwen/Qwen2.5-32B --local-dir models/Qwen2.5-32B
    python -m rlzero.plan --config=configs/dapo_qwen2_5_32b.py --topology=v5p:4x4x4
    python -m rlzero.train --config=configs/dapo_qwen2_5_32b.py --workdir=runs/dapo_qwen2_5_32b

Source: arXiv 2503.14476, sections 2.3 (no KL term), 2.4 (rewards +1 and -1), 4.1 (training details) and table 1: 512
prompts x 16 responses a step, mini-batches of 512 responses and so 16 updates, AdamW at a constant 1e-6 after 20
rollout steps of warm-up, clipping at 0.2 and 0.28, 16,384 expected tokens and 4,096 more under the soft penalty,
token-level loss, dynamic sampling, evaluation at temperature 1.0 and top-p 0.7. The data is DAPO-Math-17k, whose
answers are integers. Not in the paper but in the script of verl's `recipe/dapo`: prompts of up to 2,048 tokens in the
tokenizer's chat template, a weight decay of 0.1 and gradients clipped at 1.0; its warm-up is 10 steps, the paper's 20.
The published files repeat their problems, DAPO-Math-17k 100 times and AIME 2024 32 times; they are read once. Ours: the
number of steps, the mesh, and rows of 22,528 tokens that short completions share, one per chip at a time.
"""

from rlzero.training.config import Config, algorithm_config


def get_config() -> Config:
    config = Config()
    config.algorithm = algorithm_config("dapo")
    config.steps = 600
    config.prompts_per_step = 512
    config.group_size = 16
    config.model.path = "models/Qwen2.5-32B"
    config.model.shape = "Qwen2.5-32B"
    config.model.remat = True
    config.model.attention = "auto"
    config.data.files = "data/dapo-math-17k.parquet"
    config.data.layout = "dapo"
    config.data.template = "chat"
    config.evaluation.files = "data/aime-2024.parquet"
    config.evaluation.layout = "dapo"
    config.rollout.max_prompt_length = 2048
    config.rollout.max_completion_length = 16_384 + 4096
    config.reward.correct = 1.0
    config.reward.wrong = -1.0
    config.optimizer.learning_rate = 1e-6
    config.optimizer.warmup_steps = 20
    config.optimizer.weight_decay = 0.1
    config.learner.mini_batches = 16
    config.learner.micro_batch_size = 64
    config.learner.pack_tokens = 2048 + 16_384 + 4096
    config.mesh.data = 4
    config.mesh.fsdp = 16  # one plane of the torus: over all 64 the compiler gathers by all-reduce, twice the bytes
    config.checkpoint.every_steps = 10
    config.evaluation.problems = 2000  # rows of the file, all there are: 30 problems
    config.evaluation.every_steps = 10
    config.evaluation.samples_per_problem = 32
    config.evaluation.temperature = 1.0
    config.evaluation.top_p = 0.7
    return config
