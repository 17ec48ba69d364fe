package fs

import (
	"context"
	"errors"
	iofs "io/fs"
	"iter"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/internal/cursor"
)

// List returns one page of the records that match q, by kind and id, or with q.Due the longest due
// first. It returns persist.ErrClosed after Close, ctx's error, an error for an unknown q.After,
// *DamagedError if a file that it has to read is damaged, and an error that wraps
// persist.ErrUnavailable as Load does.
func (s *Store) List(ctx context.Context, q persist.Query) (persist.Page, error) {
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return persist.Page{}, err
	}
	defer end()
	for {
		page, doubtful, err := s.page(ctx, q)
		damaged := isDamaged(err) && len(doubtful) > 0
		if err == nil || damaged {
			err = s.readAgain(ctx, doubtful)
		}
		switch {
		case err != nil:
			return persist.Page{}, explain(err)
		case !damaged:
			return page, nil
		}
	}
}

// page reads one page, and returns the keys of the tentative files that it read. If a file looks
// damaged, it returns its key and *DamagedError.
func (s *Store) page(ctx context.Context, q persist.Query) (page persist.Page, doubtful []persist.Key, err error) {
	release, err := s.lockList(ctx)
	if err != nil {
		return persist.Page{}, nil, err
	}
	defer release()
	size := q.PageSize()
	for r, err := range s.matching(ctx, q, &doubtful) {
		if isDamaged(err) {
			return persist.Page{}, []persist.Key{r.Key}, err
		}
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

// lockList takes the list lock, shared, when there is no journal.
func (s *Store) lockList(ctx context.Context) (release func(), err error) {
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
			err = s.complete(ctx, found, nil)
		}
		if err != nil {
			return nil, err
		}
	}
}

// matching yields the records that match q, in the order of the list. It adds to tentative the keys
// of the tentative files that it read, also of records that do not match. After a damaged file, whose
// key it yields with the error, it goes on; every other error ends it.
func (s *Store) matching(ctx context.Context, q persist.Query, tentative *[]persist.Key) iter.Seq2[persist.Record, error] {
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
			found, err := s.read(key)
			if err != nil {
				if !yield(persist.Record{Key: key}, err) || !isDamaged(err) {
					return
				}
				continue
			}
			if found.tentative {
				*tentative = append(*tentative, key)
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

// keys returns the keys of all files that q does not rule out by their names, sorted. It ignores
// files that no store put there.
func (s *Store) keys(ctx context.Context, q persist.Query) (keys []persist.Key, err error) {
	release, err := s.locks.take(ctx, wanted{namesLock: exclusive})
	if err != nil {
		return nil, err
	}
	defer release()
	root := s.records
	if q.Kind != "" {
		root = s.kindFolder(q.Kind)
	}
	err = filepath.WalkDir(root, func(path string, entry iofs.DirEntry, err error) error {
		if errors.Is(err, iofs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if !holdsRecords(s.records, path) {
				return iofs.SkipDir
			}
			return nil
		}
		if key, ok := keyOf(s.records, path); ok && strings.HasPrefix(key.ID, q.Prefix) {
			keys = append(keys, key)
		}
		return nil
	})
	slices.SortFunc(keys, persist.Key.Compare)
	return slices.Compact(keys), err
}
