"""Naive GRPO on Qwen2.5-32B, the baseline of DAPO: 30 points on AIME 2024 (avg@32), where DAPO has 50.

    hf download Qwen/Qwen2.5-32B --local-dir models/Qwen2.5-32B
    python -m rlzero.train --config=configs/grpo_qwen2_5_32b_naive.py --workdir=runs/grpo_qwen2_5_32b_naive

Source: arXiv 2503.14476, section 4.1 and the row "Naive GRPO" of table 1; it is row 0 of `dapo_ablation.py`, written
out. Data, batch sizes, optimizer, lengths and evaluation are those of `dapo_qwen2_5_32b.py`. What is not: clipping at
0.2 on both sides, a loss that first averages over the tokens of a response (section 2.2), no dynamic sampling, and cut
responses that are simply wrong (the "punitive reward" of section 3.4). The paper drops the KL term in section 2.3 and
not in a row of table 1, so there is none here; that reading is ours. So are the number of steps, the mesh, and rows of
22,528 tokens that short completions share.
"""

from rlzero.training.config import Config, algorithm_config


def get_config() -> Config:
    config = Config()
    config.algorithm = algorithm_config("grpo", kl_placement="none", kl_coef=0.0)
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
    config.mesh.fsdp = 16
    config.checkpoint.every_steps = 10
    config.evaluation.problems = 2000  # rows of the file, all there are: 30 problems
    config.evaluation.every_steps = 10
    config.evaluation.samples_per_problem = 32
    config.evaluation.temperature = 1.0
    config.evaluation.top_p = 0.7
    return config
