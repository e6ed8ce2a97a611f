"""The commands, a file each: its arguments, its help, and what it prints."""
