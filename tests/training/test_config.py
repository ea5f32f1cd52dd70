"""Configs: one declaration of the algorithm, every error at once with a valid example, and the way to disk and back."""

import dataclasses
import json
import math

import pytest

from rlzero import algorithms
from rlzero.training import display
from rlzero.training import config as config_lib
from rlzero.training import validation


def changed(preset="grpo", **settings):
    """The default config with a preset and some settings, given by path with `__` for the dot."""
    config = config_lib.Config(algorithm=config_lib.algorithm_config(preset))
    for path, value in settings.items():
        section, _, name = path.rpartition("__")
        setattr(getattr(config, section) if section else config, name, value)
    return config


@pytest.mark.parametrize("preset", list(algorithms.PRESETS))
def test_presets_are_valid_and_freeze_to_themselves(preset):
    config = changed(preset)
    validation.validate(config)
    assert config.algorithm.freeze() == algorithms.PRESETS[preset]
    assert hash(config.algorithm.freeze()) == hash(algorithms.PRESETS[preset])


def test_algorithm_settings_are_the_fields_of_the_algorithm():
    assert [field.name for field in dataclasses.fields(config_lib.AlgorithmConfig)] == [
        field.name for field in dataclasses.fields(algorithms.Algorithm)]
    assert config_lib.algorithm_config("grpo", clip_high=0.28).clip_high == 0.28


def test_every_field_has_a_plain_type_and_a_valid_default():
    for name, (field, value) in config_lib.leaves(config_lib.Config()).items():
        assert field.type in (bool, int, float, str, config_lib.OptionalFloat), name
    assert not validation.field_problems(config_lib.Config())


@pytest.mark.parametrize("settings, sentence", [
    (dict(group_size=1), "--config.group_size=1: .* at least 2, for example --config.group_size=8"),
    (dict(preset="rloo", group_size=1), "--config.group_size=1: .*leave_one_out"),
    (dict(preset="dapo", group_size=1), "--config.group_size=1: .* at least 2"),
    (dict(preset="ppo", group_size=1, algorithm__dynamic_sampling=True), "dynamic sampling .* at least 2"),
    (dict(prompts_per_step=64, learner__mini_batches=5), "mini_batches=5: must divide .*=64.*near it: 4 or 8"),
    (dict(prompts_per_step=6, learner__mini_batches=8), "near it: 6"),
    (dict(prompts_per_step=6, group_size=4, learner__mini_batches=2, learner__micro_batch_size=5),
     "micro_batch_size=5: must divide the 12 responses.*near it: 4 or 6, or 0"),
    (dict(rollout__temperature=0.0), "--config.rollout.temperature=0.0: expected a number above 0, for example"),
    (dict(rollout__top_p=0.9), "--config.rollout.top_p=0.9: a nucleus cuts"),
    (dict(rollout__top_k=50), "--config.rollout.top_k=50: top-k"),
    (dict(rollout__stop_text="</answer>,"), "--config.rollout.stop_text='</answer>,': holds an empty text; for example"),
    (dict(rollout__top_p=1.5), "rollout.top_p=1.5: expected a number above 0 and at most 1"),
    (dict(preset="dr_grpo", rollout__max_completion_length=0), "max_completion_length=0: expected .* at least 1"),
    (dict(preset="dapo", rollout__max_completion_length=2), "overlong_fraction=0.2: .*less than one token.*=0.5"),
    (dict(optimizer__learning_rate=math.nan), "--config.optimizer.learning_rate=nan: expected a number above 0"),
    (dict(optimizer__learning_rate=math.inf), "learning_rate=inf: expected"),
    (dict(reward__wrong=-math.inf), "--config.reward.wrong=-inf: expected a finite number"),
    (dict(reward__correct=0.0), "must be above --config.reward.wrong=0.0"),
    (dict(reward__mode="fuzzy"), "--config.reward.mode=fuzzy: expected one of integer, math"),
    (dict(reward__workers=-1), "--config.reward.workers=-1: expected a whole number at least 0"),
    (dict(reward__deadline_seconds=0.0), "--config.reward.deadline_seconds=0.0: expected a number above 0"),
    (dict(reward__max_error_rate=1.5), "--config.reward.max_error_rate=1.5: expected a number at least 0 and at most 1"),
    (dict(reward__format_bonus=1.0), "--config.reward.format_bonus=1.0: must be below 1, .*format_bonus=0.1"),
    (dict(reward__format_bonus=1.5, reward__wrong=-1.0), "--config.reward.format_bonus=1.5: must be below 1,"),
    (dict(reward__format_bonus=0.1, reward__correct=0.0, reward__wrong=-1.0), "format_bonus=0.1: .*use .*=0"),
    (dict(reward__function="nowhere.at_all:name"), "--config.reward.function=nowhere.at_all:name: there is no module"),
    (dict(reward__function="rlzero.rewards"), "--config.reward.function=rlzero.rewards: expected an import path"),
    (dict(reward__function="rlzero.rewards:reward", reward__workers=2), "reward.workers=2 would do nothing"),
    (dict(steps=10.0), "--config.steps=10.0: expected a whole number at least 1"),
    (dict(steps=True), "--config.steps=True: expected a whole number"),
    (dict(steps="many"), "--config.steps=many: expected a whole number"),
    (dict(rollout__keep_rollouts="no"), "expected true or false"),
    (dict(seed=-1), "--config.seed=-1: expected a whole number at least 0 and below"),
    (dict(rollout__on_exhausted="stop"), "on_exhausted=stop: expected one of train_partial, skip, error"),
    (dict(algorithm__normalization="mean"), "algorithm.normalization=mean: expected one of sequence_mean"),
    (dict(algorithm__clip_low=0.0), "--config.algorithm.clip_low=0.0: expected a number above 0"),
    (dict(algorithm__clip_low=None), "--config.algorithm.clip_low=None: expected a number above 0"),
    (dict(algorithm__dual_clip=1.0), "--config.algorithm.dual_clip=1.0: expected a number or none above 1"),
    (dict(algorithm__kl_placement="none"), "--config.algorithm: kl_coef=0.001 has no effect"),
    (dict(algorithm__advantage_ddof=2), "--config.algorithm: .*advantage_ddof"),
    (dict(preset="dr_grpo", learner__reference_refresh_steps=5), "no reference policy to refresh"),
    (dict(algorithm__gamma=0.99), "--config.algorithm.gamma=0.99: only algorithms with a critic"),
    (dict(algorithm__gae_lambda=0.9), "--config.algorithm.gae_lambda=0.9: only algorithms with a critic"),
    (dict(algorithm__value_clip=0.5), "--config.algorithm.value_clip=0.5: only algorithms with a critic"),
    (dict(preset="ppo", steps=20, critic__policy_frozen_steps=20), "policy would never learn; .*=2"),
    (dict(preset="ppo", prompts_per_step=8, critic__mini_batches=12), "mini_batches=12: .*at most .*=8"),
    (dict(steps=20, optimizer__schedule="cosine", optimizer__warmup_steps=20), "optimizer.warmup_steps=20: leaves no"),
    (dict(evaluation__temperature=0.0), "samples_per_problem=4: .*all samples of a problem are the same"),
    (dict(model__path="/nowhere"), "--config.model.path=/nowhere: there is no such directory"),
])
def test_wrong_settings_are_refused_with_the_flag_and_a_valid_example(settings, sentence):
    with pytest.raises(ValueError, match=sentence):
        validation.validate(changed(**settings))


def test_all_errors_are_reported_together():
    config = changed(group_size=1, optimizer__learning_rate=-1.0, learner__mini_batches=3, rollout__top_k=5)
    with pytest.raises(ValueError) as caught:
        validation.validate(config)
    assert len(str(caught.value).splitlines()) == 4


@pytest.mark.parametrize("settings", [
    dict(preset="ppo", group_size=1),
    dict(rollout__max_completion_length=1),
    dict(algorithm__clip_high=math.inf),
    dict(algorithm__dual_clip=3, algorithm__importance_cap=None),
    dict(optimizer__learning_rate=1),
    dict(steps=3, optimizer__warmup_steps=5),
    dict(reward__mode="math", reward__workers=2, reward__format_bonus=0.5, reward__wrong=-1.0),
    dict(reward__function="rlzero.rewards:is_well_formed"),
    dict(steps=3, critic__schedule="cosine", critic__warmup_steps=5),
    dict(evaluation__temperature=0, evaluation__samples_per_problem=1),
    dict(prompts_per_step=6, group_size=4, learner__mini_batches=3, learner__micro_batch_size=8),
])
def test_unusual_settings_that_work_pass(settings):
    validation.validate(changed(**settings))


def test_dict_round_trip_and_unknown_names():
    config = changed("dapo", steps=7, algorithm__dual_clip=3.0, optimizer__beta2=0.95)
    assert config_lib.from_dict(json.loads(json.dumps(config_lib.to_dict(config)))) == config
    with pytest.raises(ValueError, match="no setting optimizer.learning_rat; did you mean optimizer.learning_rate"):
        config_lib.from_dict({"optimizer": {"learning_rat": 1.0}})
    with pytest.raises(ValueError, match="expected a dictionary of settings for optimizer"):
        config_lib.from_dict({"optimizer": 3})


def test_saving_again_names_what_changed(tmp_path):
    assert config_lib.save_resolved(changed(steps=7), tmp_path) == []
    assert config_lib.save_resolved(changed(steps=9), tmp_path) == ["--config.steps: 7 before, 9 now"]
    assert config_lib.load(tmp_path / "config.json") == changed(steps=9)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "flags.txt"]


def test_batch_table_counts_prompts_responses_updates_and_tokens():
    config = changed("dapo", steps=10, prompts_per_step=64, group_size=8, learner__mini_batches=4, learner__epochs=2,
                     learner__micro_batch_size=32, rollout__max_prompt_length=16, rollout__max_completion_length=48)
    table = display.batch_table(config)
    for row in ("prompts per step 64", "responses per step 512 64 prompts x 8 samples",
                "tokens per step, at most 32,768", "generation rounds, at most 5", "optimizer updates per step 8", "responses per update 128",
                "micro-batches per update 4 of 32 responses", "rollout steps 10 80 optimizer updates in all"):
        assert row in " ".join(table.split()), table
