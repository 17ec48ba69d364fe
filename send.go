package pawl

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pawl-go/pawl/persist"
)

// The way of a commit to the store, and back. An answer that is lost leaves the outcome open. Then the commit is frozen, and sent again
// until the store accepts it, or shows its id, or shows a version that it can no longer land on. Reading an old version proves nothing: the
// first sending may still be executed.

// verdict is what became of a commit.
type verdict struct {
	landed bool
	held   bool             // lost: see persist.Conflict
	at     time.Time        // landed: when
	others []persist.Record // records of the commit's keys by others: what it lost to; or, of one whose answer was lost, what is there now
}

// carrier takes a commit to the store.
type carrier struct {
	commit func(ctx context.Context, c persist.Commit) (time.Time, error) // Store.Commit, or something around it
	once   bool                                                           // it does more than c says, which no version protects from being done twice
	last   bool                                                           // what it was part of is over when it does not answer, so that asking again tells nothing
}

// plainly sends commits to the runtime's store as they are.
func (rt *Runtime) plainly() carrier { return carrier{commit: rt.store.Commit} }

// fenced is the answer to a commit under a lease that is not live any more; nothing was applied.
type fenced struct{ current persist.Record }

func (e *fenced) Error() string { return "pawl: " + e.current.Key.String() + ": lease lost" }

func asFenced(err error) *fenced {
	f, _ := err.(*fenced)
	return f
}

// foreign is how the user's own code inside a commit failed, which was then rolled back.
type foreign struct{ ending }

func (e foreign) Error() string { return "pawl: the commit was rolled back by its own code" }

// send commits c, whose writes were made for bases, and returns only when its fate is sealed, with *UnknownOutcomeError when ctx
// ends first or the evidence is gone, or with an error after which nothing was applied: *fenced and foreign are such.
func (rt *Runtime) send(ctx context.Context, carry carrier, retry Retry, c persist.Commit, bases []*doc) (verdict, error) {
	at, err := carry.commit(ctx, c)
	if err == nil {
		return verdict{landed: true, at: at}, nil
	}
	return rt.sendOn(ctx, carry, retry, c, bases, at, err)
}

// sendOn goes on with c after the first answer of the store.
func (rt *Runtime) sendOn(ctx context.Context, carry carrier, retry Retry, c persist.Commit, bases []*doc, at time.Time, err error) (verdict, error) {
	keys := append(c.Keys(), Key{Kind: "transaction"})
	key := keys[0]
	var (
		doubt   error   // what the store said when it left the outcome open
		refusal *fenced // of the lease, after that
		now     = c     // what is sent: c, or then a look at what became of it
	)
	for resent := 1; ; resent++ {
		if resent > 1 {
			at, err = carry.commit(ctx, now)
		}
		var (
			conflict *persist.Conflict
			lost     *persist.Fenced
			own      foreign
		)
		switch {
		case errors.As(err, &own):
			return verdict{}, own
		case err == nil && refusal != nil:
			return verdict{}, refusal
		case err == nil:
			return verdict{landed: true, at: at}, nil
		case errors.As(err, &conflict):
			winners := ofKeys(conflict.Winners, keys)
			if doubt == nil && len(winners) == 0 {
				return verdict{}, unavailable(key, err) // it does not say what won
			}
			if doubt == nil {
				return verdict{others: winners, held: conflict.Held}, nil
			}
			if winners = moved(c, winners); len(winners) == 0 {
				break // only a lease is in its way: an earlier sending may land once that is over, and so may this one
			}
			v, certain := judge(c, bases, winners, func() uint64 { return rt.floor(ctx, key.Kind) })
			switch {
			case !certain:
				return verdict{}, &UnknownOutcomeError{Scope: key, Commit: c.ID, Cause: doubt}
			case !v.landed && refusal != nil:
				return verdict{}, refusal
			}
			return v, nil
		case errors.As(err, &lost):
			refusal = &fenced{lost.Current}
			if doubt == nil {
				return verdict{}, refusal
			}
			// An earlier sending may have landed while the lease was live. One that has not tested it yet will not land any more,
			// and one that has keeps what it writes locked: once those versions can be read under a lock, all is said.
			now, carry = persist.Commit{ID: c.ID, Guards: expectations(c)}, rt.plainly()
			continue
		case doubt == nil && (notApplied(err) || len(c.Writes) == 0 && !carry.once): // guards can be tested twice
			return verdict{}, unavailable(key, err)
		case len(c.Writes) == 0 || carry.last: // nothing would show whether it landed
			return verdict{}, &UnknownOutcomeError{Scope: key, Commit: c.ID, Cause: err}
		case !notApplied(err):
			doubt = err
			now.Insist = false // for whoever is in doubt would not come back at once
		}
		// The first time at once: a record keeps the ids of few commits, and later ones of this process bury the id of this one.
		if resent > 1 && !sleep(ctx, rand.N(backoff(retry, resent-1))) || ctx.Err() != nil {
			return verdict{}, &UnknownOutcomeError{Scope: key, Commit: c.ID, Cause: doubt}
		}
	}
}

// ask lets fn call the store for r, until the last budget of its members ends. The context is no caller's: the call is made for several
// of them, and one that is cut in mid-commit would leave the others in doubt. A panic of the store is an answer like
// others; if it ends this goroutine (runtime.Goexit), everybody gets an error and a new one goes on.
func (c *cell) ask(r *round, fn func(ctx context.Context) error) (err error) {
	until := time.Now()
	if r.solo != nil || r.slow {
		until = until.Add(leastTime)
	}
	for _, w := range r.members {
		if d := w.submitted.Add(w.call.retry.Within); d.After(until) {
			until = d
		}
	}
	ctx := &patient{until: until}
	defer ctx.over()
	p := guarded(func() { err = fn(ctx) }, func() {
		go func() {
			c.answerAll(r, r.broken(errors.New("the store called runtime.Goexit")))
			if c.ended(r) {
				c.work(c)
			}
		}()
	})
	if p != nil {
		return r.broken(p)
	}
	return err
}

// patient is a context that ends at its deadline only, or with the call that it is for, in a goroutine that no caller waits for: a store need not start another one to be back
// when it ends. Until somebody wants to be told of that, it is no more than the time.
type patient struct {
	until  time.Time
	mu     sync.Mutex
	ctx    context.Context // that tells; nil: nobody has asked
	cancel context.CancelFunc
}

// Patient marks it, for stores.
func (*patient) Patient() {}

func (p *patient) Deadline() (time.Time, bool) { return p.until, true }

func (p *patient) Done() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx == nil {
		p.ctx, p.cancel = context.WithDeadline(context.Background(), p.until)
	}
	return p.ctx.Done()
}

func (p *patient) Err() error {
	if ctx := p.told(); ctx != nil {
		return ctx.Err()
	}
	if time.Now().Before(p.until) {
		return nil
	}
	return context.DeadlineExceeded
}

func (p *patient) Value(key any) any {
	if ctx := p.told(); ctx != nil {
		return ctx.Value(key) // a context that is made of this one finds out that way how to be told
	}
	return nil
}

func (p *patient) told() context.Context {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ctx
}

// over ends it, for whoever still has it or asks later, and lets go of the timer, if there is one.
func (p *patient) over() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx == nil {
		p.ctx = endedContext
		return
	}
	p.cancel()
}

// endedContext is one that has been canceled.
var endedContext = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// broken is what a store that answers in no proper way means for the members of r.
func (r *round) broken(cause error) error {
	key := r.members[0].call.key
	if r.draft.changed > 0 {
		return &UnknownOutcomeError{Scope: key, Cause: cause}
	}
	return &UnavailableError{Scope: key, Cause: cause}
}

// expectations are the guards that test what the writes of c expect.
func expectations(c persist.Commit) (guards []persist.Guard) {
	for i := range c.Writes {
		w := &c.Writes[i]
		guards = append(guards, persist.Guard{Key: w.Key, Read: true, Version: w.Expected, Gone: w.Gone})
	}
	return guards
}

// moved returns the records on which no sending of c can land, whatever happens: not those that only a lease keeps it from.
func moved(c persist.Commit, winners []persist.Record) []persist.Record {
	return slices.DeleteFunc(winners, func(r persist.Record) bool {
		return slices.ContainsFunc(c.Writes, func(w persist.Write) bool {
			return w.Key == r.Key && w.Acquire != nil && r.Version == w.Expected && r.Held(r.Now)
		})
	})
}

// ofKeys returns the records of these keys.
func ofKeys(records []persist.Record, keys []Key) []persist.Record {
	return slices.DeleteFunc(slices.Clone(records), func(r persist.Record) bool { return !slices.Contains(keys, r.Key) })
}

// judge says what became of a commit in doubt that is refused when it is sent again, from the records that refuse it. It reports false
// where they do not tell. Floor is the store's version floor, read no earlier than they were.
func judge(c persist.Commit, bases []*doc, winners []persist.Record, floor func() uint64) (v verdict, certain bool) {
	v.others = winners
	written := 0
	for _, won := range winners {
		i := slices.IndexFunc(c.Writes, func(w persist.Write) bool { return w.Key == won.Key })
		if i < 0 {
			continue
		}
		written++
		switch evidence(bases[i], c.Writes[i].Version, won, c.ID, floor) {
		case landedThen:
			return verdict{landed: true, at: won.Updated, others: winners}, true
		case neverLanded:
			certain = true
		}
	}
	// Where something that it writes has not moved it has not landed, and what failed will fail for a sending that is still under way: no
	// version comes back. (An absence can, by a purge; see persist.Purger.)
	return v, certain || len(winners) > 0 && written < len(c.Writes)
}

// The evidence that a record's recent commit ids give about one of them.
const (
	landedThen = iota + 1
	neverLanded
	evidenceGone
)

// evidence says whether the commit id has landed, from a record whose version is not the one it expected. A record keeps the last few ids
// of its recent writers, so that not finding one proves something only while it would still be there. Nor does it where the record
// may have been purged since, and made anew by others: base is what the commit was made for, version what it would have made.
func evidence(base *doc, version uint64, won persist.Record, id string, floor func() uint64) int {
	if won.Absent() {
		return evidenceGone // purged, and its ids with it
	}
	writer, number := splitCommitID(id)
	// Ids are given out when what a commit is made for is known, so that a smaller one of this writer cannot land on top of a larger.
	later, writers, earlier := 0, map[string]bool{}, false
	for _, c := range won.Commits {
		if c == id {
			return landedThen
		}
		w, n := splitCommitID(c)
		writers[w] = true
		switch {
		case w != writer:
		case n > number:
			later++
		default:
			earlier = true // this writer was never forgotten since
		}
	}
	if later >= persist.KeptPerWriter || !earlier && len(writers) >= persist.KeptWriters {
		return evidenceGone
	}
	// Where there was no record, one that was born with a higher version may have followed on ours, but only after a purge, which would have
	// raised the floor above it.
	if base.life == absent && won.Born > version && floor() >= version || base.life != absent && won.Born != base.born {
		return evidenceGone
	}
	return neverLanded
}

// floor returns the store's version floor, by asking for what is not there; if it does not answer, the highest.
func (rt *Runtime) floor(ctx context.Context, kind string) uint64 {
	r, err := rt.store.Load(ctx, Key{Kind: kind, ID: crand.Text()})
	if !errors.Is(err, persist.ErrNotFound) {
		return math.MaxUint64
	}
	return r.Version
}

func splitCommitID(id string) (writer string, number uint64) {
	i := strings.LastIndexByte(id, '.')
	if i < 0 {
		return id, 0
	}
	number, _ = strconv.ParseUint(id[i+1:], 10, 64)
	return id[:i], number
}

// notApplied reports whether err promises that nothing was written.
func notApplied(err error) bool {
	return errors.Is(err, persist.ErrNotApplied) || errors.Is(err, persist.ErrClosed) || errors.Is(err, persist.ErrUnsupported)
}

func unavailable(key Key, err error) error {
	switch {
	case errors.Is(err, persist.ErrClosed):
		return fmt.Errorf("%w: %s: the store is", ErrClosed, key)
	case errors.Is(err, persist.ErrUnsupported):
		return fmt.Errorf("pawl: %s: %w", key, err) // no retry will change that
	}
	return &UnavailableError{Scope: key, Cause: err}
}

// backoff is the upper bound of the delay before the next attempt.
func backoff(r Retry, attempts int) time.Duration {
	d := r.First
	for i := 1; i < attempts && d < r.Max; i++ {
		d *= 2
	}
	return min(d, r.Max)
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
