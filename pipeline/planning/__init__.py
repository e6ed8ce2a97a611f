"""Fill in a preset: settings planned from the data, the machine and its measured speed."""
