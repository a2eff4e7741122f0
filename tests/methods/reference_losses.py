"""The losses of the methods in plain loops over NumPy rows, analytic: rows may be complex.

Gradients are taken by complex steps, see `reference_step`: comparisons look at real parts.
"""

import jax
import numpy as np

from tests.methods import tiny


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


def kernel_views(z, values):
    """Kernel-InfoNCE (8) with a sum of two kernels, candidates from the batch."""
    n, rows, total = len(z[0]), [*unit(z[0]), *unit(z[1])], 0.0

    def kernel(x, y):
        shares = (values["weight"], 1 - values["weight"])
        terms = zip(shares, values["gammas"], values["temperatures"], strict=True)
        return sum(w * np.exp(-(distance(x, y) ** gamma) / tau) for w, gamma, tau in terms)

    for i, x in enumerate(rows):
        inner = sum(kernel(x, y) for k, y in enumerate(rows) if k != i)
        total -= np.log(kernel(x, rows[(i + n) % (2 * n)]) / inner)
    return total / (2 * n)


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


def kernel_queue(z, targets, queue, values):
    """Kernel-InfoNCE on MoCo: two losses, each of one half of the rows."""
    total, half = 0.0, tiny.FEATURES // 2
    shares = (values["weight"], 1 - values["weight"])
    for part, weight in enumerate(shares):
        gamma, tau = values["gammas"][part], values["temperatures"][part]
        columns = slice(part * half, (part + 1) * half)
        entries = unit([y[columns] for y in queue]) if len(queue) else []
        for x, y in crossed(z, targets):
            total += weight * queue_contrast(
                unit(x[:, columns]),
                unit(y[:, columns]),
                entries,
                lambda x, y, gamma=gamma, tau=tau: -(distance(x, y) ** gamma) / tau,
            )
    return total / 2


def proto_cl(z, targets, labels, tau):
    """NCC (7), both directions, over the clusters that occur in the batch."""
    total, present = 0.0, sorted(set(labels.tolist()))

    def centers(rows):
        sums = {k: sum(x for x, own in zip(unit(rows), labels, strict=True) if own == k)
                for k in present}  # fmt: skip
        return {k: x / np.sqrt(dot(x, x)) for k, x in sums.items()}

    for rows, constants in crossed(z, targets):
        mu, other = centers(rows), centers(constants)
        for k in present:
            own = dot(mu[k], other[k]) / tau
            total += log_sum([own, *(dot(mu[k], mu[j]) / tau for j in present if j != k)]) - own
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


def nrcc(anchors, partners, c, tau):
    """NRCC's R (5), (6) with the sign of (10)-(14); the own sampled view is left out."""
    n, total, negatives = len(c), 0.0, unit(c)
    for rows, positives in crossed(anchors, partners):
        rows, positives = unit(rows), unit(positives)
        for i, x in enumerate(rows):
            repulsion = [dot(x, negatives[j]) / tau for j in range(n) if j != i]
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


def hard_negatives(x, unlabeled, labeled, key, values):
    """NCL (12)-(15) for one anchor: constants. And the variants V2 to V6 of Figure 4."""
    x, count, rounds, variant = x.real, values["count"], values["rounds"], values["variant"]

    def alike(rows, sign):
        return sorted(rows, key=lambda row: sign * np.dot(x, row))[:count]

    easy, partners = alike(unlabeled, 1), labeled
    if variant == "labeled":
        places = jax.random.randint(jax.random.fold_in(key, 1), (count,), 0, len(labeled))
        easy = [labeled[i] for i in places]
    elif variant == "unlabeled":
        partners = easy
    elif variant == "nearest":
        partners = alike(labeled, -1)
    draws = np.asarray(jax.random.randint(key, (rounds, count), 0, len(partners)))
    mixtures = []
    for mu in values["mixing"]:
        for i in range(rounds):
            for slot, row in enumerate(easy):
                mixed = mu * row + (1 - mu) * partners[draws[i, slot]]
                mixtures.append(mixed / np.linalg.norm(mixed))
    return sorted(mixtures, key=lambda m: -np.dot(x, m))[: len(easy)]
