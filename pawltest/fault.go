package pawltest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	wait "github.com/pawl-go/pawl/internal/commit" // commit is the name of a parameter here
	"github.com/pawl-go/pawl/persist"
)

// Fault handles one commit c that was sent to s. It calls commit to let c reach the store behind s,
// and returns the error for the caller. [persist.Store] says what each error promises about the
// outcome. Tests can have faults of their own beside those of this package.
type Fault func(ctx context.Context, s *Store, c persist.Commit, commit func() error) error

// errLost leaves the outcome unknown.
var errLost = fmt.Errorf("%w: pawltest: answer lost", persist.ErrUnavailable)

// LostAnswer lets the commit land and loses the answer. Pawl sends the commit again and finds that
// it landed. If the answer is no success, LostAnswer returns it.
func LostAnswer(_ context.Context, _ *Store, _ persist.Commit, commit func() error) error {
	if err := commit(); err != nil {
		return err
	}
	return errLost
}

// LostRequest loses the commit on its way to the store. Pawl gets the same error as from
// LostAnswer, sends the commit again, and finds that it had not landed. With Store.Every, the call
// ends with *pawl.UnknownOutcomeError.
func LostRequest(context.Context, *Store, persist.Commit, func() error) error { return errLost }

// Refused refuses the commit: nothing is written, and Pawl knows it. The call returns
// *pawl.UnavailableError.
func Refused(context.Context, *Store, persist.Commit, func() error) error {
	return fmt.Errorf("%w: %w: pawltest: refused", persist.ErrUnavailable, persist.ErrNotApplied)
}

// Conflict makes the commit lose against a writer that moves the versions of its records and
// changes nothing else. Pawl computes the mutation again. A commit that finds no record to change,
// because it creates them all, fails with persist.ErrUnsupported; use Rival for it.
func Conflict(ctx context.Context, s *Store, c persist.Commit, commit func() error) error {
	if err := s.rewrite(ctx, c); err != nil {
		return err
	}
	return commit()
}

// Rival lets write run before the commit, as a process that was faster. If both change the same
// record, the commit loses. write must use a runtime on Store.Below: on s it could meet the next
// fault. If write returns an error, the commit fails with persist.ErrUnsupported and is not
// applied.
func Rival(write func() error) Fault {
	return func(_ context.Context, _ *Store, _ persist.Commit, commit func() error) error {
		if err := write(); err != nil {
			return fmt.Errorf("%w: pawltest: rival: %v", persist.ErrUnsupported, err)
		}
		return commit()
	}
}

// Slow lets the commit reach the store at once, and the answer take d. If ctx ends first, the
// answer is lost.
func Slow(d time.Duration) Fault {
	return func(ctx context.Context, _ *Store, _ persist.Commit, commit func() error) error {
		err := commit()
		if !wait.Sleep(ctx, d) {
			return fmt.Errorf("%w: %w", errLost, ctx.Err())
		}
		return err
	}
}

// rewrite writes the live records that c expects again, with the next version and the same content.
func (s *Store) rewrite(ctx context.Context, c persist.Commit) error {
	keys := expectedLive(c)
	if len(keys) == 0 {
		return fmt.Errorf("%w: pawltest: the commit changes no existing record; use Rival for a conflict", persist.ErrUnsupported)
	}
	for _, key := range keys {
		r, err := s.Below().Load(ctx, key)
		if errors.Is(err, persist.ErrNotFound) || err == nil && r.Gone(r.Now) {
			continue // c loses against the writer that removed it
		}
		if err != nil {
			return fmt.Errorf("%w: pawltest: conflict: %w", persist.ErrNotApplied, err)
		}
		_, err = s.Below().Commit(ctx, persist.Commit{ID: newCommitID(), Writes: []persist.Write{{
			Key: key, Expected: r.Version, Version: r.Version + 1, Doc: r.Doc, Schema: r.Schema,
			Label: r.Label, Due: r.Due, TTL: persist.KeepTTL, Recent: r.Commits,
		}}})
		var conflict *persist.Conflict
		if err != nil && !errors.As(err, &conflict) {
			return fmt.Errorf("%w: pawltest: conflict: %w", persist.ErrNotApplied, err)
		}
	}
	return nil
}

// expectedLive returns the keys whose records c expects at a version, alive.
func expectedLive(c persist.Commit) (keys []persist.Key) {
	for _, w := range c.Writes {
		if w.Expected != 0 && !w.Gone {
			keys = append(keys, w.Key)
		}
	}
	for _, g := range c.Guards {
		if g.Read && g.Version != 0 && !g.Gone && !slices.Contains(keys, g.Key) {
			keys = append(keys, g.Key)
		}
	}
	return keys
}

// commits counts the commit ids of this process; writer stands in all of them.
var (
	commits atomic.Uint64
	writer  = "pawltest-" + rand.Text()[:13]
)

// newCommitID returns the id of a commit that this package makes itself.
func newCommitID() string { return fmt.Sprintf("%s.%d", writer, commits.Add(1)) }
