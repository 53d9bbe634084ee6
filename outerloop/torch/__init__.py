"""The helper that a training script imports. torch is imported inside functions only."""
