"""Decoders as pure pytrees: the transformer, its attention, the critic's head, Hugging Face model directories."""
