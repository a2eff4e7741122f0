"""All methods on scikit-learn's digits, and ablations of three of them, 3 seeds."""
