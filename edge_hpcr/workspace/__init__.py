"""A workspace: the folder that holds one learner's life. `workspace.Workspace` opens it."""
