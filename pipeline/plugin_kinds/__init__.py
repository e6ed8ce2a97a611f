"""What each kind of plugin consists of; plugins import it from `pipeline.plugin_api`."""
