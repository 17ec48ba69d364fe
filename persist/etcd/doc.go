// Package etcd keeps records in an etcd cluster. It is tested with version 3.7. Several processes on
// several hosts share it. It loses nothing that was acknowledged as long as a majority of the members
// keeps its disks, and it works on while a majority is up.
//
// # Layout
//
// All keys start with Config.Prefix. Names contain no U+0000, which separates them. Times are 8 bytes
// that sort as the times do.
//
//	schema               the version of this layout
//	clock                the store's time
//	floor                the version floor
//	m 0 kind 0 id        the record without its document, as JSON
//	c 0 kind 0 id        the document
//	l 0 kind 0 label 0 id  the records that have a label
//	d 0 kind 0 due id    the records that have a due time
//	e 0 kind 0 expires id  the records that have an expiry
//	t 0 kind 0 id        the tombstones
//	w 0 kind 0 id        the process whose turn it is to write a busy record
//
// # Commits
//
// A commit is one transaction of etcd. It compares the revision at which each record was last
// written, so nothing that [persist.Apply] was given can have changed. If a comparison fails, the
// same transaction returns the current records, and Apply judges again. Records that this process
// knows are not read before they are written.
//
// # Clock
//
// The key clock holds the store's time. One of the processes moves it every Config.Tick, by the time
// that has passed on its monotonic clock; if it stops, another one does. Every read returns the clock
// of its revision with the records, and every commit compares that the clock has not passed the
// moment at which a lease or an expiry would be judged otherwise. So all processes judge by one
// clock, whatever the clocks of their hosts say.
package etcd
