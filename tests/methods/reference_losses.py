"""The losses of the methods in plain loops over NumPy rows, analytic: rows may be complex.

Gradients are taken by complex steps, see `reference_step`: comparisons look at real parts.
"""

import jax
import numpy as np


def unit(x):
    """Rows of length one."""
    return np.stack([row / np.sqrt(np.sum(row * row)) for row in x])


def dot(x, y):
    return np.sum(x * y)


def log_sum(logits):
    """log sum exp of a list of scalars."""
    return np.log(sum(np.exp(logit) for logit in logits))


def crossed(own, other):
    """Rows of each view with those that the other view offers: (a, b's), (b, a's)."""
    return (own[0], other[1]), (own[1], other[0])


# --- losses --------------------------------------------------------------------------------------


def info_nce(z, tau, positive_in_denominator):
    """NRCC (1)-(3), or SimCLR."""
    n, rows, total = len(z[0]), [*unit(z[0]), *unit(z[1])], 0.0
    for i, x in enumerate(rows):
        partner = (i + n) % (2 * n)
        left_out = {i} if positive_in_denominator else {i, partner}
        logits = [dot(x, y) / tau for k, y in enumerate(rows) if k not in left_out]
        total += log_sum(logits) - dot(x, rows[partner]) / tau
    return total / (2 * n)


def of_candidates(rows, candidates, positives, tau, own=True, excluded=None):
    """InfoNCE of rows as they are; the positive attracts where it is left out, too."""
    total = 0.0
    for i, x in enumerate(rows):
        kept = [k for k in range(len(candidates)) if own or k != positives[i]]
        kept = [k for k in kept if excluded is None or not excluded[i, k]]
        total += log_sum([dot(x, candidates[k]) / tau for k in kept])
        total -= dot(x, candidates[positives[i]]) / tau
    return total / len(rows)


def byol(q, targets):
    """NRCC (4)."""
    total = 0.0
    for predictions, rows in crossed(q, targets):
        for x, y in zip(unit(predictions), unit(rows), strict=True):
            total += dot(x - y, x - y)
    return total / (2 * len(q[0]))


def codes(scores, epsilon, iterations):
    """SwAV (3)-(5): rows and columns of exp(scores / epsilon) scaled in turn; rows sum to 1."""
    q = np.exp(scores / epsilon)
    for _ in range(iterations):
        for k in range(q.shape[1]):
            q[:, k] /= sum(q[:, k])
        for row in q:
            row /= sum(row)
    return q


def swapped(scores, codes, tau):
    """SwAV (1), (2), (6): the codes of each of two views, predicted from all other views."""
    total, count = 0.0, 0
    for i, own in enumerate(codes):
        for j, view in enumerate(scores):
            if i != j:
                count += len(view)
                for q, row in zip(own, view, strict=True):
                    total += sum(q * (log_sum(row / tau) - row / tau))
    return total / count


def barlow(z, off_diagonal):
    """Barlow Twins (1), (2)."""
    n, d = z[0].shape
    columns = []
    for rows in z:
        centered = rows - sum(rows)[None] / n
        variance = sum(centered**2) / n
        columns.append(centered / np.sqrt(variance + 1e-5)[None])
    total = 0.0
    for i in range(d):
        for j in range(d):
            c = dot(columns[0][:, i], columns[1][:, j]) / n
            total += (1 - c) ** 2 if i == j else off_diagonal * c**2
    return total


def distance(x, y):
    return np.sqrt(np.sum((x - y) ** 2))


def by_kernel(values, rows, compute):
    """`compute(unit rows, likeness)` of one kernel or a mixture, or the sum for two losses."""
    halves, weight = values["halves"], values["weight"]
    shares = (1.0,) if weight is None else (weight, 1 - weight)

    def like(part):
        gamma, tau = values["gammas"][part], values["temperatures"][part]
        return lambda x, y: np.exp(-(distance(own(x, part), own(y, part)) ** gamma) / tau)

    def own(x, part):
        half = len(x) // 2
        return unit([x[part * half : (part + 1) * half]])[0] if halves else x

    rows, parts = [unit(x) for x in rows], [like(i) for i in range(len(shares))]
    if values["mixture"] == "loss":
        return sum(w * compute(rows, k) for w, k in zip(shares, parts, strict=True))
    return compute(rows, lambda x, y: sum(w * k(x, y) for w, k in zip(shares, parts, strict=True)))


def kernel_views(z, values):
    """Kernel-InfoNCE (8), candidates from the batch."""

    def compute(views, like):
        n, rows, total = len(z[0]), [*views[0], *views[1]], 0.0
        for i, x in enumerate(rows):
            inner = sum(like(x, y) for k, y in enumerate(rows) if k != i)
            total -= np.log(like(x, rows[(i + n) % (2 * n)]) / inner)
        return total / (2 * n)

    return by_kernel(values, z, compute)


def kernel_pairs(a, b, values):
    """Kernel-InfoNCE of two modalities: the rows of the other one are the candidates."""

    def compute(rows, like):
        odds = np.array([[like(x, y) for y in rows[1]] for x in rows[0]])
        own = np.log(np.diag(odds))
        return np.mean(np.log(odds.sum(0)) + np.log(odds.sum(1)) - 2 * own) / 2

    return by_kernel(values, (a, b), compute)


def kernel_queue(x, keys, queue, values):
    """Kernel-InfoNCE on MoCo, one direction; `queue` has the filled entries."""

    def compute(rows, like):
        total = 0.0
        for x, key in zip(*rows[:2], strict=True):
            candidates = [like(x, y) for y in (key, *(rows[2] if len(queue) else ()))]
            total += np.log(sum(candidates) / candidates[0])
        return total / len(rows[0])

    return by_kernel(values, (x, keys, *([queue] if len(queue) else [])), compute)


def queue_contrast(anchors, keys, queue, logit):
    """MoCo (1), one direction, of unit rows; `queue` has the filled entries."""
    total = 0.0
    for x, key in zip(anchors, keys, strict=True):
        own = logit(x, key)
        total += log_sum([own, *(logit(x, y) for y in queue)]) - own
    return total / len(anchors)


def moco(z, targets, queue, tau):
    """Both directions of MoCo."""
    losses = [
        queue_contrast(unit(x), unit(y), queue, lambda x, y: dot(x, y) / tau)
        for x, y in crossed(z, targets)
    ]
    return sum(losses) / 2


def prototypes(rows, labels):
    """Cluster -> unit sum of its unit rows, of the clusters that occur in the batch."""
    pairs = list(zip(unit(rows), labels, strict=True))
    sums = {k: sum(x for x, own in pairs if own == k) for k in sorted(set(labels.tolist()))}
    return {k: x / np.sqrt(dot(x, x)) for k, x in sums.items()}


def proto_cl(z, targets, labels, tau, part="whole"):
    """NCC (7), or a term of (8), both directions, over the clusters that occur in the batch."""
    total, present = 0.0, sorted(set(labels.tolist()))
    for rows, constants in crossed(z, targets):
        mu, other = prototypes(rows, labels), prototypes(constants, labels)
        for k in present:
            own = dot(mu[k], other[k]) / tau
            others = [dot(mu[k], mu[j]) / tau for j in present if j != k]
            if part != "uniformity":
                total -= own
            if part == "whole":
                others.append(own)
            if part != "alignment":
                total += log_sum(others)
    return total / (2 * len(present))


def proto_nce(z, clusterings, index):
    """PCL's contrast with prototypes, the mean over views and clusterings."""
    total = 0.0
    for rows in z:
        for found in clusterings:
            pairs = list(zip(found["prototypes"], found["concentrations"], strict=True))
            for x, i in zip(unit(rows), index, strict=True):
                logits = [dot(x, c) / phi for c, phi in pairs]
                total += log_sum(logits) - logits[found["labels"][i]]
    return total / (2 * len(clusterings) * len(index))


def clusters(p, tau):
    """CC's contrast of clusters, and log K less the entropy of each view's mean."""
    total = info_nce([x.T for x in p], tau, True)
    for rows in p:
        mean = sum(rows) / len(rows)
        total += np.log(len(mean)) + sum(m * np.log(m) for m in mean)
    return total


def nearest(x, centroids):
    """Number of the centroid nearest to a unit row."""
    return min(range(len(centroids)), key=lambda k: sum((x - centroids[k]) ** 2))


def cueco(q, targets, queue, clusters, values):
    """CueCo (1), (4), (5), each the mean of both directions."""
    centroids, variances = clusters["centroids"], clusters["variances"]
    tau, losses = values["temperature"], [0.0, 0.0, 0.0]
    for queries, keys in crossed(q, targets):
        queries, keys = unit(queries), unit(keys)
        losses[0] += queue_contrast(queries, keys, queue, lambda x, y: dot(x, y) / tau) / 2
        for x, key in zip(queries, keys, strict=True):
            k = nearest(key, centroids)
            logits = [dot(x, c) / tau for c in centroids]
            gap = x - centroids[k]
            share = 1 / (2 * len(queries))
            losses[1] += share * (log_sum(logits) - logits[k])
            losses[2] += share * dot(gap, gap) / (2 * variances[k] + 1e-6)
    return losses


def cross_entropy(logits, labels):
    """Mean of -log softmax at the label."""
    pairs = zip(logits, labels, strict=True)
    return sum(log_sum(list(row)) - row[int(label)] for row, label in pairs) / len(labels)


def nrcc(anchors, partners, c, tau, own=False):
    """NRCC's R (5), (6) with the sign of (10)-(14); with or without the own sampled view."""
    n, total, negatives = len(c), 0.0, unit(c)
    for rows, positives in crossed(anchors, partners):
        rows, positives = unit(rows), unit(positives)
        for i, x in enumerate(rows):
            repulsion = [dot(x, negatives[j]) / tau for j in range(n) if own or j != i]
            total += log_sum(repulsion) - log_sum([dot(x, y) / tau for y in positives])
    return total / (2 * n)


# --- novel class discovery -----------------------------------------------------------------------


def softmax(row):
    return np.exp(row) / np.sum(np.exp(row))


def pairwise_bce(features, p, q, threshold):
    """NCL (2), (3) over all ordered pairs, the second factor from the other view."""
    rows, total = unit(features).real, 0.0
    for i in range(len(p)):
        for j in range(len(p)):
            predicted = dot(p[i], q[j])
            same = np.dot(rows[i], rows[j]) >= threshold
            total -= np.log(predicted) if same else np.log(1 - predicted)
    return total / len(p) ** 2


def squared_difference(p, q):
    """NCL (4) of one head: mean over classes and rows."""
    return sum(np.mean((x - y) ** 2) for x, y in zip(p, q, strict=True)) / len(p)


def soft_contrast(x, positives, negatives, tau):
    """-sum_m w_m log softmax over (weight, row) pairs and further negatives."""
    rows = [row for _, row in positives] + negatives
    inner = log_sum([dot(x, y) / tau for y in rows])
    return sum(w * (inner - dot(x, y) / tau) for w, y in positives)


DRAWN = {}


def _integers(key, shape, high, fold=None):
    """Random whole numbers below `high`: a gradient asks for those of a key again and again."""
    known = np.asarray(jax.random.key_data(key)).tobytes(), shape, high, fold
    if known not in DRAWN:
        key = key if fold is None else jax.random.fold_in(key, fold)
        DRAWN[known] = np.asarray(jax.random.randint(key, shape, 0, high))
    return DRAWN[known]


def hard_negatives(x, unlabeled, labeled, key, values):
    """NCL (12)-(15) for one anchor: constants. And the variants V2 to V6 of Figure 4."""
    x, count, rounds, variant = x.real, values["count"], values["rounds"], values["variant"]

    def alike(rows, sign):
        return sorted(rows, key=lambda row: sign * np.dot(x, row))[:count]

    easy, partners = alike(unlabeled, 1), labeled
    if variant == "labeled":
        places = _integers(key, (count,), len(labeled), fold=1)
        easy = [labeled[i] for i in places]
    elif variant == "unlabeled":
        partners = easy
    elif variant == "nearest":
        partners = alike(labeled, -1)
    draws = _integers(key, (rounds, count), len(partners))
    mixtures = []
    for mu in values["mixing"]:
        for i in range(rounds):
            for slot, row in enumerate(easy):
                mixed = mu * row + (1 - mu) * partners[draws[i, slot]]
                mixtures.append(mixed / np.linalg.norm(mixed))
    return sorted(mixtures, key=lambda m: -np.dot(x, m))[: len(easy)]
