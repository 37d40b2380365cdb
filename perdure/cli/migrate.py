"""`perdure migrate`."""

import asyncio


def migrate() -> None:
    """Bring the database up to this version, and register the search attributes with Temporal. Safe to repeat."""
    asyncio.run(_migrate())


async def _migrate() -> None:
    from rich import print

    from perdure.connection import connect_temporal, register_search_attributes
    from perdure.settings import load_settings
    from stores.migrate import migrate

    await migrate(load_settings().required_database_url())
    print("Database: up to date.")
    added = await register_search_attributes(await connect_temporal())
    print(f"Temporal: registered {', '.join(added)}." if added else "Temporal: all search attributes are registered.")
