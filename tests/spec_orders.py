"""The order of the keys of each mapping of the language, by its path."""

from __future__ import annotations

from blockc.language.spec.classes import DOCUMENT, AllowedKeys


def orders(keys: AllowedKeys = DOCUMENT, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], tuple[str, ...]]:
    """Of names, the order of what stands under each, as under *; parts inside parts are those that are there."""
    if keys.named:
        return {} if "parts" in path[:-1] else orders(keys.keys_below("*"), (*path, "*"))
    found = {path: keys.order} if keys.order else {}
    for key in keys.order:
        found |= orders(keys.keys_below(key), (*path, key))
    return found


ORDERS = orders()
EVERY_KEY = sorted({key for order in ORDERS.values() for key in order})
