"""Who becomes the champion: `promote`, and the flow that waits for a person's answer."""
