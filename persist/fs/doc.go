// Package fs keeps records in plain files, one for each document, in a directory that several
// processes may share: for state that people want to read, compare and repair with the tools that
// they have.
//
// An acknowledged commit is durable: new files are written and synced, put in the places of
// the old ones, and the folders synced, before Commit returns. A commit of several documents is all
// or nothing, whatever dies in the middle of it: a journal says what remains to be done, and
// whoever next comes to one of the documents does it first. No reader sees half of a commit, or
// a commit that a power failure could still undo.
//
// # Costs
//
// There is no index. Load and Commit read the files that they are asked for. List, Take and Purge
// read the names of all files of a kind, and then the files in the order of their ids until the page
// is full; those that do not match (by label, age, lease or expiry) are read as well. A query
// of what is due reads every file of the kind. A list holds up commits of several documents while
// it reads, and whoever reads names holds up commits of one document while that takes. Some
// thousands of documents of a kind are fine; for more use a database.
//
// A store keeps up to 128 files open, those of the locks that it has used, so that they need not be opened for every commit.
//
// On Linux a document that is written to again and again has two files, the document's own and one in tmp/ with what it was before, into which the next
// commit is written: to write over a file is quicker than to make one and free another. There are 256 of those in tmp/ at most for each process, none longer than
// 64 KiB, and none of a document that was deleted; Close removes them. What somebody has open, with whatever tool, or has linked elsewhere, is not written to.
//
// Watch costs nothing while nothing changes on Linux: the kernel tells what is renamed into the
// folders of records/ (by inotify, with a watch for each kind and each id that is too long for one
// name). Where it does not, or has no watches left, tmp/ is looked at every 50 ms, and a change by
// another store may be of any document then. That needs a file system that notes the times of
// modifications to within 50 ms, as those below do. Versions reads the files that it is asked for.
//
// # Where it works
//
// The directory must be on one local file system that renames atomically and knows flock: ext4,
// XFS, Btrfs, ZFS, APFS and the like. NFS and other network file systems are not supported. On
// Windows folders cannot be synced: what is said here about the death of processes holds there, but
// a power failure may lose the last commits, or half of one. Ages, leases and expiry are judged
// by the clock of the host.
//
// # Format
//
// This is format 1. A directory looks like this:
//
//	pawl.json                                what makes it a store: {"format": 1}
//	floor.json                               the version floor, once tombstones were purged
//	records/session/ann.json                 the document "ann" of the kind "session"
//	records/session/%41nn%40example.json     the document "Ann@example"
//	journal/                                 commits of several documents that are being made
//	tmp/                                     files that are being written, and some that were replaced
//	locks/                                   empty files, not to be removed while the store is open
//
// In the names of kinds and ids, lower case letters, digits, - and _ stay as they are, and every
// other byte is written as % and two hexadecimal digits; so is the first letter of a name that
// Windows reserves, such as con. An encoded name longer than 128 bytes is cut into pieces of at most
// that length. All pieces but the last are names of folders, each in the one before it, and
// end with a plus sign.
//
// Every file but pawl.json is a JSON object with three members:
//
//	{
//		"format": 1,
//		"checksum": "21807c00...",
//		"content": {
//			"kind": "session",
//			"id": "ann",
//			"version": 3,
//			"born": 1,
//			"doc": {
//				"title": "Hi"
//			},
//			"updated": "2026-01-02T03:04:05.678901Z",
//			"commits": [
//				"writer.1"
//			]
//		}
//	}
//
// The content of a document's file is its [persist.Record]. The checksum is the SHA-256 of the
// content without the white space between its tokens, in hexadecimal digits.
//
// A document's file that its owner may not write to has been put in its place, and may not be durable yet. Whoever reads it waits for
// its writer, or writes it again if that has gone.
//
// The content of a journal lists the writes of one commit: for each the kind, the id and the
// version, the file in tmp/ that is to become the document's file (temp), its checksum (makes), and
// the checksum of the file that it replaces (replaces). The name of a journal
// tells which locks its documents have: the number
// of a document's lock is the first byte of the SHA-256 of its kind, a zero byte and its id.
//
// # Repair
//
// A file that is not as it was written gives *[DamagedError] to those who need it: to Load and Commit
// of its document, and to List, which does not leave out what it cannot read. Take and Purge pass
// over it.
//
// To repair or change a file, edit it, remove its checksum, and put it in its place by renaming,
// best while no process has the store open; a file without a checksum is taken as it is. To
// remove a document's file is to forget that the document ever was, so that its versions may be used
// again. To remove a journal is to abandon what it says, and may leave its commit half done.
//
// A file that its owner may not write to is one whose commit is not known to be durable: leave the permissions of files as they are,
// and do not use a file system that has none.
//
// To copy a store, copy its directory while no process writes to it.
package fs
