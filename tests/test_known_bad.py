"""A run that is known to go wrong, kept so that the warnings are tried on a real collapse too."""

import os
import pathlib
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).parents[1]


@pytest.mark.slow
def test_a_learning_rate_three_times_too_high_over_two_epochs_collapses_and_says_so(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-m", "rlzero.train", "--config=configs/demo.py:grpo", f"--workdir={tmp_path}",
         "--config.optimizer.learning_rate=1e-3", "--config.learner.epochs=2", "--config.steps=30",
         "--config.evaluation.problems=64"],
        cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the policy has collapsed" in done.stdout
