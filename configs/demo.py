"""The demo: a model of 0.2 M parameters learns to add and subtract carefully, on a CPU, in minutes.

    python -m rlzero.train --config=configs/demo.py:dapo --workdir=/tmp/rlzero

The argument is one of ppo, grpo, dr_grpo, rloo, dapo; without one it is grpo. The model inside the package was
pretrained on worked sums in which carries and borrows are mostly forgotten (configs/demo_pretrain.py).
"""

from rlzero.training.config import Config, algorithm_config


def get_config(algorithm: str = "grpo") -> Config:
    config = Config()
    config.algorithm = algorithm_config(algorithm)
    config.steps = 40
    config.prompts_per_step = 64
    config.group_size = 8
    config.rollout.max_prompt_length = 16
    config.rollout.max_completion_length = 48
    config.optimizer.learning_rate = 3e-4
    config.learner.mini_batches = 4
    config.critic.learning_rate = 1e-3
    config.critic.policy_frozen_steps = 3
    config.checkpoint.every_steps = 20
    config.evaluation.problems = 256
    config.evaluation.samples_per_problem = 4
    return config
