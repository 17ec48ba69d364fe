package etcd

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pawl-go/pawl/persist"
)

// entry is a record at a revision. It has no document unless that was read too.
type entry struct {
	record persist.Record
	mod    int64 // the revision of the last write; 0: the record is absent
}

// encode returns the value of a record's key: the record without its document.
func encode(r persist.Record) (string, error) {
	r.Doc = nil
	text, err := json.Marshal(r)
	return string(text), err
}

// decode returns the record in the value of its key.
func decode(kv *mvccpb.KeyValue) (entry, error) {
	e := entry{mod: kv.ModRevision}
	if err := json.Unmarshal(kv.Value, &e.record); err != nil {
		return entry{}, fmt.Errorf("etcd: the record at %q is damaged: %w", kv.Key, err)
	}
	return e, nil
}

// floor is the version floor at a revision.
type floor struct {
	version uint64
	mod     int64 // 0: no tombstone was ever purged
}

func parseFloor(kvs []*mvccpb.KeyValue) (floor, error) {
	if len(kvs) == 0 {
		return floor{}, nil
	}
	version, err := strconv.ParseUint(string(kvs[0].Value), 10, 64)
	if err != nil {
		return floor{}, fmt.Errorf("etcd: the version floor is damaged: %w", err)
	}
	return floor{version: version, mod: kvs[0].ModRevision}, nil
}

func (f floor) put(s *Store) clientv3.Op {
	return clientv3.OpPut(s.keys.floor(), strconv.FormatUint(f.version, 10))
}

// errRemoved means that the keys of the store were removed while it was open.
var errRemoved = errors.New("etcd: the clock is missing: the keys of the store were removed")

// view holds records as they were at one revision.
type view struct {
	entries map[persist.Key]entry
	floor   floor
	clock   time.Time // the store's time at that revision, or at an earlier one if not fresh
	turn    int64     // the revision of the turn of the only key; 0: none
	fresh   bool      // it was read since the call began
}

// now returns the time by which the view is judged. A restored record may be ahead of the clock.
func (v *view) now() time.Time {
	now := v.clock
	for _, e := range v.entries {
		if e.record.Updated.After(now) {
			now = e.record.Updated
		}
	}
	return now
}

// current returns the records for persist.Apply.
func (v *view) current() map[persist.Key]persist.Record {
	current := make(map[persist.Key]persist.Record, len(v.entries))
	for key, e := range v.entries {
		current[key] = e.record
	}
	return current
}

// turning returns the first moment after now at which a lease or an expiry of the records ends, and
// the limit if that comes first.
func (v *view) turning(now, limit time.Time) time.Time {
	for _, e := range v.entries {
		for _, t := range []time.Time{e.record.Expires, e.record.Lease.Until} {
			if t.After(now) && t.Before(limit) {
				limit = t
			}
		}
	}
	return limit
}

// reindex returns the operations on the indexes for a record that changes from before to after.
func (s *Store) reindex(before, after persist.Record) (ops []clientv3.Op) {
	old, next := s.keys.indexes(before), s.keys.indexes(after)
	for _, key := range old {
		if !slices.Contains(next, key) {
			ops = append(ops, clientv3.OpDelete(key))
		}
	}
	for _, key := range next {
		if !slices.Contains(old, key) {
			ops = append(ops, clientv3.OpPut(key, ""))
		}
	}
	return ops
}

// mostKnown is the number of records that a store remembers.
const mostKnown = 16384

// cache remembers records without their documents, as this process has read or written them last.
// Every use is confirmed by a comparison of the revision.
type cache struct {
	mu      sync.Mutex // protects the fields below
	entries map[persist.Key]entry
	floor   floor
	turns   map[persist.Key]int64 // the turns of this process, by revision
}

// learn remembers the records of v.
func (c *cache) learn(v *view) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v.floor.mod > c.floor.mod {
		c.floor = v.floor
	}
	for key, e := range v.entries {
		known, ok := c.entries[key]
		switch {
		case ok && known.mod >= e.mod && e.mod != 0:
			continue
		case e.mod == 0:
			delete(c.entries, key)
			continue
		}
		for other := range c.entries {
			if len(c.entries) < mostKnown {
				break
			}
			delete(c.entries, other)
		}
		e.record.Doc = nil
		c.entries[key] = e
	}
}

// forget drops keys, whose records may have changed.
func (c *cache) forget(keys []persist.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range keys {
		delete(c.entries, key)
		delete(c.turns, key)
	}
}

// recall returns a view of keys without reading, and false if not enough is known. An unknown key is
// taken for absent if the commit expects that.
func (c *cache) recall(commit persist.Commit, keys []persist.Key) (view, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := view{entries: make(map[persist.Key]entry, len(keys)), floor: c.floor}
	for _, key := range keys {
		e, ok := c.entries[key]
		if !ok && !creates(commit, key) {
			return view{}, false
		}
		if !ok {
			e.record = persist.Record{Key: key, Version: c.floor.version}
		}
		v.entries[key] = e
	}
	return v, true
}

// creates reports whether c creates the absent key.
func creates(c persist.Commit, key persist.Key) bool {
	return slices.ContainsFunc(c.Writes, func(w persist.Write) bool { return w.Key == key && w.Expected == 0 })
}
