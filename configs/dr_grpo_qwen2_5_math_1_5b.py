"""Dr. GRPO on Qwen2.5-Math-1.5B ("Oat-Zero-1.5B"): 20.0 % on AIME 2024, 42.1 on average over five benchmarks, greedy.

    hf download Qwen/Qwen2.5-Math-1.5B --local-dir models/Qwen2.5-Math-1.5B
    python -m rlzero.plan --config=configs/dr_grpo_qwen2_5_math_1_5b.py --topology=v5e:2x4
    python -m rlzero.train --config=configs/dr_grpo_qwen2_5_math_1_5b.py --workdir=runs/dr_grpo_qwen2_5_math_1_5b

Source: arXiv 2503.20783 and its scripts, as in `dr_grpo_qwen2_5_math_7b.py`; all numbers are the same, also those that
are ours. The published script of the small model, `examples/qwen2.5-math-1.5b.sh`, draws from MATH's 12,000 problems.
Here it is levels 3 to 5, as for the large one: table 4, where the scores stand, says that its models follow the recipe
of section 1.
"""

from rlzero.training.config import Config, algorithm_config


def get_config() -> Config:
    config = Config()
    config.algorithm = algorithm_config("dr_grpo")
    config.steps = 1000
    config.prompts_per_step = 128
    config.group_size = 8
    config.model.path = "models/Qwen2.5-Math-1.5B"
    config.model.shape = "Qwen2.5-Math-1.5B"
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
