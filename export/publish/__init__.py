"""Models out of a workspace: exported, checked, numbered, handed out."""
