"""A learner that never stops: it follows a workspace's journal, answers meanwhile, and says honestly how good it is."""
