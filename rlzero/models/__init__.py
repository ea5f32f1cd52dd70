"""Decoder models as pure pytrees: the transformer, its attention, the critic's head, and Hugging Face model directories."""
