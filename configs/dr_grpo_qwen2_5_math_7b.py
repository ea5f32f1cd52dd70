"""Dr. GRPO on Qwen2.5-Math-7B ("Oat-Zero-7B"): 43.3 % on AIME 2024, 51.4 on average over five benchmarks, greedy.

    hf download Qwen/Qwen2.5-Math-7B --local-dir models/Qwen2.5-Math-7B
    python -m rlzero.plan --config=configs/dr_grpo_qwen2_5_math_7b.py --topology=v6e:2x4
    python -m rlzero.train --config=configs/dr_grpo_qwen2_5_math_7b.py --workdir=runs/dr_grpo_qwen2_5_math_7b

Source: arXiv 2503.20783, section 1 (the recipe: MATH levels 3 to 5, Qwen-Math template, 27 hours on 8 A100), table 4
(the scores) and table 6: 8 responses of up to 3,000 tokens, AdamW with betas 0.9 and 0.95 at a constant 1e-6, clipping
at 0.2, no KL term. From `examples/qwen2.5-math-7b.sh` in sail-sg/understand-r1-zero: 128 prompts a step, of up to 1,024
tokens, and mini-batches of 128 responses, so 8 updates. Its 8,523 problems of levels 3 to 5 are more than the 5,600 or
so in MATH's own training split of 7,500: take its set, or the split of 12,000. Ours: the number of steps (the script's
20 epochs would be 1,331), the mesh, and rows of 4,096 tokens, one per chip.
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
    config.data.files = "data/math_train.json"
    config.data.layout = "math"
    config.data.levels = "3-5"
    config.data.template = "qwen_math"
    config.reward.mode = "math"
    config.evaluation.files = ",".join(f"data/evaluation_suite/{name}" for name in (
        "aime", "amc", "math", "minerva", "olympiad_bench"))
    config.rollout.max_prompt_length = 1024
    config.rollout.max_completion_length = 3000
    config.optimizer.learning_rate = 1e-6
    config.optimizer.beta2 = 0.95
    config.learner.mini_batches = 8
    config.learner.micro_batch_size = 8
    config.learner.pack_tokens = 4096
    config.mesh.data = 1
    config.mesh.fsdp = 8
    config.evaluation.problems = 2000  # all there are
    config.evaluation.every_steps = 16
    config.evaluation.samples_per_problem = 1
    config.evaluation.temperature = 0.0
    return config
