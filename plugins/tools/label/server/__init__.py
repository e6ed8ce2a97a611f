"""The page on which people label images, and the interface behind it."""
