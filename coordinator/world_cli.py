"""`mlx-network world`: the public map over a made-up fleet, for looking at it before there is one."""

from __future__ import annotations

from typing import Annotated

import typer

PORT = 8401


def show_world(
    demo_fleet: Annotated[
        int, typer.Option("--demo-fleet", min=1, max=200_000, help="How many Macs to make up.")
    ] = 20_000,
    seed: Annotated[int, typer.Option("--seed", help="The same seed gives the same fleet.")] = 1,
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="Port to listen on.")] = PORT,
) -> None:
    """Show MLX World over a made-up fleet until Ctrl-C; no Mac and no coordinator is needed."""
    import uvicorn

    from coordinator.head_requests import HeadAsGet
    from coordinator.world_demo import demo_market
    from web_world.demo_server import demo_app

    origin = f"http://127.0.0.1:{port}"
    typer.echo(f"{demo_fleet} made-up Macs at {origin}/en/ (also /ar/, /pl/, /ur/). Ctrl-C ends it.")
    app = demo_app(demo_fleet, seed=seed, origin=origin, market=demo_market(demo_fleet, seed))
    uvicorn.run(HeadAsGet(app), host="127.0.0.1", port=port, log_level="warning", timeout_graceful_shutdown=1)
