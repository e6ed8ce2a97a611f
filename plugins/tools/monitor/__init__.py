"""Whether the images that arrive are still like those that a version was tested on."""
