package fs

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"iter"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/adapter/cursor"
)

// List returns one page of the records that match q, by kind and id, or with q.Due the longest due
// first; q.Reverse turns that around. A listing of several pages reads the folder once, at its first
// page, so it may miss records that are created later. It returns persist.ErrClosed after Close,
// ctx's error, an error for an unknown q.After, *DamagedError if a file that it has to read is
// damaged, and an error that wraps persist.ErrUnavailable as Load does.
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

// page reads one page, and returns the keys of the tentative files that it read. It goes on where
// the page before ended, without reading the folder again, if this store still knows that listing.
// If a file looks damaged, it returns its key and *DamagedError.
func (s *Store) page(ctx context.Context, q persist.Query) (page persist.Page, doubtful []persist.Key, err error) {
	_, release, err := s.lockAndRead(ctx, wanted{listLock: shared}) // when there is no journal
	if err != nil {
		return persist.Page{}, nil, err
	}
	defer release()
	rest, known := s.listings.take(q)
	if !known {
		if rest, err = s.candidates(ctx, q, &doubtful); err != nil {
			return persist.Page{}, nil, err
		}
	}
	size, last := q.PageSize(), 0
	for i, r := range s.reading(ctx, q, rest, &doubtful) {
		if isDamaged(r.err) {
			return persist.Page{}, []persist.Key{r.Key}, r.err
		}
		if r.err != nil {
			return persist.Page{}, nil, r.err
		}
		if len(page.Records) == size {
			page.Next = nextOf(rest[last]) // not the due time that was read last: it may have moved
			q.After = page.Next
			s.listings.put(q, rest[last+1:])
			break
		}
		page.Records, last = append(page.Records, r.Record), i
	}
	return page, doubtful, nil
}

// nextOf returns Page.Next of a page that ends at p: the position, and a number that no other page
// has. The number keeps the listing apart from others that reached p and read the folder earlier.
func nextOf(p cursor.Position) string {
	return p.String() + numberMark + strconv.FormatUint(rand.Uint64(), 36)
}

// numberMark separates position and number. It is not in the text of a position.
const numberMark = "."

// keptListings is the number of listings whose remaining positions a store remembers.
const keptListings = 16

// listings remembers the positions that follow the last pages, so that a listing of many pages reads
// the folder once. Each page is taken once at most, by the listing that it belongs to: see nextOf.
// For a page that is not here the folder is read again.
type listings struct {
	mu    sync.Mutex // protects the fields below
	rest  map[string][]cursor.Position
	order []string // of rest, oldest first
}

// nameOf returns the name of the listing of q at the page that starts at q.After.
func nameOf(q persist.Query) string {
	q.Limit = 0
	return fmt.Sprintf("%#v", q)
}

// put keeps the positions of the page q and those after it.
func (l *listings) put(q persist.Query, rest []cursor.Position) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rest == nil {
		l.rest = make(map[string][]cursor.Position)
	}
	name := nameOf(q)
	l.rest[name], l.order = rest, append(l.order, name)
	if len(l.order) > keptListings {
		delete(l.rest, l.order[0])
		l.order = l.order[1:]
	}
}

// take returns what put kept for q, and forgets it.
func (l *listings) take(q persist.Query) ([]cursor.Position, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	name := nameOf(q)
	rest, known := l.rest[name]
	if known {
		delete(l.rest, name)
		l.order = slices.DeleteFunc(l.order, func(other string) bool { return other == name })
	}
	return rest, known
}

// matching yields the records that match q, in the order of the list. It adds to tentative the keys
// of the tentative files that it read, also of records that do not match. After a damaged file, whose
// key it yields with the error, it goes on; every other error ends it.
func (s *Store) matching(ctx context.Context, q persist.Query, tentative *[]persist.Key) iter.Seq2[persist.Record, error] {
	return func(yield func(persist.Record, error) bool) {
		found, err := s.candidates(ctx, q, tentative)
		if err != nil {
			yield(persist.Record{}, err)
			return
		}
		for _, r := range s.reading(ctx, q, found, tentative) {
			if !yield(r.Record, r.err) {
				return
			}
		}
	}
}

// candidates returns the positions of the files after q.After that q does not rule out by their
// names, in the order of the list. For q.Due it reads the files, and leaves out those that do not match;
// it keeps damaged ones, for reading to report.
func (s *Store) candidates(ctx context.Context, q persist.Query, tentative *[]persist.Key) ([]cursor.Position, error) {
	order := cursor.Order(q)
	isBefore := func(cursor.Position) bool { return false }
	if q.After != "" {
		q.After, _, _ = strings.Cut(q.After, numberMark)
		after, err := cursor.Parse(q)
		if err != nil {
			return nil, err
		}
		isBefore = func(p cursor.Position) bool { return order(p, after) <= 0 }
	}
	keys, err := s.keys(ctx, q)
	if err != nil {
		return nil, err
	}
	positions := make([]cursor.Position, len(keys))
	for i, key := range keys {
		positions[i] = cursor.Position{Kind: key.Kind, ID: key.ID}
	}
	var damaged []cursor.Position
	if q.Due {
		var due []cursor.Position
		for i, r := range s.reading(ctx, q, positions, tentative) {
			switch {
			case isDamaged(r.err):
				damaged = append(damaged, positions[i])
			case r.err != nil:
				return nil, r.err
			default:
				due = append(due, cursor.Of(q, r.Record))
			}
		}
		positions = due
	}
	positions = slices.DeleteFunc(positions, isBefore)
	slices.SortFunc(positions, order)
	return append(damaged, positions...), nil
}

// reading yields the records at these positions that match q, with their indices. For a damaged file
// it yields the key and the error, and goes on; every other error ends it. It adds to tentative the
// keys of the tentative files that it read.
func (s *Store) reading(ctx context.Context, q persist.Query, positions []cursor.Position, tentative *[]persist.Key) iter.Seq2[int, result] {
	return func(yield func(int, result) bool) {
		now := hostTime()
		for i, p := range positions {
			key := persist.Key{Kind: p.Kind, ID: p.ID}
			if ctx.Err() != nil {
				yield(i, result{err: context.Cause(ctx)})
				return
			}
			found, err := s.read(key)
			if err != nil {
				if !yield(i, result{persist.Record{Key: key}, err}) || !isDamaged(err) {
					return
				}
				continue
			}
			if found.tentative {
				*tentative = append(*tentative, key)
			}
			r := found.Record
			if r.Now = readAt(now, r.Updated); q.Match(r, now) && !yield(i, result{r, nil}) {
				return
			}
		}
	}
}

// result is a record that was read, or the error.
type result struct {
	persist.Record
	err error
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
		key, ok := keyOf(s.records, path)
		if ok && strings.HasPrefix(key.ID, q.Prefix) && key.ID >= q.From && (q.Before == "" || key.ID < q.Before) {
			keys = append(keys, key)
		}
		return nil
	})
	slices.SortFunc(keys, persist.Key.Compare)
	return slices.Compact(keys), err
}
