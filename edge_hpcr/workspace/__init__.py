"""A workspace: the folder that holds one learner's life. `folder.Workspace` opens it."""
