r"""SmolLM2-135M-Instruct learns small sums: reinforcement learning of a real pretrained model, without a hub.

    python launch/smollm2.py --output=models/smollm2
    python -m rlzero.train --config=configs/smollm2.py:models/smollm2 --workdir=runs/smollm2

The argument is the model directory. Products, sums and maxima are asked for after three worked examples; the response
is one line, `Answer: 56`. Before training, 38 % of sampled products are right, 15 % of sums and 32 % of maxima.

The defaults are a smoke test for a CPU: 3 steps of 8 prompts x 8 responses, each some 100 seconds of one core, in 6 GB
of memory; the three steps have 34 %, 20 % and 45 % right answers. For a longer run on an accelerator:
--config.steps=200 --config.prompts_per_step=32 --config.learner.micro_batch_size=64 --config.evaluation.problems=192.
"""

from rlzero.training.config import Config, algorithm_config


def get_config(model: str = "models/smollm2") -> Config:
    config = Config()
    config.model.path = model
    config.data.task = "few_shot_arithmetic"
    config.algorithm = algorithm_config("dr_grpo")
    config.steps = 3
    config.prompts_per_step = 8
    config.group_size = 8
    config.rollout.max_prompt_length = 96
    config.rollout.max_completion_length = 16
    config.rollout.stop_text = "\n"  # the answer is one line
    config.optimizer.learning_rate = 1e-5
    config.learner.micro_batch_size = 8  # 16 take 1.7 GB more and are no faster on a CPU
    config.checkpoint.every_steps = 50
    config.evaluation.problems = 12
    config.evaluation.samples_per_problem = 4
    config.log.transcripts_every_steps = 1
    return config
