"""GridShift read literally, with dictionaries and Python floats: slow, and obviously right."""

import itertools
import math


def gridshift(points, h, *, stop, max_iter=500):
    """Labels (cluster numbers in the order of the final cells), centers and iterations made."""
    members = {}
    for i, x in enumerate(points):
        members.setdefault(tuple(math.floor(v / h) for v in x), []).append(i)
    cells = {}
    for cell, rows in members.items():
        mass = len(rows)
        center = [sum(points[i][k] for i in rows) / mass for k in range(len(points[0]))]
        cells[cell] = (mass, center)
    where = {i: cell for cell, rows in members.items() for i in rows}

    iteration = 0
    while iteration < max_iter:
        iteration += 1
        moved = {}
        for cell, (_, center) in cells.items():
            near = [
                tuple(c + s for c, s in zip(cell, shift, strict=True))
                for shift in itertools.product((-1, 0, 1), repeat=len(cell))
            ]
            near = [cells[other] for other in near if other in cells]
            mass = sum(m for m, _ in near)
            moved[cell] = [sum(m * c[k] for m, c in near) / mass for k in range(len(center))]
        target = {cell: tuple(math.floor(v / h) for v in to) for cell, to in moved.items()}
        farthest = max(
            abs(a - b)
            for cell, (_, center) in cells.items()
            for a, b in zip(moved[cell], center, strict=True)
        )
        arrivals = {}
        for cell, to in target.items():
            arrivals.setdefault(to, []).append(cell)
        merged = len(arrivals) < len(cells)
        stayed = all(cell == to for cell, to in target.items())
        after = {}
        for to, sources in arrivals.items():
            mass = sum(cells[s][0] for s in sources)
            center = [
                sum(cells[s][0] * moved[s][k] for s in sources) / mass
                for k in range(len(points[0]))
            ]
            after[to] = (mass, center)
        cells = after
        where = {i: target[cell] for i, cell in where.items()}
        if stop == "no_merge" and not merged:
            break
        if stop == "fixed_point" and stayed and not merged and farthest <= 1e-9 * h:
            break

    numbers = {cell: k for k, cell in enumerate(sorted(cells))}
    labels = [numbers[where[i]] for i in range(len(points))]
    return labels, [cells[cell][1] for cell in sorted(cells)], iteration
