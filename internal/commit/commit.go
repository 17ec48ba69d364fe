package commit

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// Kind is the fate of a commit.
type Kind uint8

const (
	// Landed means that the commit took effect, once.
	Landed Kind = iota + 1
	// Lost means a conflict: nothing was applied, and Verdict.Records holds the records that won.
	Lost
	// Fenced means that a lease which guards the commit is not live: nothing was applied, and
	// Verdict.Records holds the leased record.
	Fenced
	// RolledBack means that the caller's own code inside the commit failed: nothing was applied.
	RolledBack
	// Unavailable means that the store refused or failed, and that nothing was applied.
	Unavailable
	// Rejected means that the store refused the content of the commit for good: nothing was applied,
	// and no repetition will be.
	Rejected
	// Unknown means that the commit is in doubt to the end: it may have landed, or still land.
	Unknown
)

// String returns the kind in lower case.
func (k Kind) String() string {
	names := [...]string{"none", "landed", "lost", "fenced", "rolled back", "unavailable", "rejected", "unknown"}
	if int(k) < len(names) {
		return names[k]
	}
	return names[0]
}

// Verdict is the fate of a commit, with the facts that prove it.
type Verdict struct {
	Kind Kind
	// ID is the id of the commit.
	ID string
	// Key is the first key of the commit in the order of keys. It is zero where the commit landed at
	// once, and where it has no key.
	Key persist.Key
	// At is when the commit landed, by the store's clock.
	At time.Time
	// Records are current records of keys in the commit. See Lost and Fenced. Where a commit in doubt
	// landed, they are the records that refused the last sending.
	Records []persist.Record
	// Held says that the store holds the winners for the next commit. See persist.Conflict.
	Held bool
	// Cause is the store's error, or the error inside OwnError.
	Cause error
}

// Store is the part of a persist.Store that settles a doubt.
type Store interface {
	Load(ctx context.Context, key persist.Key) (persist.Record, error)
	Commit(ctx context.Context, c persist.Commit) (time.Time, error)
}

// Route says how a commit reaches the store.
type Route struct {
	// Store tells the version floor, and tests versions where the lease of a commit in doubt is lost.
	Store Store
	// Commit sends the commit. Nil means Store.Commit.
	Commit func(ctx context.Context, c persist.Commit) (time.Time, error)
	// Once says that Commit has effects beyond the writes, which no version protects from a second
	// execution. A commit of guards alone is then in doubt like one with writes.
	Once bool
	// Last says that the commit cannot be sent again, because it is part of a transaction
	// which is over by then.
	Last bool
}

// send commits c on the route.
func (r *Route) send(ctx context.Context, c persist.Commit) (time.Time, error) {
	if r.Commit != nil {
		return r.Commit(ctx, c)
	}
	return r.Store.Commit(ctx, c)
}

// OwnError is returned by Route.Commit when the caller's own code inside the commit failed and the
// commit was rolled back. It does not unwrap: an error of that code says nothing about the store.
type OwnError struct{ Err error }

func (e *OwnError) Error() string { return "commit: rolled back by its own code" }

// NotApplied reports whether err promises that nothing was written.
func NotApplied(err error) bool {
	return errors.Is(err, persist.ErrNotApplied) || errors.Is(err, persist.ErrClosed) || errors.Is(err, persist.ErrUnsupported)
}

// rejects reports whether err, with which the store refused s, will not pass by itself. See
// persist.ErrUnavailable. The caller's own transaction, or the end of ctx, may be the cause of any
// error.
func (s *sending) rejects(ctx context.Context, err error) bool {
	return errors.Is(err, persist.ErrNotApplied) && !errors.Is(err, persist.ErrUnavailable) && !errors.Is(err, persist.ErrClosed) &&
		!errors.Is(err, persist.ErrUnsupported) && len(s.commit.Writes) > 0 && !s.route.Last && ctx.Err() == nil
}

// Answered reports whether err, nil included, is the store's decision about a commit.
func Answered(err error) bool {
	var (
		conflict *persist.Conflict
		lost     *persist.Fenced
		own      *OwnError
	)
	return err == nil || errors.As(err, &conflict) || errors.As(err, &lost) || errors.As(err, &own)
}

// Send commits c and returns its verdict. Bases describe the records that c.Writes replace, one by
// one. While c is in doubt, Send sends it again, with pauses by b, until ctx ends.
func Send(ctx context.Context, route Route, b Backoff, c persist.Commit, bases []Base) Verdict {
	at, err := route.send(ctx, c)
	if err == nil {
		return Verdict{Kind: Landed, ID: c.ID, At: at}
	}
	s := sending{route: route, commit: c, bases: bases, keys: c.Keys(), now: c}
	for n := 0; ; n++ {
		v, next := s.answered(ctx, at, err)
		if next == done {
			return v
		}
		// The first time at once: a record keeps few ids, and later commits push this one out.
		if next == pause && (n > 0 && !Sleep(ctx, rand.N(max(b.Bound(n), 1))) || ctx.Err() != nil) {
			return s.verdict(Unknown, s.doubt)
		}
		at, err = s.route.send(ctx, s.now)
	}
}

// sending is a commit on its way to a verdict.
type sending struct {
	route  Route
	commit persist.Commit
	bases  []Base
	keys   []persist.Key
	// now is sent next: the commit, or the test of its versions once its lease is lost.
	now persist.Commit
	// doubt is the last error that left the commit in doubt. Nil means that it is not.
	doubt error
	// fence is the record whose lease was lost while the commit was in doubt. Nil means none.
	fence *persist.Record
}

// step says how a sending continues after an answer.
type step uint8

const (
	done   step = iota // the verdict is certain, or Unknown for good
	pause              // send again after a pause
	atOnce             // send again at once
)

// answered judges one answer of the store. The verdict is valid with done only.
func (s *sending) answered(ctx context.Context, at time.Time, err error) (Verdict, step) {
	var (
		conflict *persist.Conflict
		lost     *persist.Fenced
		own      *OwnError
	)
	switch {
	case errors.As(err, &own):
		return s.verdict(RolledBack, own.Err), done
	case err == nil && s.fence != nil:
		return s.fenced(), done
	case err == nil:
		v := s.verdict(Landed, nil)
		v.At = at
		return v, done
	case errors.As(err, &conflict):
		return s.conflicted(ctx, conflict, err)
	case errors.As(err, &lost):
		s.fence = &lost.Current
		if s.doubt == nil {
			return s.fenced(), done
		}
		// An earlier sending may have landed while the lease was live. One that has not tested the
		// lease yet cannot land any more. One that has keeps its records locked until it ends, so
		// testing their versions waits for it.
		s.now, s.route = persist.Commit{ID: s.commit.ID, Guards: expectations(s.commit)}, Route{Store: s.route.Store}
		return Verdict{}, atOnce
	case s.doubt == nil && s.rejects(ctx, err):
		return s.verdict(Rejected, err), done
	case s.doubt == nil && (NotApplied(err) || len(s.commit.Writes) == 0 && !s.route.Once): // guards can be tested twice
		return s.verdict(Unavailable, err), done
	case len(s.commit.Writes) == 0 || s.route.Last: // no record would show whether it landed
		return s.verdict(Unknown, err), done
	case !NotApplied(err):
		s.doubt = err
		s.now.Insist = false // the pauses of a commit in doubt are too long to have the winners held
	}
	return Verdict{}, pause
}

// conflicted judges a conflict, which err wraps.
func (s *sending) conflicted(ctx context.Context, conflict *persist.Conflict, err error) (Verdict, step) {
	winners := ofKeys(conflict.Winners, s.keys)
	if s.doubt == nil {
		if len(winners) == 0 { // the answer does not say what won
			return s.verdict(Unavailable, err), done
		}
		v := s.verdict(Lost, nil)
		v.Records, v.Held = winners, conflict.Held
		return v, done
	}
	winners = moved(s.commit, winners)
	if len(winners) == 0 { // only a lease is in the way: once it ends, an earlier sending or the next may land
		return Verdict{}, pause
	}
	landed, at := judge(s.commit, s.bases, winners, func() uint64 { return floor(ctx, s.route.Store, s.keys[0].Kind) })
	switch {
	case landed == gone:
		return s.verdict(Unknown, s.doubt), done
	case landed == never && s.fence != nil:
		return s.fenced(), done
	}
	v := s.verdict(Lost, nil)
	if landed == yes {
		v.Kind, v.At = Landed, at
	}
	v.Records = winners
	return v, done
}

// verdict returns a verdict on s without records.
func (s *sending) verdict(kind Kind, cause error) Verdict {
	v := Verdict{Kind: kind, ID: s.commit.ID, Cause: cause}
	if len(s.keys) > 0 {
		v.Key = s.keys[0]
	}
	return v
}

func (s *sending) fenced() Verdict {
	v := s.verdict(Fenced, nil)
	v.Records = []persist.Record{*s.fence}
	return v
}

// expectations returns guards that test the versions which the writes of c expect.
func expectations(c persist.Commit) (guards []persist.Guard) {
	for i := range c.Writes {
		w := &c.Writes[i]
		guards = append(guards, persist.Guard{Key: w.Key, Read: true, Version: w.Expected, Gone: w.Gone})
	}
	return guards
}

// moved returns the winners on which no sending of c can land any more. A record that only a lease
// protects from c is not one of them.
func moved(c persist.Commit, winners []persist.Record) []persist.Record {
	return slices.DeleteFunc(winners, func(r persist.Record) bool {
		return slices.ContainsFunc(c.Writes, func(w persist.Write) bool {
			return w.Key == r.Key && w.Acquire != nil && r.Version == w.Expected && r.Held(r.Now)
		})
	})
}

// ofKeys returns the records of these keys, which are sorted.
func ofKeys(records []persist.Record, keys []persist.Key) []persist.Record {
	return slices.DeleteFunc(slices.Clone(records), func(r persist.Record) bool {
		_, found := slices.BinarySearchFunc(keys, r.Key, persist.Key.Compare)
		return !found
	})
}
