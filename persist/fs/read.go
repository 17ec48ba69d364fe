package fs

import (
	"context"
	"errors"
	iofs "io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/internal/cursor"
)

// Load returns the current record of key. It returns persist.ErrNotFound, with the version floor
// in Record.Version, for an absent key; *DamagedError if its file is damaged; persist.ErrClosed
// after Close; ctx's error; and an error that wraps persist.ErrUnavailable when a commit of the key
// is under way for longer than Config.LockTimeout, or when one whose writer has gone cannot be
// finished for now.
func (s *Store) Load(ctx context.Context, key persist.Key) (persist.Record, error) {
	if ctx.Err() != nil {
		return persist.Record{}, context.Cause(ctx)
	}
	if err := s.enter(); err != nil {
		return persist.Record{}, err
	}
	defer s.calls.Done()
	r, err := s.load(s.locks.patient(ctx), key)
	if err != nil {
		return persist.Record{}, explain(err)
	}
	r.Now = hostTime()
	if r.Absent() {
		return r, persist.ErrNotFound
	}
	return r, nil
}

// load reads a record without a lock if no commit is under way there. See journal.go for why the
// file is read before the journals are looked at.
func (s *Store) load(ctx context.Context, key persist.Key) (persist.Record, error) {
	var set stripeSet
	set.add(stripeOf(key))
	r, _, readErr := s.read(key)
	found, err := s.pending(set)
	if err != nil {
		return persist.Record{}, err
	}
	if len(found) == 0 {
		return r, readErr
	}
	release, err := s.settle(ctx, wanted{stripeOf(key): shared})
	if err != nil {
		return persist.Record{}, err
	}
	defer release()
	r, _, err = s.read(key)
	return r, err
}

// read returns the record that is in the file of key, and the file's checksum; for an absent key
// the absent record, and no checksum. It returns *DamagedError.
func (s *Store) read(key persist.Key) (r persist.Record, checksum string, err error) {
	path := s.file(key)
	data, err := os.ReadFile(path)
	if errors.Is(err, iofs.ErrNotExist) {
		floor, err := s.floor() // Purge has raised it before it removed the file
		return persist.Record{Key: key, Version: floor}, "", err
	}
	if err != nil {
		return persist.Record{}, "", err
	}
	if r, checksum, ok := s.memo.recall(path, data); ok {
		return r, checksum, nil
	}
	if r, checksum, err = decodeRecord(path, data, key); err == nil {
		s.memo.keep(path, data, r, checksum)
	}
	return r, checksum, err
}

// decodeRecord returns the record of key that is in data, which the file at path holds, and its checksum. It
// returns *DamagedError.
func decodeRecord(path string, data []byte, key persist.Key) (r persist.Record, checksum string, err error) {
	if checksum, err = unseal(path, data, &r); err != nil {
		return persist.Record{}, "", err
	}
	if reason := implausible(r, key); reason != "" {
		return persist.Record{}, "", &DamagedError{Path: path, Reason: reason}
	}
	// A person may have written what no store would.
	if r.Born == 0 {
		r.Born = r.Version
	}
	for _, t := range []*time.Time{&r.Due, &r.Expires, &r.Updated, &r.Lease.Until} {
		*t = t.UTC().Truncate(time.Microsecond)
	}
	return r, checksum, nil
}

// implausible says why r, which is well-formed, cannot be the record of key.
func implausible(r persist.Record, key persist.Key) string {
	switch {
	case r.Key != key:
		return "it is the record of another key"
	case r.Version == 0:
		return "it has no version"
	case r.Updated.IsZero():
		return "it has no time of update"
	case r.Deleted != (r.Doc == nil):
		return "it has neither a document nor a tombstone's mark, or both"
	}
	return ""
}

// List returns one page of the records that match q, by kind and id, or with q.Due the longest due
// first. It returns persist.ErrClosed after Close, ctx's error, an error for an unknown q.After,
// *DamagedError if a file that it has to read is damaged, and an error that wraps
// persist.ErrUnavailable as Load does.
func (s *Store) List(ctx context.Context, q persist.Query) (persist.Page, error) {
	if ctx.Err() != nil {
		return persist.Page{}, context.Cause(ctx)
	}
	if err := s.enter(); err != nil {
		return persist.Page{}, err
	}
	defer s.calls.Done()
	ctx = s.locks.patient(ctx)
	page, seen, err := s.page(ctx, q)
	if err == nil {
		err = s.awaitMarks(ctx, seen)
	}
	if err != nil {
		return persist.Page{}, explain(err)
	}
	return page, nil
}

// page reads one page, and returns the stripes that it has read from.
func (s *Store) page(ctx context.Context, q persist.Query) (page persist.Page, seen stripeSet, err error) {
	release, err := s.withoutJournals(ctx)
	if err != nil {
		return persist.Page{}, seen, err
	}
	defer release()
	size := q.PageSize()
	for r, err := range s.matching(ctx, q, &seen) {
		if err != nil {
			return persist.Page{}, seen, err
		}
		if len(page.Records) == size {
			page.Next = cursor.Of(q, page.Records[size-1]).String()
			break
		}
		page.Records = append(page.Records, r)
	}
	return page, seen, nil
}

// withoutJournals takes the list lock, shared, when no commit of several keys is half done.
func (s *Store) withoutJournals(ctx context.Context) (release func(), err error) {
	for {
		release, err := s.locks.take(ctx, wanted{listLock: shared})
		if err != nil {
			return nil, err
		}
		found, err := s.pending(everyStripe)
		found = slices.DeleteFunc(found, func(j journal) bool { return j.mark })
		if err == nil && len(found) == 0 {
			return release, nil
		}
		release()
		if err == nil {
			err = s.finish(ctx, found)
		}
		if err != nil {
			return nil, err
		}
	}
}

var everyStripe = stripeSet{^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}

// awaitMarks waits until what was read from these stripes is durable.
func (s *Store) awaitMarks(ctx context.Context, seen stripeSet) error {
	found, err := s.pending(seen)
	if err != nil || len(found) == 0 {
		return err
	}
	want := make(wanted)
	for _, j := range found {
		for stripe := range stripes {
			if j.stripes.has(stripe) && seen.has(stripe) {
				want.add(stripe, shared)
			}
		}
	}
	release, err := s.settle(ctx, want)
	if err != nil {
		return err
	}
	release()
	return nil
}

// matching yields the records that match q, in the order of the list, and adds to seen the stripes
// that it has read from. A damaged file is an error after which it goes on; all others end it.
func (s *Store) matching(ctx context.Context, q persist.Query, seen *stripeSet) iter.Seq2[persist.Record, error] {
	return func(yield func(persist.Record, error) bool) {
		var after cursor.Position
		if q.After != "" {
			var err error
			if after, err = cursor.Parse(q.After); err != nil {
				yield(persist.Record{}, err)
				return
			}
		}
		isAfter := func(r persist.Record) bool { return q.After == "" || cursor.Of(q, r).Compare(after) > 0 }
		keys, err := s.keys(ctx, q)
		if err != nil {
			yield(persist.Record{}, err)
			return
		}
		now := hostTime()
		var due []persist.Record
		for _, key := range keys {
			if !q.Due && !isAfter(persist.Record{Key: key}) {
				continue
			}
			if ctx.Err() != nil {
				yield(persist.Record{}, context.Cause(ctx))
				return
			}
			seen.add(stripeOf(key))
			r, _, err := s.read(key)
			if err != nil {
				if !yield(persist.Record{}, err) || !isDamaged(err) {
					return
				}
				continue
			}
			r.Now = now
			switch {
			case !q.Match(r, now) || !isAfter(r):
			case q.Due:
				due = append(due, r)
			case !yield(r, nil):
				return
			}
		}
		slices.SortFunc(due, func(a, b persist.Record) int { return cursor.Of(q, a).Compare(cursor.Of(q, b)) })
		for _, r := range due {
			if !yield(r, nil) {
				return
			}
		}
	}
}

// keys returns the keys of all files that q does not rule out by their names, sorted.
func (s *Store) keys(ctx context.Context, q persist.Query) ([]persist.Key, error) {
	release, err := s.locks.take(ctx, wanted{namesLock: exclusive})
	if err != nil {
		return nil, err
	}
	defer release()
	kinds := []string{q.Kind}
	if q.Kind == "" {
		if kinds, err = names(s.records, nil, true); err != nil {
			return nil, err
		}
		slices.Sort(kinds)
	}
	var keys []persist.Key
	for _, kind := range kinds {
		ids, err := names(s.kindFolder(kind), nil, false)
		if err != nil {
			return nil, err
		}
		slices.Sort(ids)
		for _, id := range slices.Compact(ids) {
			if strings.HasPrefix(id, q.Prefix) {
				keys = append(keys, persist.Key{Kind: kind, ID: id})
			}
		}
	}
	return keys, nil
}

// names returns the names whose encodings begin with pieces and end in folder, as folders or as
// files. What was not put there by a store is left out.
func names(folder string, pieces []string, folders bool) ([]string, error) {
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, iofs.ErrNotExist) {
		return nil, err
	}
	var found []string
	for _, entry := range entries {
		piece := entry.Name()
		if entry.IsDir() && strings.HasSuffix(piece, continued) {
			longer, err := names(filepath.Join(folder, piece), append(slices.Clip(pieces), piece), folders)
			if err != nil {
				return nil, err
			}
			found = append(found, longer...)
			continue
		}
		if entry.IsDir() != folders {
			continue
		}
		if !folders {
			var ok bool
			if piece, ok = strings.CutSuffix(piece, extension); !ok {
				continue
			}
		}
		if name, ok := decode(append(slices.Clip(pieces), piece)); ok {
			found = append(found, name)
		}
	}
	return found, nil
}
