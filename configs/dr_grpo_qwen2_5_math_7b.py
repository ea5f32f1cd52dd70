"""Dr. GRPO on Qwen2.5-Math-7B ("Oat-Zero-7B"): 43.3 % on AIME 2024, 51.4 on average over five benchmarks, greedy.

    hf download Qwen/Qwen2.5-Math-7B --local-dir models/Qwen2.5-Math-7B
    python -m rlzero.plan --config=configs/dr_grpo_qwen2_5_math_7b.py --topology=v6e:2x4
    python -m rlzero.train --config=configs/dr_grpo_qwen2_5_math_7b.py --workdir=runs/dr_grpo_qwen2_5_math_7b

Source: arXiv 2503.20783, section 4 (the recipe: MATH levels 3 to 5, Qwen-Math template, 27 hours on 8 A100) and its
scripts: 128 prompts x 8 responses a step, mini-batches of 128 responses and so 8 updates, a constant 1e-6, prompts of
up to 1,024 and completions of up to 3,000 tokens, no KL term. Ours: the mesh, and rows of 4,096 tokens, one per chip.
"""

from rlzero.training.config import Config, algorithm_config


def get_config() -> Config:
    config = Config()
    config.algorithm = algorithm_config("dr_grpo")
    config.steps = 1000
    config.prompts_per_step = 128
    config.group_size = 8
    config.model.path = "models/Qwen2.5-Math-7B"
    config.model.shape = "Qwen2.5-Math-7B"
    config.model.remat = True
    config.model.attention = "auto"
    config.data.task = "math_levels_3_to_5"
    config.rollout.max_prompt_length = 1024
    config.rollout.max_completion_length = 3000
    config.optimizer.learning_rate = 1e-6
    config.learner.mini_batches = 8
    config.learner.micro_batch_size = 8
    config.learner.pack_tokens = 4096
    config.mesh.data = 1
    config.mesh.fsdp = 8
    config.evaluation.every_steps = 16
    config.evaluation.samples_per_problem = 1
    config.evaluation.temperature = 0.0
    return config
