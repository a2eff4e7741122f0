"""The methods on scikit-learn's digits: the table of the README."""
