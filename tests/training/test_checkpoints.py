"""Checkpoints come back equal, onto any devices, whole ones only; and what cannot be saved or restored says so."""

import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import textwrap

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rlzero.training import checkpoints

HOST = {"step": 3, "prompts": {"next_index": 96}, "seeds": [7, 2**40], "carried": [{"id": "7+8", "logprobs": [-0.1]}],
        "fingerprint": {"task": "arithmetic", "task_seed": 0}}


@flax.struct.dataclass
class State:
    params: dict
    optimizer: optax.OptState
    updates: jax.Array


def state(scale=1.0, dtype=jnp.float32, width=4):
    params = {"embed": scale * jnp.arange(8 * width, dtype=dtype).reshape(8, width), "norm": {"scale": jnp.ones(3)}}
    return State(params, optax.adamw(1e-3).init(params), jnp.int32(5))


def saved(workdir, *steps, keep=2):
    with checkpoints.Checkpoints(workdir, keep=keep) as manager:
        for step in steps:
            manager.save(step, {"policy": state(step), "reference": {"w": jnp.ones(2)}}, HOST | {"step": step})


def arrays():
    return {"policy": state(0), "reference": {"w": jnp.zeros(2)}}


def assert_equal_trees(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_round_trip_and_keep(tmp_path):
    saved(tmp_path, 1, 2, 3)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["2", "3"]
    with checkpoints.Checkpoints(tmp_path) as manager:
        restored = manager.restore(arrays())
        assert (restored.step, restored.host, manager.skipped) == (3, HOST, [])
        assert_equal_trees(restored.arrays, {"policy": state(3), "reference": {"w": jnp.ones(2)}})
        manager.save(4, restored.arrays, restored.host)
        manager.wait()
        assert manager.latest_step == 4
        assert_equal_trees(manager.restore(arrays()).arrays, restored.arrays)


def test_nothing_to_restore(tmp_path):
    with checkpoints.Checkpoints(tmp_path) as manager:
        assert manager.latest_step is None and manager.restore(arrays()) is None


def test_a_saved_step_is_left_as_it_is(tmp_path):
    with checkpoints.Checkpoints(tmp_path) as manager:
        manager.save(1, {"policy": state(1)}, {"n": 1})
        manager.save(1, {"policy": state(2)}, {"n": 2})
        assert manager.restore({"policy": state()}).host == {"n": 1}


def test_arrays_may_be_donated_as_soon_as_save_returns(tmp_path):
    change = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)
    x = jnp.arange(1 << 22, dtype=jnp.float32)
    with checkpoints.Checkpoints(tmp_path) as manager:
        manager.save(1, {"policy": {"x": x}}, {})
        x = change(x)
        manager.wait()
        restored = manager.restore({"policy": {"x": x}})
    np.testing.assert_array_equal(restored.arrays["policy"]["x"], np.arange(1 << 22, dtype=np.float32))


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_restores_onto_another_number_of_devices(tmp_path, devices):
    def placed(count):
        mesh = jax.make_mesh((count,), ("fsdp",), axis_types=(jax.sharding.AxisType.Auto,),
                             devices=jax.devices()[:count])
        return jax.device_put({"w": jnp.arange(64.0).reshape(8, 8)},
                              jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("fsdp")))

    with checkpoints.Checkpoints(tmp_path) as manager:
        manager.save(1, {"policy": placed(8)}, {})
    target = jax.tree.map(jnp.zeros_like, placed(devices))
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), target)
    with checkpoints.Checkpoints(tmp_path, read_only=True) as manager:
        restored = manager.restore({"policy": shapes}).arrays["policy"]["w"]
    np.testing.assert_array_equal(restored, np.arange(64.0).reshape(8, 8))
    assert restored.sharding == target["w"].sharding


def test_parameters_alone(tmp_path):
    saved(tmp_path, 1)
    with checkpoints.Checkpoints(tmp_path, read_only=True) as manager:
        wanted = {"policy": {"params": jax.eval_shape(state).params}}
        assert_equal_trees(manager.restore(wanted, partial=True).arrays, {"policy": {"params": state(1).params}})
        with pytest.raises(ValueError, match="policy/optimizer/0/count: int32.* in the checkpoint, nothing in this run"):
            manager.restore(wanted)


@pytest.mark.parametrize("other, words", [
    ({"dtype": jnp.bfloat16}, r"policy/params/embed: float32\[8, 4\] in the checkpoint, bfloat16\[8, 4\] in this run"),
    ({"width": 5}, r"policy/params/embed: float32\[8, 4\] in the checkpoint, float32\[8, 5\] in this run"),
])
def test_another_dtype_or_shape_is_refused(tmp_path, other, words):
    saved(tmp_path, 1)
    with checkpoints.Checkpoints(tmp_path) as manager, pytest.raises(ValueError, match=words):
        manager.restore(arrays() | {"policy": state(**other)})


def test_another_algorithm_is_refused(tmp_path):
    saved(tmp_path, 1)
    with checkpoints.Checkpoints(tmp_path) as manager:
        with pytest.raises(ValueError, match="reference/w: .* in the checkpoint, nothing in this run"):
            manager.restore({"policy": state()})
        with pytest.raises(ValueError, match="critic/w: nothing in the checkpoint"):
            manager.restore(arrays() | {"critic": {"w": jnp.ones(2)}})


def damage_empty(folder):
    shutil.rmtree(folder)
    folder.mkdir()


def damage_truncate(folder):
    largest = max((path for path in (folder / "policy").rglob("*") if path.is_file()), key=lambda p: p.stat().st_size)
    os.truncate(largest, largest.stat().st_size // 2)


def damage_flip(folder):
    largest = max((path for path in (folder / "policy").rglob("*") if path.is_file()), key=lambda p: p.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[len(data) // 2] ^= 255
    largest.write_bytes(data)


def damage_remove(folder):
    shutil.rmtree(folder / "reference")


def damage_uncommitted(folder):
    (folder / "commit.json").unlink()


@pytest.mark.parametrize("damage, words", [
    (damage_empty, "the directory is empty"), (damage_truncate, "is damaged"), (damage_flip, "is damaged"),
    (damage_remove, "is missing"), (damage_uncommitted, "commit.json is missing")])
def test_the_newest_whole_checkpoint_is_restored_and_the_others_are_named(tmp_path, damage, words):
    saved(tmp_path, 1, 2)
    damage(tmp_path / "checkpoints" / "2")
    with checkpoints.Checkpoints(tmp_path, read_only=True) as reader:
        assert reader.latest_step == 1
        assert (tmp_path / "checkpoints" / "2").exists()
    with checkpoints.Checkpoints(tmp_path) as manager:
        assert len(manager.skipped) == 1
        assert f"{tmp_path}/checkpoints/2 is no whole" in manager.skipped[0] and words in manager.skipped[0]
        assert manager.restore(arrays()).step == 1
        manager.save(2, arrays(), HOST)  # the run goes on over the broken step
    with checkpoints.Checkpoints(tmp_path) as manager:
        assert (manager.latest_step, manager.skipped) == (2, [])
    assert (tmp_path / "checkpoints" / "2.incomplete").exists()


def test_only_broken_ones_leave_nothing(tmp_path):
    (tmp_path / "checkpoints" / "9").mkdir(parents=True)
    with checkpoints.Checkpoints(tmp_path) as manager:
        assert manager.latest_step is None
        manager.save(1, arrays(), HOST)  # below the number of the broken one
        manager.wait()
        assert manager.latest_step == 1


def test_host_state_that_json_would_change_is_refused(tmp_path):
    with checkpoints.Checkpoints(tmp_path) as manager:
        with pytest.raises(TypeError, match="use lists instead of tuples"):
            manager.save(1, arrays(), {"seeds": (1, 2)})
        with pytest.raises(TypeError, match="put it into the host's state"):
            manager.save(1, {"policy": {"n": 3}}, {})


def test_no_room_is_said_before_anything_is_written(tmp_path, monkeypatch):
    saved(tmp_path, 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1000, 990, 10))
    with checkpoints.Checkpoints(tmp_path) as manager:
        with pytest.raises(checkpoints.CheckpointError, match="no room .*checkpoints has 10 left. The last good one, of"):
            manager.save(2, arrays(), HOST)


def test_a_failure_in_the_background_surfaces_and_keeps_the_last_one(tmp_path):
    saved(tmp_path, 1)
    script = textwrap.dedent("""
        import resource, sys
        import jax.numpy as jnp
        from rlzero.training import checkpoints
        manager = checkpoints.Checkpoints(sys.argv[1], keep=1)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
        import jax
        x = jax.random.normal(jax.random.key(0), (1 << 18,))
        try:
            manager.save(2, {"policy": {"x": x}}, {})
            manager.save(3, {"policy": {"x": x}}, {})
        except checkpoints.CheckpointError as error:
            print(error)
        """)
    result = run(script, tmp_path)
    assert f"saving the checkpoint of step 2 to {tmp_path}/checkpoints failed" in result.stdout, result.stderr
    assert "The last good one, of step 1, is untouched." in result.stdout
    with checkpoints.Checkpoints(tmp_path) as manager:
        assert manager.restore(arrays()).step == 1


def test_killed_while_saving(tmp_path):
    saved(tmp_path, 1)
    script = textwrap.dedent("""
        import os, signal, sys
        import jax.numpy as jnp
        from rlzero.training import checkpoints
        manager = checkpoints.Checkpoints(sys.argv[1])
        checkpoints._contents = lambda folder: os.kill(os.getpid(), signal.SIGKILL)  # all written, not yet committed
        manager.save(2, {"policy": {"x": jnp.ones(9)}}, {})
        manager.wait()
        """)
    assert run(script, tmp_path).returncode == -signal.SIGKILL
    with checkpoints.Checkpoints(tmp_path) as manager:
        assert manager.restore(arrays()).step == 1
        manager.save(2, arrays(), HOST)
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["1", "2"], "what the killed process left is cleaned up"


def run(script, *arguments):
    return subprocess.run([sys.executable, "-c", script, *map(str, arguments)], text=True, capture_output=True,
                          cwd=pathlib.Path(__file__).parents[2], check=False)


def test_commit_file_lists_every_item(tmp_path):
    saved(tmp_path, 1)
    listed = json.loads((tmp_path / "checkpoints" / "1" / "commit.json").read_text())["files"]
    assert {pathlib.Path(name).parts[0] for name in listed} == {"policy", "reference", "host"}
