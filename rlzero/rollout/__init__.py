"""Rollouts: the engine protocol, the embedded JAX engine, and the sampler that turns completions into groups."""
