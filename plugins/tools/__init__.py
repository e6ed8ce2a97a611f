"""Built-in tools: a folder each, with library, flow, command and page."""
