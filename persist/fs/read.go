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
	r, readErr := s.look(ctx, key)
	found, err := s.pending(set)
	if err != nil {
		return persist.Record{}, err
	}
	if len(found) == 0 && !r.tentative {
		return r.Record, readErr
	}
	return s.settled(ctx, key)
}

// settled reads a record when no commit is under way there.
func (s *Store) settled(ctx context.Context, key persist.Key) (persist.Record, error) {
	found, release, err := s.settle(ctx, wanted{stripeOf(key): shared}, key)
	if err != nil {
		return persist.Record{}, err
	}
	release()
	return found[0].Record, nil
}

// settleAll makes sure that what was read of keys is durable, or what came after it.
func (s *Store) settleAll(ctx context.Context, keys []persist.Key) error {
	for _, key := range keys {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if _, err := s.settled(ctx, key); err != nil {
			return err
		}
	}
	return nil
}

// stored is what the file of a record holds.
type stored struct {
	persist.Record
	checksum  string // none if there is no file
	tentative bool   // it may not be durable
}

// read returns what is in the file of key, whose stripe the caller has; for an absent key the absent record. It returns *DamagedError.
func (s *Store) read(key persist.Key) (stored, error) { return s.readBy(readFile, key) }

// look is read for those who do not have the stripe. It returns the cause of ctx's end as well, or errLocked after the lock timeout.
func (s *Store) look(ctx context.Context, key persist.Key) (r stored, err error) {
	waiting := s.locks.limited(ctx)
	defer waiting.end()
	failure := patiently(waiting, func() (bool, error) {
		if r, err = s.readBy(glance, key); isDamaged(err) { // or it has become the file of another record, with the same stripe
			r, err = s.readBy(stare, key)
		}
		return !errors.Is(err, errReused), nil
	})
	if failure != nil {
		return stored{}, failure
	}
	return r, err
}

func (s *Store) readBy(readFile func(path string) ([]byte, os.FileMode, error), key persist.Key) (stored, error) {
	path := s.file(key)
	data, mode, err := readFile(path)
	if errors.Is(err, iofs.ErrNotExist) {
		floor, err := s.floor() // Purge has raised it before it removed the file
		return stored{Record: persist.Record{Key: key, Version: floor}}, err
	}
	if err != nil {
		return stored{}, err
	}
	r, checksum, ok := s.memo.recall(path, data)
	if !ok {
		if r, checksum, err = decodeRecord(path, data, key); err != nil {
			return stored{}, err
		}
		s.memo.keep(path, data, r, checksum)
	}
	return stored{r, checksum, isTentative(mode)}, nil
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
	page, doubtful, err := s.page(ctx, q)
	if err == nil {
		err = s.settleAll(ctx, doubtful)
	}
	if err != nil {
		return persist.Page{}, explain(err)
	}
	return page, nil
}

// page reads one page, and returns the keys of what it has read that is tentative.
func (s *Store) page(ctx context.Context, q persist.Query) (page persist.Page, doubtful []persist.Key, err error) {
	release, err := s.withoutJournals(ctx)
	if err != nil {
		return persist.Page{}, nil, err
	}
	defer release()
	size := q.PageSize()
	for r, err := range s.matching(ctx, q, &doubtful) {
		if err != nil {
			return persist.Page{}, nil, err
		}
		if len(page.Records) == size {
			page.Next = cursor.Of(q, page.Records[size-1]).String()
			break
		}
		page.Records = append(page.Records, r)
	}
	return page, doubtful, nil
}

// withoutJournals takes the list lock, shared, when no commit of several keys is half done.
func (s *Store) withoutJournals(ctx context.Context) (release func(), err error) {
	for {
		release, err := s.locks.take(ctx, wanted{listLock: shared})
		if err != nil {
			return nil, err
		}
		found, err := s.pending(everyStripe)
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

// matching yields the records that match q, in the order of the list, and adds to doubtful the keys of what it has
// read that is tentative, whether it matches or not. A damaged file is an error after which it goes on; all others end it.
func (s *Store) matching(ctx context.Context, q persist.Query, doubtful *[]persist.Key) iter.Seq2[persist.Record, error] {
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
			found, err := s.look(ctx, key)
			if err != nil {
				if !yield(persist.Record{}, err) || !isDamaged(err) {
					return
				}
				continue
			}
			if found.tentative {
				*doubtful = append(*doubtful, key)
			}
			r := found.Record
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
