"""What a training step must give: the papers' losses in plain loops, over the network of `tiny`.

Nothing here is shared with the package, nothing is vectorized over images, and JAX only draws the
random numbers. Gradients are complex steps, f'(x) = Im f(x + ih) / h, exact to rounding: all
functions are analytic, and what a gradient takes for constant is computed beforehand, from values.
A state is a dictionary with `params`, `batch_stats` and what else a method keeps.
"""

import functools
import math

import jax
import numpy as np

from tests import reference
from tests.methods import reference_losses as losses
from tests.methods import tiny

LEARNING_RATE = 0.5
TOTAL = 10  # steps of the training, of which a test makes the first few


def gradient(function, tree):
    """Of a real function of a tree of arrays, one number at a time."""
    leaves, structure = jax.tree.flatten(tree)
    slopes = [np.zeros(leaf.shape) for leaf in leaves]
    for i, leaf in enumerate(leaves):
        for place in np.ndindex(leaf.shape):
            stepped = leaf.astype(complex)
            stepped[place] += 1e-30j
            moved = jax.tree.unflatten(structure, [*leaves[:i], stepped, *leaves[i + 1 :]])
            slopes[i][place] = function(moved).imag / 1e-30
    return jax.tree.unflatten(structure, slopes)


# --- what a step keeps ---------------------------------------------------------------------------


def pushed(queue, rows, labels=None):
    """A ring buffer after new rows, one by one."""
    entries = {name: np.array(x) for name, x in queue["rows"].items()}
    place, filled = int(queue["place"]), int(queue["filled"])
    for i, row in enumerate(rows):
        entries["z"][place] = row
        if labels is not None:
            entries["label"][place] = labels[i]
        place, filled = (place + 1) % len(entries["z"]), min(filled + 1, len(entries["z"]))
    return {"rows": entries, "place": place, "filled": filled}


def held(queue):
    """The entries of a ring buffer."""
    return queue["rows"]["z"][: int(queue["filled"])]


def averaged(target, params, step, decay, final_decay):
    """The moving average after a step: the decay goes by half a cosine to the final one."""
    now = final_decay - (final_decay - decay) * (1 + math.cos(math.pi * step / TOTAL)) / 2
    return {
        part: {"kernel": now * old["kernel"] + (1 - now) * params[part]["kernel"]}
        for part, old in target.items()
    }


def descended(params, loss):
    """Parameters after a step of gradient descent."""
    return jax.tree.map(lambda p, g: p - LEARNING_RATE * g, params, gradient(loss, params))


def started_clusters(rows, centers):
    """CueCo's clusters after k-means: centers, and the variance of their members.

    A cluster of one or no row gets the mean over all rows.
    """
    own = [losses.nearest(x, centers) for x in rows]
    squared = [sum((x - centers[k]) ** 2) for x, k in zip(rows, own, strict=True)]
    variances = [np.mean(squared)] * len(centers)
    for k in range(len(centers)):
        members = [s for s, other in zip(squared, own, strict=True) if other == k]
        if len(members) > 1:
            variances[k] = np.mean(members)
    return {"centroids": centers, "variances": np.array(variances)}


def concentrated(rows, clusters, mean):
    """PCL's clustering: labels, prototypes, and their temperatures."""
    phi = [0.0] * len(clusters.centers)
    for k, center in enumerate(clusters.centers):
        members = losses.unit(rows)[clusters.labels == k]
        if len(members) > 1:
            phi[k] = np.mean([math.sqrt(sum((x - center) ** 2)) for x in members])
            phi[k] /= math.log(len(members) + 10)
    phi = np.array([x if x > 0 else max(phi) for x in phi])
    phi = np.clip(phi, np.percentile(phi, 10), np.percentile(phi, 90))
    return {
        "labels": clusters.labels,
        "prototypes": clusters.centers,
        "concentrations": mean * phi / phi.mean(),
    }


# --- methods of two views ------------------------------------------------------------------------


def row_keys(key, index):
    return [jax.random.fold_in(key, int(i)) for i in index]


def views_by(function, key, rows):
    """A view of every row, each from a key of its own."""
    keys = row_keys(key, rows["index"])
    return np.stack([function(k, x) for k, x in zip(keys, rows["image"], strict=True)])


def batch_views(key, rows, small=0):
    """Views a and b of a batch, and small crops."""
    functions = [tiny.view, tiny.other_view] + small * [tiny.small_view]
    keys = jax.random.split(key, len(functions))
    return [views_by(function, k, rows) for function, k in zip(functions, keys, strict=True)]


def sampled(sampler, values, potential, image, key):
    """The end of a sampler's way from one image, (16)-(18) for SGHMC."""

    def normal(i):
        return np.asarray(jax.random.normal(jax.random.fold_in(key, i), image.shape))

    if sampler == "noise":
        return image + values["scale"] * normal(0)
    count = values["iterations"]
    if sampler == "monte_carlo":
        return image + values["step_size"] * sum(normal(i) for i in range(count))
    force = functools.partial(gradient, potential)
    if sampler == "sghmc":
        names = ("step_size", "friction", "noise", "momentum")
        settings = {name: values[name] for name in names}
        draws = [normal(i) for i in range(count + 1)]
        return reference.sghmc(image, force, draws, **settings)[0]
    chances = [float(jax.random.uniform(jax.random.fold_in(key, 2 * i + 1))) for i in range(count)]
    momenta = [normal(2 * i) for i in range(count)]
    settings = {name: values[name] for name in ("leapfrog_steps", "step_size")}
    return reference.hmc(image, lambda x: (potential(x), force(x)), momenta, chances, **settings)[0]


def third_view(state, views, targets, batch, keys, values):
    """NRCC's third view: from view a or a random view, toward the other view or the image."""
    sampler_key, view_key = keys
    if values["sampler"] == "augment":
        return views_by(tiny.view, view_key, batch)
    density = state["target"]["params"] if "target" in state else state["params"]
    pairs = [jax.random.split(k) for k in row_keys(sampler_key, batch["index"])]
    start = views[0]
    if values["initial_view"] == "random":
        every = np.concatenate(views)
        start = [every[int(jax.random.randint(k, (), 0, len(every)))] for k, _ in pairs]
    toward = targets[1]
    if values["reference"] == "clean":
        toward = tiny.project(density, tiny.clean(batch["image"]))

    def potential(image, target):
        z = tiny.project(density, image[None])[0]
        lengths = np.sqrt(losses.dot(z, z) * losses.dot(target, target))
        return 1 / (1 + losses.dot(z, target) / lengths)

    ends = []
    for image, target, (_, key) in zip(start, toward, pairs, strict=True):
        to_target = functools.partial(potential, target=target)
        ends.append(sampled(values["sampler"], values[values["sampler"]], to_target, image, key))
    return np.stack(ends)


def embedded(state, view, branch):
    """The sampled view by the network that `branch` names."""
    if branch == "online":
        return tiny.project(state["params"], view)
    z = tiny.project(state["target"]["params"], view)
    return tiny.predict(state["params"], z) if branch == "target_predictor" else z


def assigned(params, features):
    """Probabilities of CC's cluster head."""
    hidden = classify(params, "hidden", features)
    logits = classify(params, "clusters", hidden * (hidden.real > 0))
    return np.stack([losses.softmax(row) for row in logits])


def scored(params, projections, frozen=False):
    """Cosines of SwAV's rows with its prototypes, which are constants while they are frozen."""
    prototypes = params["prototypes"].real if frozen else params["prototypes"]
    return [losses.unit(z) @ prototypes.T for z in projections]


def positive_sampling(values, batch, step, key):
    """NCC's noise on the two projections; none while warming up."""
    sigma = 0.0 if step < values["warmup_steps"] else values["sigma"]

    def noise(key):
        keys = row_keys(key, batch["index"])
        return sigma * np.stack([jax.random.normal(k, (tiny.FEATURES,)) for k in keys])

    return [noise(key) for key in jax.random.split(key, 5)[3:]]


def objective(values, z, q, targets, state, step):
    """The loss of a method before NRCC and `term_of`."""
    name = values["name"]
    if name == "simclr":
        return losses.info_nce(z, values["temperature"], values["positive_in_denominator"])
    if name == "cc":
        return losses.info_nce(z, values["temperature"], True)
    if name in ("byol", "simsiam", "ncc"):
        return losses.byol(q, targets)
    if name == "barlow":
        return values["scale"] * losses.barlow(z, values["off_diagonal"])
    if name in ("moco", "pcl"):
        return losses.moco(z, targets, held(state["queue"]), values["temperature"])
    if name == "kernel_infonce":
        if values["queue"] is None:
            return losses.kernel_views(z, values)
        pairs = losses.crossed(z, targets)
        return sum(losses.kernel_queue(*pair, held(state["queue"]), values) for pair in pairs) / 2
    active = step >= values["warmup_steps"]
    terms = losses.cueco(q, targets, held(state["queue"]), state["clusters"], values)
    weights = [values["weights"][k] for k in ("instance", "centroid", "variance")]
    return sum(w * t for w, t in list(zip(weights, terms, strict=True))[: 3 if active else 1])


def term_of(values, params, rows, state, batch, step):
    """What CC, PCL and NCC add to the loss, their own or another method's, with its weight."""
    (views, z, targets), values = rows, values.get("term", values)
    if values["name"] not in ("cc", "pcl", "ncc"):
        return 0.0
    if values["name"] == "cc":
        found = [assigned(params, tiny.represent(params, x)) for x in views]
        return losses.clusters(found, values["cluster_temperature"])
    if step < values["warmup_steps"]:
        return 0.0
    if values["name"] == "pcl":
        return values["weight"] * losses.proto_nce(z, state["clusterings"], batch["index"])
    labels = state["labels"][batch["index"]]
    return values["weight"] * losses.proto_cl(z, targets, labels, values["temperature"])


def two_view_step(values, regularizer, state, batch, step, key):
    """Loss and next state of a method of two views; `regularizer`: NRCC's values, or None."""
    view_key, encoder_key, _, *more = jax.random.split(key, 5 if regularizer else 3)
    crops = values["small"]["count"] if values["name"] == "swav" else 0
    views = batch_views(view_key, batch, crops)
    params, predicts = state["params"], "predictor" in state["params"]
    density = state["target"]["params"] if "target" in state else params
    targets = [tiny.project(density, x) for x in views]
    noise = [0.0, 0.0]
    if values["name"] == "ncc":
        noise = positive_sampling(values, batch, step, encoder_key)
    if regularizer:
        third = third_view(state, views, targets, batch, more, regularizer)
        c = embedded(state, third, regularizer["branch"])

    def outputs(params):
        z = [tiny.project(params, x) for x in views]
        if values["name"] == "swav":
            return z[:2], scored(params, z, step < values["frozen_steps"])
        if not predicts:
            return z, None
        return z, [tiny.predict(params, x + e) for x, e in zip(z, noise, strict=True)]

    if values["name"] == "swav":
        scores = scored(params, targets[:2])
        constants = [losses.codes(x, values["epsilon"], values["iterations"]) for x in scores]

    def loss(params):
        z, q = outputs(params)
        if values["name"] == "swav":
            value = losses.swapped(q, constants, values["temperature"])
        else:
            value = objective(values, z, q, targets, state, step)
        value = value + term_of(values, params, (views, z, targets), state, batch, step)
        if regularizer:
            anchors = z if regularizer["anchor_layer"] == "projection" else q
            partners = targets if "target" in state or predicts else z
            term = losses.nrcc(anchors, partners, c, regularizer["temperature"])
            value = value + regularizer["weight"] * term
        return value

    z, q = outputs(params)
    after = {**state, "params": descended(params, loss)}
    if "prototypes" in params:
        after["params"]["prototypes"] = losses.unit(after["params"]["prototypes"])
    after["batch_stats"] = passed(
        state["batch_stats"], params, views[:2], z, q if predicts else None
    )
    if crops:  # all of them are one pass
        joined = np.concatenate(views[2:])
        rows = tiny.project(params, joined)
        after["batch_stats"] = passed(after["batch_stats"], params, [joined], [rows], None)
    if "target" in state:
        old, decays = state["target"], (values["decay"], values["final_decay"])
        after["target"] = {
            "params": averaged(old["params"], after["params"], step, *decays),
            "batch_stats": passed(old["batch_stats"], old["params"], views, targets, None),
        }
    keys = losses.unit(targets[1])
    if "queue" in state:
        after["queue"] = pushed(state["queue"], keys)
    if "clusters" in state and step >= values["warmup_steps"]:
        after["clusters"] = moved_clusters(values, state["clusters"], keys)
    return loss(params), after


def moved_clusters(values, old, keys):
    """CueCo's clusters after they have seen the keys."""
    own = [losses.nearest(x, old["centroids"]) for x in keys]
    decays = values["centroid_decay"], values["variance_decay"]
    new = reference.online_clusters(old["centroids"], old["variances"], keys, own, *decays)
    return dict(zip(("centroids", "variances"), new, strict=True))


def passed(means, params, views, z, q):
    """Running means after the training passes of view a, then view b."""
    for i, x in enumerate(views):
        means = {**means, "backbone": tiny.moved(means["backbone"], tiny.represent(params, x))}
        means["projector"] = tiny.moved(means["projector"], z[i])
    for rows in q or ():
        means = {**means, "predictor": tiny.moved(means["predictor"], rows)}
    return means


def refreshed(values, state, step, pixels):
    """The state with NCC's, PCL's or CueCo's k-means, where one is due before this step."""
    values = values.get("term", values)
    if values["name"] not in ("ncc", "pcl", "cueco"):
        return state
    since = step - values["warmup_steps"]
    if since < 0 or since % values["period"]:
        return state
    if values["name"] == "cueco":
        rows = held(state["queue"])
        centers = tiny.kmeans(rows, values["n_clusters"], metric="spherical").centers
        return {**state, "clusters": started_clusters(rows, centers)}
    target = state.get("target", state)
    _, rows = tiny.embed(target["params"], target["batch_stats"], tiny.clean(pixels))
    if values["name"] == "pcl":
        clusterings = [tiny.kmeans(rows, k, metric="spherical") for k in values["n_prototypes"]]
        return {
            **state,
            "clusterings": [concentrated(rows, x, values["temperature"]) for x in clusterings],
        }
    start = state["centers"] if since and values["warm_start"] else values["n_clusters"]
    result = tiny.kmeans(rows, start, metric="spherical")
    return {**state, "labels": result.labels, "centers": result.centers}


# --- methods with classifiers --------------------------------------------------------------------


def classify(params, head, features):
    """Logits of a linear head."""
    return features @ params["heads"][head]["kernel"] + params["heads"][head]["bias"][None]


def classifier_step(values, state, batch, step, key):
    """Loss and next state of the stages rotation and supervised."""
    if values["name"] == "rotation":
        views = views_by(tiny.view, key, batch)
        inputs = np.concatenate([np.stack([np.rot90(x, k) for x in views]) for k in range(4)])
        labels, head = np.repeat(np.arange(4), len(views)), "rotation"
    else:
        inputs, labels = views_by(tiny.view, key, batch["labeled"]), batch["labeled"]["label"]
        head = "labeled"

    def loss(params):
        return losses.cross_entropy(classify(params, head, tiny.represent(params, inputs)), labels)

    rows = tiny.represent(state["params"], inputs)
    means = {"backbone": tiny.moved(state["batch_stats"]["backbone"], rows)}
    after = {"params": descended(state["params"], loss), "batch_stats": means}
    return loss(state["params"]), after


def neighborhood(values, step, anchors, constants, entries, labeled, keys):
    """NCL (6)-(9), with (12)-(15) from its step on, over the unlabeled anchors."""
    total, k, alpha = 0.0, values["neighbors"], values["alpha"]
    for x, own, key in zip(anchors, constants, keys, strict=True):
        near = sorted(range(len(entries)), key=lambda i: -np.dot(x.real, entries[i]))[:k]
        positives = [(alpha if near else 1.0, own)]
        positives += [((1 - alpha) / len(near), entries[i]) for i in near]
        negatives = [y for i, y in enumerate(entries) if i not in near]
        if step >= values["hng_steps"] and near:
            variant = values["hng"]["variant"]
            if variant in ("removed", "replacing"):  # The neighbors are no negatives.
                easy = sorted(negatives, key=lambda row: np.dot(x.real, row))
                most = len(entries) - len(near)
                negatives = easy[min(values["hng"]["count"], most) :]
            if variant != "removed":
                negatives += losses.hard_negatives(x, entries, labeled, key, values["hng"])
        total += losses.soft_contrast(x, positives, negatives, values["temperature"])
    return total / len(anchors)


def same_class(values, anchors, constants, labels, entries, entry_labels):
    """NCL (10), (11) over the labeled anchors."""
    total = 0.0
    for x, own, label in zip(anchors, constants, labels, strict=True):
        same = [y for y, other in zip(entries, entry_labels, strict=True) if other == label]
        rest = [y for y, other in zip(entries, entry_labels, strict=True) if other != label]
        positives = [(1 / (1 + len(same)), y) for y in (own, *same)]
        total += losses.soft_contrast(x, positives, rest, values["temperature"])
    return total / len(anchors)


def ncl_step(values, state, batch, step, key):
    """Loss and next state of NCL's discovery stage (16)."""
    view_key, mix_key = jax.random.split(key)
    old, new = batch["labeled"], batch["unlabeled"]
    count = len(old["index"])
    rows = {name: np.concatenate([old[name], new[name]]) for name in ("index", "image")}
    views = batch_views(view_key, rows)
    labeled, unlabeled = list(held(state["labeled"])), list(held(state["unlabeled"]))
    entry_labels = state["labeled"]["rows"]["label"][: len(labeled)]
    keys, constants = (losses.unit(tiny.represent(state["params"], x)) for x in views)
    mix_keys = row_keys(mix_key, new["index"])
    progress = min(step / values["ramp_steps"], 1)
    omega = values["consistency_weight"] * math.exp(-5 * (1 - progress) ** 2)
    weights = values["weights"]

    def loss(params):
        z = [tiny.represent(params, x) for x in views]
        known = [[losses.softmax(r) for r in classify(params, "labeled", x)] for x in z]
        novel = [[losses.softmax(r) for r in classify(params, "novel", x)] for x in z]
        of_known = losses.squared_difference(known[0][:count], known[1][:count])
        of_novel = losses.squared_difference(novel[0][count:], novel[1][count:])
        logits, p, q = classify(params, "labeled", z[0]), novel[0][count:], novel[1][count:]
        total = weights["ce"] * losses.cross_entropy(logits[:count], old["label"])
        total += weights["bce"] * losses.pairwise_bce(z[0][count:], p, q, values["threshold"])
        total += weights["consistency"] * omega * (of_known + of_novel)
        if step < values["contrast_steps"]:
            return total
        anchors = losses.unit(z[0])
        total += weights["ncl"] * neighborhood(
            values, step, anchors[count:], constants[count:], unlabeled, labeled, mix_keys
        )
        return total + weights["scl"] * same_class(
            values, anchors[:count], constants[:count], old["label"], labeled, entry_labels
        )

    means = state["batch_stats"]
    for x in views:
        means = {"backbone": tiny.moved(means["backbone"], tiny.represent(state["params"], x))}
    return loss(state["params"]), {
        "params": descended(state["params"], loss), "batch_stats": means,
        "labeled": pushed(state["labeled"], keys[:count], old["label"]),
        "unlabeled": pushed(state["unlabeled"], keys[count:]),
        "pseudo_labels": state["pseudo_labels"], "centers": state["centers"],
    }  # fmt: skip
