"""The learner: network, losses, augmentation, memory, methods, checkpoints."""
