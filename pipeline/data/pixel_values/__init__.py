"""Images of other values than 8 bits: what their files hold, and how it becomes 8 bits."""
