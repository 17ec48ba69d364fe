package etcd

import (
	"context"
	"encoding/base64"
	"errors"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/adapter/cursor"
)

// List returns one page of the records that match q, all read at one revision. Labels, due times,
// expiries and tombstones have an index. Etcd sorts a page that goes backwards after it has read the
// whole range. List returns persist.ErrClosed after Close, ctx's error, an error for an unknown
// q.After, and an error that wraps persist.ErrUnavailable if no majority answers within
// Config.Timeout.
func (s *Store) List(ctx context.Context, q persist.Query) (persist.Page, error) {
	if err := s.enter(ctx); err != nil {
		return persist.Page{}, err
	}
	defer s.calls.Done()
	size := q.PageSize()
	found, err := s.search(ctx, q, size+1, true)
	if err != nil {
		return persist.Page{}, explain(err)
	}
	var page persist.Page
	if len(found.entries) > size {
		found.entries = found.entries[:size]
		page.Next = base64.RawURLEncoding.EncodeToString([]byte(found.positions[size-1]))
	}
	for _, e := range found.entries {
		e.record.Now = found.now
		if e.record.Updated.After(found.now) {
			e.record.Now = e.record.Updated
		}
		page.Records = append(page.Records, e.record)
	}
	return page, nil
}

// result is what a search found at one revision.
type result struct {
	entries   []entry
	positions []string // of the entries in the order of the search
	now       time.Time
}

// search returns up to most records that match q, in the order of List, with documents if whole. It
// starts again if the revision was compacted meanwhile, and tries for Config.Timeout.
func (s *Store) search(ctx context.Context, q persist.Query, most int, whole bool) (found result, err error) {
	err = s.patiently(ctx, func() (err error) {
		found, err = s.searchOnce(ctx, q, most, whole)
		for errors.Is(err, rpctypes.ErrCompacted) && ctx.Err() == nil {
			found, err = s.searchOnce(ctx, q, most, whole)
		}
		return err
	})
	return found, err
}

func (s *Store) searchOnce(ctx context.Context, q persist.Query, most int, whole bool) (result, error) {
	answer, err := s.get(ctx, s.keys.clock())
	if err != nil {
		return result{}, err
	}
	now, err := s.clock.heardIn(answer.Kvs)
	if err != nil {
		return result{}, err
	}
	scan := scan{store: s, revision: answer.Header.Revision, reverse: q.Reverse, batch: int64(min(max(most, 16), 500))}
	if err := scan.plan(q, now); err != nil {
		return result{}, err
	}
	found := result{now: now}
	for len(found.entries) < most {
		candidates, err := scan.next(ctx, most-len(found.entries))
		if err != nil {
			return result{}, err
		}
		if len(candidates) == 0 {
			break
		}
		for _, c := range candidates {
			if q.Match(c.record, laterOf(now, c.record.Updated)) {
				found.entries = append(found.entries, c.entry)
				found.positions = append(found.positions, c.position)
			}
		}
	}
	if !whole {
		return found, nil
	}
	return found, s.addDocuments(ctx, found.entries, scan.revision)
}

func laterOf(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// scan reads a part of the keyspace in order, at one revision.
type scan struct {
	store    *Store
	revision int64
	reverse  bool
	batch    int64 // keys per request
	space    string
	sources  []*source // merged by position
}

// source is a range of keys. A position is what follows the base of a key.
type source struct {
	base      string
	from, end string             // the keys that were not read yet
	read      []*mvccpb.KeyValue // and not taken yet
}

// candidate is a record that was found in an index.
type candidate struct {
	entry
	position string
}

// fewLabels is the number of labels up to which their index is used.
const fewLabels = 16

// plan chooses the index for q, and the ranges in it.
func (c *scan) plan(q persist.Query, now time.Time) error {
	p, kind := c.store.keys, []string{}
	if q.Kind != "" {
		kind = []string{q.Kind}
	}
	add := func(space string, parts ...string) *source {
		base := p.of(space, append(parts, "")...)
		c.space = space
		src := &source{base: base, from: base, end: clientv3.GetPrefixRangeEnd(base)}
		c.sources = append(c.sources, src)
		return src
	}
	byID := true // positions are ids
	switch {
	case q.Deleted:
		add(spaceTombstone, kind...)
	case q.Expired:
		byID = false
		add(spaceExpires, kind...).until(now, q.Kind)
	case q.Due:
		byID = false
		src := add(spaceDue, kind...)
		if src.until(now.Add(q.DueIn), q.Kind); q.DueIn > 0 && q.Kind != "" {
			src.from = src.base + sortable(now.Add(time.Microsecond))
		}
	case q.Kind != "" && len(q.Labels) > 0 && len(q.Labels) <= fewLabels && !slices.Contains(q.Labels, ""):
		for _, label := range slices.Compact(slices.Sorted(slices.Values(q.Labels))) {
			if !strings.Contains(label, "\x00") {
				add(spaceLabel, q.Kind, label)
			}
		}
	default:
		add(spaceRecord, kind...)
	}
	for _, src := range c.sources {
		if byID && q.Kind != "" {
			src.limit(q)
		}
		if err := src.after(q); err != nil {
			return err
		}
	}
	return nil
}

// until ends the range of an index of times after t, if it is that of one kind.
func (s *source) until(t time.Time, kind string) {
	if kind != "" {
		s.end = s.base + sortable(t.Add(time.Microsecond))
	}
}

// limit restricts the range to the ids that q asks for.
func (s *source) limit(q persist.Query) {
	s.from = s.base + max(q.Prefix, q.From)
	for _, end := range []string{q.Before, cursor.Successor(q.Prefix)} {
		if end != "" && s.base+end < s.end {
			s.end = s.base + end
		}
	}
}

// after leaves out what the pages before q.After have shown.
func (s *source) after(q persist.Query) error {
	if q.After == "" {
		return nil
	}
	position, err := base64.RawURLEncoding.DecodeString(q.After)
	if err != nil {
		return cursor.ErrMalformed
	}
	switch key := s.base + string(position); {
	case q.Reverse && key < s.end:
		s.end = key
	case !q.Reverse && key >= s.from:
		s.from = key + "\x00"
	}
	return nil
}

// next returns up to most candidates, none at the end.
func (c *scan) next(ctx context.Context, most int) ([]candidate, error) {
	var found []candidate
	var keys []persist.Key
	for len(found) < most {
		src, err := c.first(ctx)
		if err != nil {
			return nil, err
		}
		if src == nil {
			break
		}
		kv := src.read[0]
		src.read = src.read[1:]
		f := candidate{position: string(kv.Key[len(src.base):])}
		if c.space == spaceRecord {
			if f.entry, err = decode(kv); err != nil {
				return nil, err
			}
		} else {
			start := len(c.store.keys.of(c.space, ""))
			key, ok := keyOf(c.space, string(kv.Key[start:]))
			if !ok {
				continue
			}
			keys = append(keys, key)
		}
		found = append(found, f)
	}
	if c.space == spaceRecord || len(keys) == 0 {
		return found, nil
	}
	entries, err := c.store.recordsAt(ctx, keys, c.revision)
	for i, e := range entries {
		found[i].entry = e
	}
	return found, err
}

// first returns the source whose next key comes first, nil if all are read.
func (c *scan) first(ctx context.Context) (best *source, err error) {
	position := ""
	for _, src := range c.sources {
		if err := c.fill(ctx, src); err != nil {
			return nil, err
		}
		if len(src.read) == 0 {
			continue
		}
		p := string(src.read[0].Key[len(src.base):])
		if best == nil || (p < position) != c.reverse {
			best, position = src, p
		}
	}
	return best, nil
}

// fill reads the next keys of src if none are left.
func (c *scan) fill(ctx context.Context, src *source) error {
	if len(src.read) > 0 || src.from >= src.end {
		return nil
	}
	opts := []clientv3.OpOption{clientv3.WithRange(src.end), clientv3.WithLimit(c.batch), clientv3.WithRev(c.revision)}
	if c.reverse {
		opts = append(opts, clientv3.WithSort(clientv3.SortByKey, clientv3.SortDescend))
	}
	answer, err := c.store.get(ctx, src.from, opts...)
	if err != nil {
		return err
	}
	src.read = answer.Kvs
	switch last := len(answer.Kvs) - 1; {
	case !answer.More:
		src.from = src.end
	case c.reverse:
		src.end = string(answer.Kvs[last].Key)
	default:
		src.from = string(answer.Kvs[last].Key) + "\x00"
	}
	return nil
}
