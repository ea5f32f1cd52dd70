"""PPO on Qwen2.5-7B ("Open-Reasoner-Zero-7B"): 17.9 % on AIME 2024 and 81.4 % on MATH500, averages of 16 responses.

    hf download Qwen/Qwen2.5-7B --local-dir models/Qwen2.5-7B
    python -m rlzero.plan --config=configs/ppo_open_reasoner_zero_7b.py --topology=v5p:2x2x4
    python -m rlzero.train --config=configs/ppo_open_reasoner_zero_7b.py --workdir=runs/ppo_open_reasoner_zero_7b

Source: arXiv 2503.24290, table 4 (the scores), sections 2.1 to 2.3 and appendix B: GAE with gamma = lambda = 1,
clipping at 0.2, no KL term, advantages normalized over the batch, 128 prompts x 64 responses a step at temperature 1,
AdamW with betas 0.9 and 0.95 and no weight decay, constant 1e-6 for the policy and 5e-6 for the critic after 50 updates
of warm-up, reward 1 for a right answer and 0 for all others. The policy makes one update a step, on all 8,192
responses, and the critic 12. From `config.py` and `ppo_base_exp.py` of Open-Reasoner-Zero/Open-Reasoner-Zero: prompts
of up to 2,048 tokens and responses of up to 8,000 (a cut one gets 0), rows of 16,384 tokens, gradients clipped at 1.0,
values clipped at 0.2, evaluation every 10 steps, and the prompt in `templates/open_reasoner_zero.txt`. The data is
their first set, of 57,000 questions.

Responses also end with `</answer>`, and where the model begins another turn. What differs: in their code only a box
within the tags counts. 50 updates are 50 steps of the policy but 4.2 of the critic; it gets 4. The loss is a mean over tokens, where the paper writes a sum.
The 32B is trained alike, and then 100 steps more on 13,000 hard problems: 48.1 % and 92.2 %. Ours: the number of steps
(the paper does not say after how many the 7B was taken), and the mesh.
"""

import pathlib

from rlzero.training.config import Config, algorithm_config


def get_config() -> Config:
    config = Config()
    config.algorithm = algorithm_config("ppo", gae_lambda=1.0, kl_placement="none", kl_coef=0.0)
    config.steps = 600
    config.prompts_per_step = 128
    config.group_size = 64
    config.model.path = "models/Qwen2.5-7B"
    config.model.shape = "Qwen2.5-7B"
    config.model.remat = True
    config.model.attention = "auto"
    config.data.files = "data/orz_math_57k_collected.json"
    config.data.layout = "orz"
    config.data.template = str(pathlib.Path(__file__).with_name("templates") / "open_reasoner_zero.txt")
    config.reward.mode = "math"
    config.evaluation.files = "data/evaluation_suite/aime,data/evaluation_suite/math"
    config.rollout.max_prompt_length = 2048
    config.rollout.max_completion_length = 8000
    config.rollout.stop_text = "User:,Human:,Assistant:,</answer>"
    config.optimizer.learning_rate = 1e-6
    config.optimizer.warmup_steps = 50
    config.optimizer.beta2 = 0.95
    config.critic.learning_rate = 5e-6
    config.critic.warmup_steps = 4
    config.critic.beta2 = 0.95
    config.critic.mini_batches = 12
    config.learner.mini_batches = 1
    config.learner.micro_batch_size = 16
    config.learner.pack_tokens = 16_384
    config.mesh.data = 1
    config.mesh.fsdp = 16
    config.evaluation.problems = 2000  # all there are
    config.evaluation.every_steps = 10
    config.evaluation.samples_per_problem = 16
    config.evaluation.temperature = 1.0
    return config
