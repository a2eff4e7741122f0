"""The convolution that the convolutional networks share."""

import flax.linen as nn
import jax.numpy as jnp

kaiming = nn.initializers.variance_scaling(2.0, "fan_out", "normal")


def conv(
    features: int, size: int, stride: int, dtype: jnp.dtype | None, padding: str | None = None
) -> nn.Conv:
    """Convolution without bias, by default padded equally on both sides as in torch.

    Flax's "SAME" pads an even image only below and to the right when the stride is 2.
    """
    return nn.Conv(
        features,
        (size, size),
        stride,
        padding=padding or size // 2,
        use_bias=False,
        kernel_init=kaiming,
        dtype=dtype,
    )
