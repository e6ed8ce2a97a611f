"""From the files of a source to the manifest: listed, labelled, described, compared."""
