r"""Continued pretraining of FineMath-Llama-3B on questions with their answers: the third start of `llama_3_2_3b.py`.

    hf download HuggingFaceTB/FineMath-Llama-3B --local-dir models/FineMath-Llama-3B
    hf download AI-MO/NuminaMath-1.5 --repo-type dataset --local-dir data/NuminaMath-1.5
    python -m rlzero.pretrain --config=configs/llama_3_2_3b_numinaqa_pretrain.py \
        --workdir=runs/llama_3_2_3b_numinaqa_pretrain

Source: arXiv 2503.20783, section 3.4: two epochs over the concatenated question-response texts of NuminaMath-1.5 at a
learning rate of 1e-5. Published: the model scores 0.14 on average over five benchmarks (table 4), less than the 6.0 it
started from, and 20.7 after reinforcement learning, where FineMath-Llama-3B comes to 14.8.

The run ends with the second pass over the 896,215 rows. How many updates that takes depends on the tokenizer, so it can
only be estimated: if a text has 500 tokens, eight share a row and 512 an update, and it takes 3,500; `steps` is a bound
above that. Not reported, so ours: a line break between question and response, rows of 4,096 tokens, 64 of them an
update, a constant learning rate without warm-up, no weight decay, AdamW's betas of 0.9 and 0.95, and the mesh.
"""

from rlzero.training.pretrain_config import PretrainConfig


def get_config() -> PretrainConfig:
    config = PretrainConfig()
    config.steps = 10_000
    config.batch_size = 64
    config.micro_batch_size = 8
    config.sequence_length = 4096
    config.model.path = "models/FineMath-Llama-3B"
    config.model.dtype = "bfloat16"
    config.model.remat = True
    config.model.attention = "auto"
    config.data.corpus = "texts"
    config.data.files = "data/NuminaMath-1.5/data/*.parquet"
    config.data.field = "problem,solution"
    config.data.epochs = 2
    config.optimizer.learning_rate = 1e-5
    config.optimizer.schedule = "constant"
    config.optimizer.warmup_steps = 0
    config.optimizer.weight_decay = 0.0
    config.mesh.fsdp = 8
    return config
