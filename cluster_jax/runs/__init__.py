"""Runs: from what is there now to clusters, a page and tables, and from one state to the next.

A first run is an update of an empty run. Whoever changes `update` needs these ideas:

1. **Run** (`run`): the record of one state of n rows. It is never changed: each step returns a new
   one. Rows that are read in blocks have no update, and only a sample of them, `Run.shown`, is
   described (distances, map, page).
2. **State** (`run.Run.write`): the file `run-NUMBER.npz`. The highest number counts, and an undo
   removes it. What changes no row and no decision (`update._unchanged`, `Run.pages`) is written
   under the same number.
3. **Row**: a photo or row is the same one in all states by `Run.columns["id"]`, or by the id that
   the user's table gives it (`changes.rows_now`). Its "row" is its row in the store: another one
   with other features.
4. **Store** (`store`): features and thumbnails, in one file for each state that has new ones. It
   only grows. New photos are in it before they are clustered, new rows after it. `Run.files` knows
   the files by a fingerprint, and all others are removed by the next state.
5. **Workdir** (`workdir`): the folder with these files. Whoever writes holds its lock. What a kill
   leaves is used by the next command (`photos.kept_in`, `evaluation.stages`).
6. **Now** (`next_state.Now`, made by `photos.now` or `rows.now`): the photos or rows of the next
   state, old ones first, and the order in which the tables have them. What cannot be read today is
   not gone (`sources`, `Run.away`). Names of photos are relative to the folder that holds all
   folders of the run; `changes.paths` has them as absolute paths.
7. **Comparison** (`match`): which of them the run has (known), has with other features (changed) or
   has not (new). Rows that leave, and that a person has decided about or that are in a cluster of
   `Run.held`, are kept in `Run.gone`, and regain their cluster when they return.
8. **Clustering** (`evaluation.clusters`): the clusters that are found in all rows of now. Of known
   copies (`report.duplicates`, `Run.copies`) the best one is clustered, and the others follow it.
9. **Numbers** (`next_state`, `clustering.stable_ids`): which old cluster each of them is: "kept" in
   an update, "refit", or "other" for another number of clusters. No number is used twice. The
   columns "since" and "apart" say when a row came, and for how long it has been found elsewhere,
   and "earlier" in which cluster it was before another number was asked for.
10. **Decisions** (`corrections`, `carry`): what a person has named, moved or merged. They are part
    of the state ("decided" of a row; `named`, `shaped` and `whole` of clusters, which `Run.held`
    has together). They end only with their rows, or with a cluster that another number of clusters
    ends. `Run.state` is the digest by which a file says of which page it is, and `carry` is the
    three-way merge of that page, the file and the present state.
11. **Measured** (`measured`): distances, probabilities, outliers and tree (`described`), scores and
    verdict (`measured`) of the clusters that are shown. Results are outputs.
12. **Publish** (`page`): writes the state, then the tables and the page, and last `results.json`,
    which says of which state they are.

An array of indices counts one of five things: rows of the store ("row" of `Run.columns`), rows of
the run (0 to n - 1), places on the page (0 to m - 1, of the rows that are described), photos or
rows of now (`Comparison.known` and `new`), or leaves of the tree, by whose labels `Run.placer`
places new rows. `Run.number` counts the states, and `Run.updates` the updates among them.

A new column of `run.COLUMNS` also needs its value for new rows, in `next_state.with_rows`; a new
attribute for each row its place in `run._BY_ROW`, `Comparison.joined` and `match._with_gone`; and
both another `workdir.FORMAT`.

An update of photos, of rows or of the number of clusters is `update._updated` or its last step,
`update.next_of_run`, in a locked workdir. Its steps are the rows of now, `next_state`, `measured`
and `page.publish_next`; the second and third are `rows.clustered`, and for images
`finish.next_of_images`, in a first run as well. A first run of photos is the same step, of
`photos.first`. `trainings` makes the features of a training, of which `embedding_files` says what
is missing, and `begin` leads to all of these. `claims` checks which run a folder is of, `states`
makes the states of a person, and `place` puts new rows into the clusters. `export`, `changes` and
`provenance` only tell of a state.
"""
