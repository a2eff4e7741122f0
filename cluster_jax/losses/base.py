"""Shared by the losses: a decorator that checks their arguments, jits and partitions them.

A shape is written as JAX writes that of an array, with names for sizes: `float[rows, d]`. In one
call a name stands for one number. `float` is any floating dtype, `int` any integer one.
"""

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AxisType, PartitionSpec

from cluster_jax.core import checks
from cluster_jax.core.checks import InputError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
_PAIR, _VIEWS = "pair of ", "views of "
_KINDS = {"float": np.floating, "int": np.integer, "bool": np.bool_, "key": jax.dtypes.prng_key}


def array_function(
    *, static: tuple[str, ...] = (), by_rows: bool = False, **shapes: str
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Decorates a function of arrays: jits it, and checks its arguments when it is traced.

    Where arrays are sharded over an explicit mesh (`jax.make_mesh`), the compiler partitions the
    function, as it does on an automatic mesh. A `temperature` or `epsilon` of 0 or below is refused
    if it is a number; one that is an array is not looked at.

    Args:
        static: arguments that are compiled in.
        by_rows: whether the results have the rows of the first argument in `shapes`, and on an
            explicit mesh its sharding; otherwise they are the same on all devices.
        shapes: argument -> shape; before it `"pair of "` for two arrays, `"views of "` for two or
            more; or two shapes of one and of two axes, `"int[rows] or float[rows, k]"`. An argument
            of None passes.

    Raises:
        InputError: when the function is called: an argument has another shape or dtype.
        TypeError: likewise: an argument is missing or unknown.

    Example:
        >>> import jax.numpy as jnp
        >>> @array_function(a="float[rows, d]", b="float[rows, d]")
        ... def product(a, b):
        ...     return jnp.sum(a * b)
        >>> product(jnp.ones((2, 3)), jnp.ones((2, 3))).item()
        6.0
        >>> try:
        ...     product(jnp.ones((2, 3)), jnp.ones((2, 4)))
        ... except ValueError as error:
        ...     print(error)
        b must be float[rows, d] with d = 3; got float32[2,4]
    """

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        signature = inspect.signature(function)
        by_name: Callable[..., Result] = function

        @functools.partial(jax.jit, static_argnames=static)
        @functools.wraps(function)
        def traced(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            bound = signature.bind(*args, **kwargs).arguments
            check_shapes({name: (bound.get(name), shape) for name, shape in shapes.items()})
            arrays = {name: x for name, x in bound.items() if name not in static}
            types = [jax.typeof(x) for x in jax.tree.leaves(arrays)]
            meshes = [x.sharding.mesh for x in types if _explicit_axes(x.sharding.mesh)]
            if not meshes:
                return function(*args, **kwargs)
            rows = jax.typeof(bound[next(iter(shapes))]).sharding.spec[:1] if by_rows else ()
            run = jax.sharding.auto_axes(
                lambda arrays: by_name(**{**bound, **arrays}),
                axes=_explicit_axes(meshes[0]),
                out_sharding=PartitionSpec(*rows),
            )
            with jax.sharding.use_abstract_mesh(meshes[0]):
                return run(arrays)

        @functools.wraps(function)
        def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{function.__name__}: {error}") from None
            for name in ("temperature", "epsilon"):
                checks.if_number(checks.positive, name, kwargs.get(name))
            return traced(*args, **kwargs)

        return call

    return decorate


def _explicit_axes(mesh: Any) -> tuple[str, ...]:
    axes = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return tuple(name for name, kind in axes if kind == AxisType.Explicit)


def in_range(labels: Array, count: int) -> tuple[Array, Array]:
    """Clips labels, int `[...]`, to 0 to `count - 1`; returns which were in that range, too.

    Example:
        >>> import jax.numpy as jnp
        >>> [x.tolist() for x in in_range(jnp.array([-1, 2, 5]), 3)]
        [[0, 2, 2], [False, True, False]]
    """
    return jnp.clip(labels, 0, count - 1), (labels >= 0) & (labels < count)


def entries(queue: Array, filled: Array) -> Array:
    """Returns the queue `[Q, d]` with zeros in slots without an entry, whatever is in them.

    Example:
        >>> import jax.numpy as jnp
        >>> entries(jnp.array([[1.0], [jnp.nan]]), jnp.int32(1)).tolist()
        [[1.0], [0.0]]
    """
    return jnp.where(jnp.arange(len(queue), dtype=jnp.int32)[:, None] < filled, queue, 0)


def check_shapes(arrays: Mapping[str, tuple[Any, str]]) -> None:
    """Raises an `InputError` unless arrays fit together; `arrays` is name -> array or None, shape.

    Example:
        >>> import jax.numpy as jnp
        >>> check_shapes({"a": (jnp.ones((1, 2, 3)), "float[rows, d]")})
        Traceback (most recent call last):
        cluster_jax.core.checks.InputError: a must be float[rows, d]; got float32[1,2,3]
    """
    sizes: dict[str, int] = {}
    for name, (value, shape) in arrays.items():
        if value is None:
            continue
        if not shape.startswith((_PAIR, _VIEWS)):
            first, _, second = shape.partition(" or ")
            shape = second if second and getattr(value, "ndim", 1) > 1 else first
            _check_shape(name, value, shape, sizes)
            continue
        count = len(value) if isinstance(value, tuple | list) else 0
        if count < 2 or (count > 2 and shape.startswith(_PAIR)):
            wanted = "a pair of arrays, of view a and view b"
            wanted = wanted if shape.startswith(_PAIR) else "two arrays or more, one for each view"
            got = _described(value) if not count else str(count)
            raise InputError(f"{name} must be {wanted}; got {got}")
        for i, part in enumerate(value):
            _check_shape(f"{name}[{i}]", part, shape.split(" of ")[1], sizes)


def _check_shape(name: str, value: Any, shape: str, sizes: dict[str, int]) -> None:
    """Checks one array; `sizes` has the sizes known so far, to which its own are added."""
    kind, inner = re.fullmatch(r"(\w+)\[(.*)\]", shape).groups()  # type: ignore[union-attr]
    names = inner.split(", ") if inner else []
    fixed = {size: sizes[size] for size in names if size in sizes}
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        raise InputError(f"{name} must be an array {shape}; got {_described(value)}")
    actual = value.shape
    dtype = value.dtype
    if kind == "key" and jnp.issubdtype(dtype, np.uint32):  # a key of jax.random.PRNGKey
        actual = actual[:-1]
        dtype = jax.dtypes.prng_key
    fits = jnp.issubdtype(dtype, _KINDS[kind]) and len(actual) == len(names)
    wrong = {s: n for s, n in fixed.items() if fits and actual[names.index(s)] != n}
    if not fits or wrong:
        sized = f" with {' and '.join(f'{s} = {n}' for s, n in wrong.items())}" if wrong else ""
        raise InputError(f"{name} must be {shape}{sized}; got {_described(value)}")
    if 0 in actual:  # Means of nothing are NaN, and some sums would be numbers.
        raise InputError(f"{name} must be {shape} with no size of 0; got {_described(value)}")
    sizes |= dict(zip(names, actual, strict=True))


def _described(value: Any) -> str:
    """Describes an array in JAX's words for types, `float32[8,6]`; anything else by its type."""
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return f"a {type(value).__name__}"
    return f"{value.dtype}[{','.join(map(str, value.shape))}]"
