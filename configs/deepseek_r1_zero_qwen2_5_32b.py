"""DeepSeek-R1-Zero's GRPO on Qwen2.5-32B: 47.0 % on AIME 2024 (pass@1) after more than 10,000 optimizer steps.

    hf download Qwen/Qwen2.5-32B --local-dir models/Qwen2.5-32B
    python -m rlzero.plan --config=configs/deepseek_r1_zero_qwen2_5_32b.py --topology=v5p:4x4x4
    python -m rlzero.train --config=configs/deepseek_r1_zero_qwen2_5_32b.py --workdir=runs/deepseek_r1_zero_qwen2_5_32b

Source: arXiv 2501.12948. The result is that of the authors' DeepSeek-R1-Zero-Qwen-32B (MATH-500: 91.6), for which only
the base model and the number of steps are told. The numbers are those of DeepSeek-R1-Zero itself, from the methods of
the version in Nature (s41586-025-09422-z): learning rate 3e-6, KL coefficient 0.001, temperature 1, 16 outputs a
question of up to 32,768 tokens (65,536 after step 8,200, not here), 32 questions a step, 8,192 outputs a rollout in
16 mini-batches of one pass, the reference replaced by the policy every 400 steps, rewards for accuracy and format.
Their step is an optimizer step on 512 outputs; a rollout step here has 16 of them. So 512 prompts a step, 625 steps for
10,000 of theirs, and a new reference every 400 / 16 = 25. Loss as in arXiv 2402.03300: the KL estimate k3 inside it,
advantages divided by the deviation of the group. Evaluation: 64 samples at temperature 0.6 and top-p 0.95.

Not reported, so ours: the clip range (0.2; the epsilon of 10 in the paper belongs to the first RL stage of R1), AdamW's
other settings, and the data, which were math, code and STEM questions: here DAPO-Math-17k, whose answers are integers.
The format reward is 0.5: theirs has the weight of accuracy, and here a layout must not pay as much as an answer. The
template is close to theirs. Ours also: the mesh and rows of 34,816 tokens that short completions share.
"""

from rlzero.training.config import Config, algorithm_config


def get_config() -> Config:
    config = Config()
    config.algorithm = algorithm_config("grpo")
    config.steps = 625
    config.prompts_per_step = 512
    config.group_size = 16
    config.model.path = "models/Qwen2.5-32B"
    config.model.shape = "Qwen2.5-32B"
    config.model.remat = True
    config.model.attention = "auto"
    config.data.files = "data/dapo-math-17k.parquet"
    config.data.layout = "dapo"
    config.data.template = "r1"
    config.evaluation.files = "data/aime-2024.parquet"
    config.evaluation.layout = "dapo"
    config.rollout.max_prompt_length = 2048
    config.rollout.max_completion_length = 32_768
    config.reward.correct = 1.0
    config.reward.wrong = 0.0
    config.reward.format_bonus = 0.5
    config.optimizer.learning_rate = 3e-6
    config.learner.mini_batches = 16
    config.learner.reference_refresh_steps = 400 // 16
    config.learner.micro_batch_size = 16
    config.learner.pack_tokens = 2048 + 32_768
    config.mesh.data = 1
    config.mesh.fsdp = 16
    config.mesh.tensor = 4  # a row of this length is too much for one chip
    config.checkpoint.every_steps = 10
    config.evaluation.problems = 2000  # rows of the file, all there are: 30 problems
    config.evaluation.every_steps = 25
    config.evaluation.samples_per_problem = 64
    config.evaluation.temperature = 0.6
    config.evaluation.top_p = 0.95
    return config
