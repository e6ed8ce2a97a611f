"""A promotion that waits for a person: the question, the form for the answer, what follows it."""
