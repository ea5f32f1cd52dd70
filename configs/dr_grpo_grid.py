"""Template x question set on Qwen2.5-Math-1.5B with Dr. GRPO: twelve runs that all come near 40 with a fitting pair.

    hf download Qwen/Qwen2.5-Math-1.5B --local-dir models/Qwen2.5-Math-1.5B
    python -m rlzero.train --config=configs/dr_grpo_grid.py:qwen_math,gsm8k --workdir=runs/grid_qwen_math_gsm8k

The argument is TEMPLATE,SET with a template of r1, qwen_math, none and a set of orz, math_12k, gsm8k, asdiv.

Source: arXiv 2503.20783, section 3.3, figure 6 and table 3. Only curves are published, the average over five
benchmarks, so there is no number to compare an end with. They start at 7.9 (r1), 24.2 (qwen_math) and 33.1 (none; all
three from table 1) and reach about 40 where template and set fit. What the text says of the rest: with r1, far from
what the model has read, a narrow set ends lower; with qwen_math the best end is that of GSM8K, twice the start, though
its questions are easy. Table 6 and the script `examples/qwen2.5-math-1.5b.sh` of sail-sg/understand-r1-zero give the
other numbers: 128 prompts of up to 1,024 tokens x 8 responses of up to 3,000, mini-batches of 128 responses and so 8
updates, AdamW with betas 0.9 and 0.95 at a constant 1e-6, clipping at 0.2, no KL term, greedy evaluation every 16
steps.

The sets: ORZ (57k) is `orz_math_57k_collected.json` of Open-Reasoner-Zero, MATH (12k) and ASDiv (2k) are directories
with problem and answer as the authors ship them, GSM8K (8k) is the train split of openai/gsm8k. Under r1 a response
also ends with the text `</answer>`, as in the authors' code; there it must have the tags to be right, and here an answer
in a box is right too. Ours: also the number of steps, the mesh, and rows of 4,096 tokens, one per chip.
"""

from rlzero.training.config import Config, algorithm_config

TEMPLATES = ("r1", "qwen_math", "none")
SETS = {  # name -> files, layout
    "orz": ("data/orz_math_57k_collected.json", "orz"),
    "math_12k": ("data/math_12k", "math"),
    "gsm8k": ("data/gsm8k/main/train-00000-of-00001.parquet", "gsm8k"),
    "asdiv": ("data/asdiv_2k", "benchmark"),
}


def get_config(argument: str = "qwen_math,math_12k") -> Config:
    template, _, name = argument.partition(",")
    if template not in TEMPLATES or name not in SETS:
        raise ValueError(f"expected TEMPLATE,SET with a template of {', '.join(TEMPLATES)} and a set of "
                         f"{', '.join(SETS)}, such as dr_grpo_grid.py:r1,orz; got {argument!r}")
    config = Config()
    config.algorithm = algorithm_config("dr_grpo")
    config.steps = 1000
    config.prompts_per_step = 128
    config.group_size = 8
    config.model.path = "models/Qwen2.5-Math-1.5B"
    config.model.shape = "Qwen2.5-Math-1.5B"
    config.model.remat = True
    config.model.attention = "auto"
    config.data.files, config.data.layout = SETS[name]
    config.data.template = template
    config.reward.mode = "math"
    config.evaluation.files = ",".join(f"data/evaluation_suite/{name}" for name in (
        "aime", "amc", "math", "minerva", "olympiad_bench"))
    config.rollout.max_prompt_length = 1024
    config.rollout.max_completion_length = 3000
    config.rollout.stop_text = "</answer>" if template == "r1" else ""
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
