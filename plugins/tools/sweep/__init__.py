"""A search over settings: many training runs in one study, and an honest comparison at the end."""
