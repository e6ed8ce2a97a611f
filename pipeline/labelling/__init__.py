"""Labels that people give to images: the table of answers, and which images to ask about next."""
