"""What each kind of plugin consists of; plugins import it from `patchline.plugin_api`."""
