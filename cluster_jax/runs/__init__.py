"""Runs: from what is there now to clusters, a page and tables, and from one state to the next.

A first run is an update of an empty run. Whoever changes `update` needs these twelve ideas:

1. **Run** (`run`): the record of one state. It is never changed: each step returns a new one.
2. **State** (`run.Run.write`): the file `run-NUMBER.npz`. The highest number counts, and an undo
   removes it.
3. **Store** (`store`): features and thumbnails, which only grow. A run says which rows it has, by
   `Run.columns["row"]`.
4. **Workdir** (`workdir`): the folder with these files. Whoever writes holds its lock.
5. **Now** (`photos.now`, `rows.now`): the photos or rows of the next state. What cannot be read
   today is not gone (`sources`).
6. **Comparison** (`match`): which of them the run has (known), has with other features (changed) or
   has not (new). What leaves and was decided is kept in `Run.gone`, and comes back with its rows.
7. **Clustering** (`evaluation.clusters`): the clusters that are found in all rows of now.
8. **Numbers** (`next_state`, `clustering.stable_ids`): which old cluster each of them is: "kept" in
   an update, "refit", or "other" for another number of clusters. No number is used twice.
9. **Decisions** (`corrections`, `carry`): what a person has named, moved or merged. They are part
   of the state, and no fit changes them.
10. **Copies** (`report.duplicates`): of equal photos one counts, and a new one follows a decided
    one.
11. **Measured** (`measured`): distances, probabilities, outliers, tree, scores and verdict, which
    one function computes from the clusters that are shown. Results are outputs, which no logic
    reads.
12. **Publish** (`page`): writes the state, then the tables, the results and the page.

An update of photos, of rows or of the number of clusters is `update._updated` or its last step,
`update._next`. `begin`, `photos`, `rows` and `trainings` make the features of a first run, of which
`embedding_files` says what is missing, `claims` checks which run a folder is of, `states` makes the
states of a person, and `place` puts new rows into the clusters. `export`, `changes` and
`provenance` only tell of a state.
"""
