"""What the papers and their scripts say about each recipe, setting by setting, written down apart from the configs.

`PAPER` holds a value and its source for every setting that a source tells, also where it is the default here. `OURS`
holds the rest of what a config changes: choices that no source tells. `DERIVED` holds numbers that follow from several
settings, `RESULTS` what a docstring must quote.

Sources: "4.1", "t1", "eq 13", "app B" are section, table, equation and appendix of the paper named above a group; a
script is named by its file. Papers: DAPO arXiv 2503.14476, Dr. GRPO 2503.20783, DeepSeek-R1 2501.12948 and its version
in Nature (s41586-025-09422-z, "N"), DeepSeekMath 2402.03300, Open-Reasoner-Zero 2503.24290 ("Z").
"""

# DAPO, arXiv 2503.14476; run_dapo_qwen2.5_32b.sh of verl's recipe/dapo.
_DAPO_32B = {
    "prompts_per_step": (512, "4.1"),
    "group_size": (16, "4.1"),
    "learner.mini_batches": (16, "4.1: 16 gradient updates for each rollout step"),
    "learner.epochs": (1, "4.1"),
    "model.shape": ("Qwen2.5-32B", "4.1"),
    "data.layout": ("dapo", "3.5: DAPO-Math-17K"),
    "data.template": ("chat", "script"),
    "evaluation.layout": ("dapo", "4.1: AIME"),
    "rollout.max_prompt_length": (2048, "script"),
    "rollout.max_completion_length": (20_480, "4.1"),
    "rollout.temperature": (1.0, "script"),
    "rollout.top_p": (1.0, "script"),
    "reward.correct": (1.0, "2.4"),
    "reward.wrong": (-1.0, "2.4"),
    "reward.mode": ("integer", "3.5: answers are integers"),
    "optimizer.learning_rate": (1e-6, "4.1"),
    "optimizer.schedule": ("constant", "4.1"),
    "optimizer.warmup_steps": (20, "4.1; 10 in the script"),
    "optimizer.weight_decay": (0.1, "script"),
    "optimizer.max_grad_norm": (1.0, "script"),
    "evaluation.samples_per_problem": (32, "4.1"),
    "evaluation.temperature": (1.0, "4.1"),
    "evaluation.top_p": (0.7, "4.1"),
    "algorithm.advantage": ("group", "eq 9"),
    "algorithm.advantage_scale": ("std", "eq 9"),
    "algorithm.clip_low": (0.2, "4.1"),
    "algorithm.kl_placement": ("none", "2.3"),
    "algorithm.kl_coef": (0.0, "2.3"),
    "algorithm.entropy_coef": (0.0, "script"),
}

_DAPO_32B_OURS = {
    "steps": 600,
    "model.path": "models/Qwen2.5-32B",
    "model.remat": True,
    "model.attention": "auto",
    "data.files": "data/dapo-math-17k.parquet",
    "evaluation.files": "data/aime-2024.parquet",
    "evaluation.problems": 2000,
    "evaluation.every_steps": 10,
    "learner.micro_batch_size": 64,
    "learner.pack_tokens": 22_528,
    "mesh.data": 4,
    "mesh.fsdp": 16,
    "checkpoint.every_steps": 10,
}


def _row(truncated: str, clip_high: float, overlong: float, normalization: str, dynamic: bool) -> dict:
    """The columns that table 1 of DAPO varies."""
    return {
        "algorithm.truncated": (truncated, "3.4"),
        "algorithm.clip_high": (clip_high, "4.1"),
        "algorithm.overlong_fraction": (overlong, "4.1: 4,096 of 20,480"),
        "algorithm.normalization": (normalization, "2.2, 3.3"),
        "algorithm.dynamic_sampling": (dynamic, "3.2"),
    }


# Rows of table 1 with the published points on AIME 2024.
ABLATION = (
    (_row("wrong", 0.2, 0.0, "sequence_mean", False), 30),
    (_row("mask", 0.2, 0.0, "sequence_mean", False), 36),
    (_row("mask", 0.28, 0.0, "sequence_mean", False), 38),
    (_row("mask", 0.28, 0.2, "sequence_mean", False), 41),
    (_row("mask", 0.28, 0.2, "token_mean", False), 42),
    (_row("mask", 0.28, 0.2, "token_mean", True), 50),
)

# Dr. GRPO, arXiv 2503.20783, table 6; examples/*.sh of sail-sg/understand-r1-zero.
_DR_GRPO = {
    "prompts_per_step": (128, "scripts: rollout_batch_size"),
    "group_size": (8, "t6"),
    "learner.mini_batches": (8, "scripts: train_batch_size 128 of 1,024 responses"),
    "learner.epochs": (1, "t6: inner epochs"),
    "rollout.max_prompt_length": (1024, "scripts: prompt_max_length"),
    "rollout.max_completion_length": (3000, "t6"),
    "rollout.stop_text": ("", "train_zero_math.py: models of Qwen end by themselves"),
    "rollout.temperature": (1.0, "t6"),
    "rollout.top_p": (1.0, "t6"),
    "reward.correct": (1.0, "3.1"),
    "reward.wrong": (0.0, "3.1"),
    "reward.mode": ("math", "3.2: Math-Verify"),
    "optimizer.learning_rate": (1e-6, "t6"),
    "optimizer.schedule": ("constant", "t6"),
    "optimizer.warmup_steps": (0, "t6"),
    "optimizer.beta1": (0.9, "t6"),
    "optimizer.beta2": (0.95, "t6"),
    "optimizer.weight_decay": (0.0, "t6"),
    "optimizer.max_grad_norm": (1.0, "t6"),
    "evaluation.every_steps": (16, "scripts: eval_steps"),
    "evaluation.samples_per_problem": (1, "scripts: greedy"),
    "evaluation.temperature": (0.0, "scripts: greedy"),
    "evaluation.files": (",".join(f"data/evaluation_suite/{name}" for name in (
        "aime", "amc", "math", "minerva", "olympiad_bench")), "t4: five benchmarks"),
    "algorithm.advantage": ("group", "3.1"),
    "algorithm.advantage_scale": ("none", "3.1"),
    "algorithm.normalization": ("constant", "3.1"),
    "algorithm.clip_low": (0.2, "t6"),
    "algorithm.clip_high": (0.2, "t6"),
    "algorithm.kl_placement": ("none", "t6"),
    "algorithm.kl_coef": (0.0, "t6"),
    "algorithm.dynamic_sampling": (False, "the recipe has none"),
    "algorithm.overlong_fraction": (0.0, "the recipe has none"),
    "algorithm.truncated": ("wrong", "train_zero_math.py: reward 0"),
}

_DR_GRPO_OURS = {
    "steps": 1000,
    "model.remat": True,
    "model.attention": "auto",
    "learner.micro_batch_size": 8,
    "learner.pack_tokens": 4096,
    "mesh.data": 1,
    "mesh.fsdp": 8,
    "evaluation.problems": 2000,
}

_R1_END = {"rollout.stop_text": ("</answer>", "train_zero_math.py: under r1")}

_LEVELS = {"data.levels": ("3-5", "section 1"), "data.layout": ("math", "section 1"),
           "data.template": ("qwen_math", "section 1")}

SETS = {  # of the grid (3.3, t3): files, layout
    "orz": ("data/orz_math_57k_collected.json", "orz"),
    "math_12k": ("data/math_12k", "math"),
    "gsm8k": ("data/gsm8k/main/train-00000-of-00001.parquet", "gsm8k"),
    "asdiv": ("data/asdiv_2k", "benchmark"),
}
TEMPLATES = ("r1", "qwen_math", "none")

STARTS = {  # of section 3.4: model, averages before and after (t4)
    "plain": ("models/Llama-3.2-3B", "3.3", "6.8"),
    "finemath": ("models/FineMath-Llama-3B", "6.0", "14.8"),
    "numinaqa": ("runs/llama_3_2_3b_numinaqa_pretrain/model", "0.14", "20.7"),
}

# DeepSeek-R1-Zero: N, methods; the Qwen run: arXiv 2501.12948, section 4.1 of version 1.
_R1 = {
    "steps": (625, "over 10,000 optimizer steps of the Qwen run, 16 a rollout step"),
    "prompts_per_step": (512, "N: 8,192 outputs a rollout, 16 a question"),
    "group_size": (16, "N"),
    "learner.mini_batches": (16, "N"),
    "learner.epochs": (1, "N: a single inner epoch"),
    "learner.reference_refresh_steps": (25, "N: every 400 steps of one update"),
    "model.shape": ("Qwen2.5-32B", "v1 4.1"),
    "rollout.max_completion_length": (32_768, "N, before step 8,200"),
    "rollout.temperature": (1.0, "N"),
    "optimizer.learning_rate": (3e-6, "N"),
    "algorithm.kl_placement": ("loss", "2402.03300 eq 3"),
    "algorithm.kl_estimator": ("k3", "2402.03300 eq 4"),
    "algorithm.kl_coef": (0.001, "N"),
    "algorithm.advantage": ("group", "N"),
    "algorithm.advantage_scale": ("std", "N"),
    "algorithm.normalization": ("sequence_mean", "2402.03300 eq 3"),
    "algorithm.dynamic_sampling": (False, "N has none"),
    "evaluation.samples_per_problem": (64, "2501.12948: k = 64 for AIME"),
    "evaluation.temperature": (0.6, "2501.12948"),
    "evaluation.top_p": (0.95, "2501.12948"),
}

_R1_OURS = {
    "model.path": "models/Qwen2.5-32B",
    "model.remat": True,
    "model.attention": "auto",
    "data.files": "data/dapo-math-17k.parquet",
    "data.layout": "dapo",
    "data.template": "r1",
    "evaluation.files": "data/aime-2024.parquet",
    "evaluation.layout": "dapo",
    "evaluation.problems": 2000,
    "evaluation.every_steps": 25,
    "rollout.max_prompt_length": 2048,
    "reward.format_bonus": 0.5,
    "algorithm.clip_low": 0.2,
    "algorithm.clip_high": 0.2,
    "learner.micro_batch_size": 16,
    "learner.pack_tokens": 34_816,
    "mesh.data": 1,
    "mesh.fsdp": 16,
    "mesh.tensor": 4,
    "checkpoint.every_steps": 10,
}

# Open-Reasoner-Zero; config.py ("c") and orz/exps/examples/ppo/ppo_base_exp.py ("b") of its repository.
_ORZ = {
    "prompts_per_step": (128, "Z app B"),
    "group_size": (64, "Z app B"),
    "learner.mini_batches": (1, "Z app B: exactly one policy optimization step"),
    "critic.mini_batches": (12, "Z app B"),
    "learner.epochs": (1, "b: max_epochs"),
    "model.shape": ("Qwen2.5-7B", "Z 2.3"),
    "data.files": ("data/orz_math_57k_collected.json", "c: prompt_data"),
    "data.layout": ("orz", "c: prompt_data"),
    "rollout.max_prompt_length": (2048, "c: prompt_max_len"),
    "rollout.max_completion_length": (8000, "c: generate_max_len"),
    "rollout.stop_text": ("User:,Human:,Assistant:,</answer>", "c: stop"),
    "rollout.temperature": (1.0, "Z app B"),
    "rollout.top_p": (1.0, "Z app B"),
    "reward.correct": (1.0, "Z 2.3"),
    "reward.wrong": (0.0, "Z 2.3"),
    "optimizer.learning_rate": (1e-6, "Z app B"),
    "optimizer.schedule": ("constant", "Z app B"),
    "optimizer.warmup_steps": (50, "Z app B: 50 optimizer steps, one a rollout step"),
    "optimizer.beta1": (0.9, "Z app B"),
    "optimizer.beta2": (0.95, "Z app B"),
    "optimizer.weight_decay": (0.0, "Z app B"),
    "optimizer.max_grad_norm": (1.0, "b: max_norm"),
    "critic.learning_rate": (5e-6, "Z app B"),
    "critic.schedule": ("constant", "Z app B"),
    "critic.warmup_steps": (4, "Z app B: 50 optimizer steps, 12 a rollout step"),
    "critic.beta1": (0.9, "Z app B"),
    "critic.beta2": (0.95, "Z app B"),
    "critic.weight_decay": (0.0, "Z app B"),
    "critic.policy_frozen_steps": (0, "c: freezing_actor_steps -1"),
    "learner.pack_tokens": (16_384, "c: packing_max_len"),
    "evaluation.every_steps": (10, "c: eval_interval"),
    "evaluation.samples_per_problem": (16, "Z figure 1"),
    "evaluation.temperature": (1.0, "c"),
    "algorithm.advantage": ("gae", "Z 2.1"),
    "algorithm.gamma": (1.0, "Z 2.2"),
    "algorithm.gae_lambda": (1.0, "Z 2.2"),
    "algorithm.whiten_advantages": (True, "Z app B: batch level advantage normalization"),
    "algorithm.clip_low": (0.2, "Z 2.1"),
    "algorithm.clip_high": (0.2, "Z 2.1"),
    "algorithm.value_clip": (0.2, "b: value_clip"),
    "algorithm.kl_placement": ("none", "Z 2.2"),
    "algorithm.kl_coef": (0.0, "Z 2.2"),
    "algorithm.entropy_coef": (0.0, "Z app B"),
    "algorithm.truncated": ("wrong", "playground/orz_7b_ppo.py: only a stopped response can be right"),
}

_ORZ_OURS = {
    "steps": 600,
    "model.path": "models/Qwen2.5-7B",
    "model.remat": True,
    "model.attention": "auto",
    "data.template": "configs/templates/open_reasoner_zero.txt",
    "reward.mode": "math",
    "evaluation.files": "data/evaluation_suite/aime,data/evaluation_suite/math",
    "evaluation.problems": 2000,
    "learner.micro_batch_size": 16,
    "mesh.data": 1,
    "mesh.fsdp": 16,
    "algorithm.normalization": "token_mean",
    "algorithm.kl_estimator": "k1",
}

# Dr. GRPO 3.4; NuminaMath-1.5 by its page on Hugging Face.
_NUMINAQA = {
    "model.path": ("models/FineMath-Llama-3B", "3.4"),
    "data.files": ("data/NuminaMath-1.5/data/*.parquet", "3.4"),
    "data.field": ("problem,solution", "3.4: concatenated question-response texts"),
    "data.epochs": (2, "3.4"),
    "optimizer.learning_rate": (1e-5, "3.4"),
}

_NUMINAQA_OURS = {
    "steps": 10_000,
    "batch_size": 64,
    "micro_batch_size": 8,
    "sequence_length": 4096,
    "model.dtype": "bfloat16",
    "model.remat": True,
    "model.attention": "auto",
    "data.corpus": "texts",
    "optimizer.schedule": "constant",
    "optimizer.warmup_steps": 0,
    "optimizer.weight_decay": 0.0,
    "optimizer.beta2": 0.95,
    "mesh.data": 1,
    "mesh.fsdp": 8,
}

_GRID = {f"dr_grpo_grid.py:{template},{name}": (template, *place)
         for template in TEMPLATES for name, place in SETS.items()}

PAPER = {
    "dapo_qwen2_5_32b.py": _DAPO_32B | ABLATION[5][0] | {
        "algorithm.truncated": ("wrong", "README of verl's recipe: the best run has no overlong filtering")},
    "grpo_qwen2_5_32b_naive.py": _DAPO_32B | ABLATION[0][0],
    **{f"dapo_ablation.py:{number}": _DAPO_32B | row for number, (row, _) in enumerate(ABLATION)},
    "dr_grpo_qwen2_5_math_7b.py": _DR_GRPO | _LEVELS | {"model.shape": ("Qwen2.5-Math-7B", "section 1")},
    "dr_grpo_qwen2_5_math_1_5b.py": _DR_GRPO | _LEVELS | {"model.shape": ("Qwen2.5-Math-1.5B", "t4")},
    **{name: _DR_GRPO | {"model.shape": ("Qwen2.5-Math-1.5B", "3.3"), "data.template": (template, "3.3"),
                         "data.files": (files, "t3"), "data.layout": (layout, "t3"), "data.levels": ("", "t3"),
                         **(_R1_END if template == "r1" else {})}
       for name, (template, files, layout) in _GRID.items()},
    **{f"llama_3_2_3b.py:{start}": _DR_GRPO | {
        "model.shape": ("Llama-3.2-3B", "3.4"), "model.path": (path, "3.4"), "data.template": ("r1", "3.4"),
        "data.files": ("data/math_12k", "llama3.2-3b-numinaqa.sh"), "data.layout": ("math", "llama3.2-3b-numinaqa.sh"),
        **_R1_END}
       for start, (path, _, _) in STARTS.items()},
    "deepseek_r1_zero_qwen2_5_32b.py": _R1,
    "ppo_open_reasoner_zero_7b.py": _ORZ,
    "llama_3_2_3b_numinaqa_pretrain.py": _NUMINAQA,
}

_MATH_FILES = {"data.files": "data/math_train.json"}

OURS = {
    "dapo_qwen2_5_32b.py": _DAPO_32B_OURS,
    "grpo_qwen2_5_32b_naive.py": _DAPO_32B_OURS,
    **{f"dapo_ablation.py:{number}": _DAPO_32B_OURS for number in range(6)},
    "dr_grpo_qwen2_5_math_7b.py": _DR_GRPO_OURS | _MATH_FILES | {"model.path": "models/Qwen2.5-Math-7B"},
    "dr_grpo_qwen2_5_math_1_5b.py": _DR_GRPO_OURS | _MATH_FILES | {"model.path": "models/Qwen2.5-Math-1.5B"},
    **{name: _DR_GRPO_OURS | {"model.path": "models/Qwen2.5-Math-1.5B"} for name in _GRID},
    **{f"llama_3_2_3b.py:{start}": _DR_GRPO_OURS for start in STARTS},
    "deepseek_r1_zero_qwen2_5_32b.py": _R1_OURS,
    "ppo_open_reasoner_zero_7b.py": _ORZ_OURS,
    "llama_3_2_3b_numinaqa_pretrain.py": _NUMINAQA_OURS,
}

# Recipe -> (responses a step, responses an update, updates a step, updates in all of the critic or else the policy,
# tokens of the soft penalty).
DERIVED = {
    "dapo_qwen2_5_32b.py": (8192, 512, 16, 9600, 4096),
    "grpo_qwen2_5_32b_naive.py": (8192, 512, 16, 9600, 0),
    **{f"dapo_ablation.py:{number}": (8192, 512, 16, 9600, 4096 * (number >= 3)) for number in range(6)},
    **{name: (1024, 128, 8, 8000, 0) for name in PAPER if name.startswith(("dr_grpo", "llama_3_2_3b.py"))},
    "deepseek_r1_zero_qwen2_5_32b.py": (8192, 512, 16, 10_000, 0),
    "ppo_open_reasoner_zero_7b.py": (8192, 8192, 1, 7200, 0),
}

# File -> what its docstring must say of the published result.
RESULTS = {
    "dapo_qwen2_5_32b.py": ("50 points",),
    "grpo_qwen2_5_32b_naive.py": ("30 points",),
    "dapo_ablation.py": tuple(f"   {points}" for _, points in ABLATION),
    "dr_grpo_qwen2_5_math_7b.py": ("43.3 %", "51.4"),
    "dr_grpo_qwen2_5_math_1_5b.py": ("20.0 %", "42.1"),
    "dr_grpo_grid.py": ("7.9 (r1)", "24.2 (qwen_math)", "33.1 (none", "about 40"),
    "llama_3_2_3b.py": tuple(f"{before:<4} -> {after:>4}" for _, before, after in STARTS.values()),
    "llama_3_2_3b_numinaqa_pretrain.py": ("0.14", "20.7"),
    "deepseek_r1_zero_qwen2_5_32b.py": ("47.0 %", "91.6"),
    "ppo_open_reasoner_zero_7b.py": ("17.9 %", "81.4 %"),
}
