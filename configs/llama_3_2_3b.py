"""Dr. GRPO on Llama-3.2-3B from three starts: what a base model has read decides how far reinforcement learning goes.

    python -m rlzero.train --config=configs/llama_3_2_3b.py:numinaqa --workdir=runs/llama_3_2_3b_numinaqa

The argument is the start; published are averages over five benchmarks, greedy, before and after:

    plain      Llama-3.2-3B itself                                        3.3  ->  6.8
    finemath   HuggingFaceTB/FineMath-Llama-3B                            6.0  -> 14.8
    numinaqa   the former, after `llama_3_2_3b_numinaqa_pretrain.py`      0.14 -> 20.7   ("Oat-Zero-3B")

    hf download meta-llama/Llama-3.2-3B --local-dir models/Llama-3.2-3B
    hf download HuggingFaceTB/FineMath-Llama-3B --local-dir models/FineMath-Llama-3B

Source: arXiv 2503.20783, section 3.4 (the starts; all with the R1 template), table 4 (the scores) and table 6: 8
responses of up to 3,000 tokens, AdamW with betas 0.9 and 0.95 at a constant 1e-6, clipping at 0.2, no KL term. From
`examples/llama3.2-3b-numinaqa.sh` in sail-sg/understand-r1-zero: MATH's 12,000 problems, 128 prompts a step of up to
1,024 tokens, and mini-batches of 128 responses, so 8 updates. The authors' own third start is
lkevinzc/Llama-3.2-3B-NuminaQA: --config.model.path=models/Llama-3.2-3B-NuminaQA. Responses also end with the text
`</answer>`, as in the authors' code; there they must have the tags to be right, and here an answer in a box is right
too. Ours: also the number of steps, the mesh, and rows of 4,096 tokens, one per chip.
"""

from rlzero.training.config import Config, algorithm_config

STARTS = {
    "plain": "models/Llama-3.2-3B",
    "finemath": "models/FineMath-Llama-3B",
    "numinaqa": "runs/llama_3_2_3b_numinaqa_pretrain/model",
}


def get_config(start: str = "numinaqa") -> Config:
    if start not in STARTS:
        raise ValueError(f"expected a start of {', '.join(STARTS)}, such as llama_3_2_3b.py:plain; got {start!r}")
    config = Config()
    config.algorithm = algorithm_config("dr_grpo")
    config.steps = 1000
    config.prompts_per_step = 128
    config.group_size = 8
    config.model.path = STARTS[start]
    config.model.shape = "Llama-3.2-3B"
    config.model.remat = True
    config.model.attention = "auto"
    config.data.files = "data/math_12k"
    config.data.layout = "math"
    config.data.template = "r1"
    config.reward.mode = "math"
    config.evaluation.files = ",".join(f"data/evaluation_suite/{name}" for name in (
        "aime", "amc", "math", "minerva", "olympiad_bench"))
    config.rollout.max_prompt_length = 1024
    config.rollout.max_completion_length = 3000
    config.rollout.stop_text = "</answer>"
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
