"""The order of the items, `order.json`: groups, most valuable first, with a share of the time."""

import pathlib
from typing import Any

from cluster_jax.core import io

FILE = pathlib.Path(__file__).parent / "order.json"


def load(tiny: bool = False) -> list[dict[str, Any]]:
    """The items in order, each with the name of its group and the group's share of a slice.

    In the dry run items that differ only in sizes, which it replaces, are one.
    """
    items, seen = [], set()
    for group in io.read_json(FILE)["groups"]:
        for item in group["items"]:
            name = item.get("name") or _name(item)
            item = {"kind": group["kind"], **item, "name": name}
            item |= {"group": group["name"], "share": group["share"]}
            if tiny:
                kept = ("kind", "method", "sampler", "views")
                same = tuple(item.get(key) for key in kept)
                if same in seen or item["kind"] == "torch":
                    continue
                seen.add(same)
                item |= item.get("tiny", {})
            items.append(item)
    return items


def _name(item: dict[str, Any]) -> str:
    parts = [item["method"]]
    if item.get("sampler"):
        parts.append(f"+ nrcc ({item['sampler']})")
    parts += [item["network"], item["dtype"], str(item["batch"])]
    if item.get("side", 32) != 32:
        parts.append(f"{item['side']} px")
    if item.get("views") == "flips":
        parts.append("flips alone")
    return " ".join(parts)
