// Package commit takes one commit to its verdict.
//
// A store answers a commit with success, a conflict or a lost lease, or it fails. A failure that
// does not promise that nothing was written leaves the commit in doubt. [Send] then sends it again
// until the store accepts it, or until the records that refuse it tell what became of it:
//
//	send ─► answer ─┬─ accepted ─────────► Landed
//	  ▲             ├─ conflict ─────────► Lost; in doubt: Landed, Lost or Unknown, by the evidence
//	  │             ├─ lease not live ───► Fenced; in doubt: its versions are tested first
//	  │             ├─ own code failed ──► RolledBack
//	  │             ├─ nothing written ──► Unavailable, or Rejected for good; in doubt: as below
//	  └── pause ◄───┴─ anything else: in doubt
//
// A commit in doubt is frozen: its id, its writes and its expected versions stay as they were first
// sent. An earlier sending may still be executing, so reading the old version proves nothing. If the
// content changed, the id in a record would no longer tell which content landed.
//
// Races, and what decides each:
//   - two sendings of one commit: both expect the same versions, so the store accepts one at most.
//   - another writer commits on top of a sending that landed: the record keeps the ids of recent
//     commits, and the id is found there.
//   - later commits push the id out of the record: the evidence is gone, the verdict is Unknown.
//   - the record is purged and made anew between two sendings: Record.Born and the store's version
//     floor tell, otherwise the verdict is Unknown.
//   - the lease runs out between two sendings: the versions that the commit expects are tested
//     once more. An earlier sending that landed has moved them, and no later one can land.
//
// The package knows neither documents nor callers, and none of the errors that callers get.
package commit
