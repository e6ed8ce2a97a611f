"""Tests of labelling: the table of answers, the order of the images, and the page."""
