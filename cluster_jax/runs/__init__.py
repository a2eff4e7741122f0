"""Runs: from what is there now to clusters, a page and tables, and from one state to the next.

A first run is an update of an empty run. Whoever changes `update` needs these twelve ideas:

1. **Run** (`run`): the record of one state. It is never changed: each step returns a new one. Of
   n rows all are described (distances, map, page) but where `Run.shown` names m of them.
2. **State** (`run.Run.write`): the file `run-NUMBER.npz`. The highest number counts, and an undo
   removes it.
3. **Store** (`store`): features, thumbnails and facts about files (`data.images.FACTS`, by whose
   digests a photo is known), which only grow. A run says which rows it has, by
   `Run.columns["row"]`.
4. **Workdir** (`workdir`): the folder with these files. Whoever writes holds its lock.
5. **Now** (`next_state.Now`, made by `photos.now` or `rows.now`): the photos or rows of the next
   state. What cannot be read today is not gone (`sources`, `Run.away`). Names of photos are
   relative to `data.dir` of then; `changes.paths` has them as absolute paths.
6. **Comparison** (`match`): which of them the run has (known), has with other features (changed) or
   has not (new). What leaves and was decided is kept in `Run.gone`, and comes back with its rows.
7. **Clustering** (`evaluation.clusters`): the clusters that are found in all rows of now.
8. **Numbers** (`next_state`, `clustering.stable_ids`): which old cluster each of them is: "kept" in
   an update, "refit", or "other" for another number of clusters. No number is used twice. The
   columns "since" and "apart" say when a row came, and for how long it has been found elsewhere.
9. **Decisions** (`corrections`, `carry`): what a person has named, moved or merged. They are part
   of the state ("decided" of a row; `named`, `shaped` and `whole` of clusters, which `Run.held` has
   together), and no fit changes them. `Run.state` is the digest by which a file says of which page
   it is, and `carry` is the three-way merge of that page, the file and the present state.
10. **Copies** (`report.duplicates`): of equal photos one counts, and a new one follows a decided
    one. `Run.copies` has those that are found, and "kept" which of them a person keeps.
11. **Measured** (`measured`): distances, probabilities, outliers, tree, scores and verdict, which
    one function computes from the clusters that are shown. Results are outputs, which no logic
    reads.
12. **Publish** (`page`): writes the state, then the tables, the results and the page.

An array of indices counts one of five things: rows of the store ("row" of `Run.columns`), rows of
the run (0 to n - 1, old ones first, then new ones), places on the page (0 to m - 1, of the rows
that are described), photos or rows of now (`Comparison.known` and `new`), or leaves of the tree.
`Run.number` counts the states, and `Run.updates` the updates among them.

A new column of `run.COLUMNS` also needs its value for new rows, in `next_state.with_rows`, and
another `workdir.FORMAT`, as any new field of `Run` does.

An update of photos, of rows or of the number of clusters is `update._updated` or its last step,
`update.next_of_run`, in the locked workdir of `update._opened`. Its steps are the rows of now,
`next_state`, `measured` and `page.publish_next`; the second and third are `rows.clustered`, and for
images `finish.next_of_images`, in a first run as well. A first run of photos is the same step, of
`photos.first`. `trainings` makes the features of a training, of which `embedding_files` says what
is missing, and `begin` leads to all of these. `claims` checks which run a folder is of, `states`
makes the states of a person, and `place` puts new rows into the clusters. `export`, `changes` and
`provenance` only tell of a state.
"""
