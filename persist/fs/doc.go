// Package fs keeps records in plain files, one for each document, in a directory that several
// processes may share. It is for state that people want to read, compare and repair with their own
// tools.
//
// An acknowledged commit is durable: before Commit returns, new files are written and synced,
// renamed to the places of the old ones, and the folders are synced. A commit of several documents
// is all or nothing, whichever process dies in the middle of it: a journal lists its writes, and
// the next process that comes to one of the documents completes it first. No reader sees half of a
// commit, or a commit that a power failure can still undo.
//
// # Costs
//
// There is no index. Load and Commit read the files of their documents. List, Take and Purge read
// the names of all files of a kind, and then the files in the order of their ids until the page is
// full, also those that do not match by label, age, lease or expiry. A query for due documents
// reads every file of the kind. A list delays commits of several documents while it reads, and
// commits of one document while it reads names. Some thousands of documents of a kind are fine; for
// more use a database.
//
// Watch costs nothing on Linux while nothing changes: the kernel reports renames into the folders
// of records/ (by inotify, with a watch for each kind and each id that is too long for one name).
// On other systems, and where the kernel has no watches left, the store looks at tmp/ every 50 ms.
// A hint of another store's change does not name the document then. That needs a file system that
// records times of modification to within 50 ms, as those below do.
//
// The store keeps no logs of records itself. [persist.Logs] keeps them as documents in it, of the
// kinds pawl.log, pawl.log.order, pawl.log.state and pawl.log.next: two files for each entry. An
// append syncs them and the file of a counter, which all logs share. To read a log is to list the
// entries of all logs, as above.
//
// # Where it works
//
// The directory must be on one local file system that renames atomically and supports flock: ext4,
// XFS, Btrfs, ZFS, APFS and the like. NFS and other network file systems are not supported. On
// Windows folders cannot be synced: a power failure may lose the last commits, or half of one, but
// the death of a process does not. Ages, leases and expiry are judged by the clock of the host.
//
// # Format
//
// This is format 1. A directory looks like this:
//
//	pawl.json                                makes it a store: {"format": 1}
//	floor.json                               the version floor, after tombstones were purged
//	records/session/ann.json                 the document "ann" of the kind "session"
//	records/session/%41nn%40example.json     the document "Ann@example"
//	journal/                                 commits of several documents that are under way
//	tmp/                                     files that are being written
//	locks/                                   empty files; do not remove them while the store is open
//
// In the names of kinds and ids, lower case letters, digits, - and _ stay as they are. Every other
// byte is written as % and two hexadecimal digits; so is the first letter of a name that Windows
// reserves, such as con. An encoded name longer than 128 bytes is cut into pieces of at most that
// length. All pieces but the last are names of folders, each in the one before it, and end with a
// plus sign.
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
// A document's file that its owner may not write to is tentative: its commit may not be durable
// yet. A reader waits for the writer of such a file, and writes the file again if the writer is
// gone.
//
// The content of a journal lists the writes of one commit: for each the kind, the id and the
// version, the file in tmp/ that is to become the document's file (temp), its checksum (makes), and
// the checksum of the file that it replaces (replaces). The name of a journal tells which locks its
// documents have: the number of a document's lock is the first byte of the SHA-256 of its kind, a
// zero byte and its id.
//
// # Repair
//
// A file whose content is not what the store wrote gives *[DamagedError] to the calls that need it:
// to Load and Commit of its document, and to List, which does not skip it. Take and Purge skip it.
//
// To repair or change a file, edit it, remove its checksum, and rename it into place, best while no
// process has the store open. A file without a checksum is accepted as it is. To remove a
// document's file is to forget that the document ever existed, so that its versions may be used
// again. To remove a journal is to abandon its commit, which may stay half done.
//
// Leave the permissions of files as they are, and do not use a file system without permissions: a
// file that its owner may not write to counts as one whose commit may not be durable.
//
// To copy a store, copy its directory while no process writes to it.
package fs
