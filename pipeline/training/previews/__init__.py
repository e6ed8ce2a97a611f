"""Pictures of what augmentation and mixing do to training images."""
