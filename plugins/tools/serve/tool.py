"""A registered model as an HTTP service, with a page to try an image on."""

from patchline.plugin_api import ToolCommand, ToolPlugin, ToolService

plugin = ToolPlugin(
    summary="A registered model as an HTTP service, with a page to try an image on.",
    commands=(
        ToolCommand(
            words="serve",
            function=f"{__package__}.command:serve",
            help="Serve a registered model over HTTP until Ctrl-C or SIGTERM.",
            examples=("flowers@champion", "flowers@champion --port 8080 --record traffic"),
            group="Begin",
        ),
    ),
    services=(
        ToolService(
            name="model_server",
            title="Model",
            flag="--serve",
            help="Registered model to serve over HTTP on this machine, such as flowers@champion.",
            port_help="Port of the model server; the next free port if it is taken.",
            program=f"{__package__}.command:serve_beside_mlflow",
            check="patchline.pipeline.registry.aliases:parsed",
        ),
    ),
)
