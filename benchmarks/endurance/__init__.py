"""Does it hold? Kills at random moments, answers while it learns, hours of video, and how soon it is back."""
