"""What runs in the Python that has PyTorch. Nothing here is imported by the commands: they start it."""
