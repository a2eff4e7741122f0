"""Runs: from what is there now to clusters, a page and tables, and from one state to the next.

A first run is an update of an empty run. Whoever changes `update` needs these ideas:

1. **Run** (`run`): the record of one state of n rows. It is never changed: each step returns a new
   one. Rows that are read in blocks have no update, and only a sample of them, `Run.shown`, is
   described (distances, map, page).
2. **State** (`run.Run.write`): the file `run-NUMBER.npz`. The highest number counts, and an undo
   removes it; some earlier ones are kept. What changes no row, name or cluster is written under
   the same number: another order of rows, what is away, facts about files (`update._unchanged`),
   and a file that only says what others have said (`states.correct`).
3. **Row**: a photo or row is the same one in all states by `Run.columns["id"]`, or by the id that
   the user's table gives it (`changes.rows_now`). Its "row" is its row in the store: another one
   with other features. Its facts say what is in its file (`data.images.FACTS`).
4. **Store** (`store`): features and thumbnails, in one file for each state that has new ones. It
   only grows. New photos are in it before they are clustered, new rows after it. `Run.files` knows
   the files by a fingerprint, and all others are removed by the next state.
5. **Workdir** (`workdir`): the folder with these files. Whoever writes holds its lock. What a kill
   leaves of an embedding or of an evaluation is used by the next command (`photos.kept_in`,
   `evaluation.stages`).
6. **Present** (`sources`): the photos that are there and can be read today. What cannot be read,
   and what is in a folder that is missing, is away, and not gone (`Run.away`). Names of photos are
   relative to the folder that holds all folders of the run; `changes.paths` has them as absolute
   paths.
7. **Comparison** (`match`): which rows of the run are present (known), with other features
   (changed) or not, and which present ones it lacks (new). A photo is known by its pixels and
   path, or else by its pixels alone; a row by its id or its content. Rows that leave, and that a
   person has decided about or picked of their copies, or that are in a cluster of `Run.held`, are
   in `Run.departed`; if they return, they are the same rows, that come in this update. All others
   that return are new.
8. **Now** (`next_state.Now`): the rows of the next state, which are those of the run that are known
   or away, then those that have returned, then new ones; and their order in the tables.
9. **Clusters and their numbers** (`evaluation.clusters`, `next_state`, `clustering.stable_ids`):
   all rows of now are clustered, of known copies (`report.duplicates`, `Run.copies`) the best one
   alone. In an update ("kept") rows keep their clusters, and what is found decides about new rows
   and about births, splits and merges; else the clusters that are found get the numbers of those
   that they are most like ("refit", or "other" for another number of clusters). No number is used
   twice. The columns "since" and "apart" say in which update a row came and for how many it has
   been found elsewhere, and "earlier" in which cluster it was before another number was asked for.
10. **Decisions** (`corrections`, `decisions`, `carry`): what people have named, moved, merged or
    picked. A state keeps what each file says (`Run.decisions`), by the numbers of rows and
    clusters. Its clusters are those that were found ("found") with all files on top, page by page:
    `named`, `shaped` and `whole` (`Run.held` has these together), "decided" of a row and "kept" of
    its copies are made of these two, by `decisions.folded`. So a later file of a page and browser
    takes the place of the one before. An update and a refit leave decided rows, and those of held
    clusters, where they are. Another number of clusters leaves only decided rows whose cluster is
    still there, and ends all that was said of other clusters, but a name comes back with its
    number. `Run.state` is the digest by which a file says of which page it is, and `carry` refuses
    a file that contradicts what was decided since its page was written.
11. **Measured** (`measured`): distances, probabilities, outliers and tree (`described`), scores and
    verdict (`measured`) of the clusters that are shown. Nothing is decided by them.
12. **Publish** (`page`): writes the state, then the tables and the page, and last `results.json`,
    which says of which state they are.

An array of indices counts one of these: rows of the store ("row" of `Run.columns`); rows of the run
(0 to n - 1), in `Comparison` with those that have returned after them; places on the page (0 to
m - 1, of the rows that are described); present photos or rows (what `Comparison.known` and `new`
have); or leaves of the tree, by whose labels `Run.placer` places new rows. `Run.number` counts the
states, and `Run.updates` the updates among them: there is no other clock.

A new column of `run.COLUMNS` also needs its value for new rows, in `next_state.with_rows`; a new
attribute for each row its place in `run._BY_ROW` and, if it is not made anew with the clusters, in
`Comparison.joined`, and `_with_returned` and `_with_departed` of `match`; and both another
`workdir.FORMAT`, by which runs of the one before are refused.

An update of photos, of rows or of the number of clusters is `update._updated` or its last step,
`update.next_of_run`, in a locked workdir. Its steps are the rows of now, `next_state`, `measured`
and `page.publish_next`; the second and third are `rows.clustered`, and for images
`finish.next_of_images`. A first run is the same step, of `photos.first` or `rows.first`.
`trainings` makes the features of a training, of which `embedding_files` says what is missing, and
then its next state. `begin` leads to all of these. `claims` checks which run a folder is of; a run
of images whose `Run.asked` is not what is asked for now is clustered again. `states` makes the
states of a person, and `place` puts new rows into the clusters. `export`, `changes` and
`provenance` only tell of a state.
"""
