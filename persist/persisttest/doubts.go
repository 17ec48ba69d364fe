package persisttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

// Link is a connection to a store that the suite breaks; see [Proxy].
type Link struct {
	// Location opens the store through the link.
	Location string
	// Mute passes requests on and drops answers, until Cut.
	Mute func()
	// Cut ends all connections. Later ones work.
	Cut func()
}

func (s suite) doubts() map[string]func(*testing.T) {
	return map[string]func(*testing.T){
		"no answer in time leaves the outcome open": func(t *testing.T) { s.lostAnswers(t, false) },
		"a lost connection leaves the outcome open": func(t *testing.T) { s.lostAnswers(t, true) },
	}
}

// answerPatience is how long a caller waits for an answer that is lost.
const answerPatience = 500 * time.Millisecond

// lostAnswers: the answers of commits are lost, because the caller's time ends or because the
// connections end. A commit that took effect must not be reported as if it had not.
//
// Proves STORE-17.
func (s suite) lostAnswers(t *testing.T, cut bool) {
	if s.options.Link == nil {
		t.Skip("Options.Link: the store has no connection that can be lost")
	}
	direct := s.fresh(t)
	link := s.options.Link(t, direct.location)
	linked := s.at(t, link.Location)
	type attempt struct {
		commit persist.Commit
		err    error
	}
	var attempts []attempt
	for i := range 4 {
		a := attempt{commit: persist.Commit{ID: commitID(), Writes: []persist.Write{create(key(fmt.Sprint(i)))}}}
		linked.connect()
		link.Mute()
		ctx, cancel := context.WithTimeout(t.Context(), answerPatience)
		answered := make(chan error, 1)
		go func() {
			_, err := linked.store.Commit(ctx, a.commit)
			answered <- err
		}()
		if cut {
			direct.applied(ctx, a.commit)
			link.Cut()
		}
		a.err = <-answered
		cancel()
		link.Cut()
		attempts = append(attempts, a)
	}
	require.NoError(t, linked.store.Close())
	inDoubt := 0
	for _, a := range attempts {
		applied := direct.applied(t.Context(), a.commit)
		if applied {
			require.False(t, promisesNothing(a.err), "the commit was applied, but the error promises that it was not: %v", a.err)
		} else {
			require.Error(t, a.err, "the commit was acknowledged and not applied")
		}
		if applied && a.err != nil {
			inDoubt++
		}
	}
	require.NotZero(t, inDoubt, "no answer was lost: Options.Link drops none, or the store commits by another way")
}

// connect commits until it succeeds, so that the next commit finds a connection. The store may notice
// the end of the last one only now.
func (f *fixture) connect() {
	f.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		id := commitID()
		_, err := f.store.Commit(f.Context(), persist.Commit{ID: id, Writes: []persist.Write{create(key("connected " + id))}})
		if err == nil {
			return
		}
		require.True(f, time.Now().Before(deadline), "no commit succeeds any more: %v", err)
	}
}

// applied reports whether c has created its record. It waits for that for as long as a caller waits
// for an answer, because requests may take time to arrive.
func (f *fixture) applied(ctx context.Context, c persist.Commit) bool {
	f.Helper()
	deadline := time.Now().Add(answerPatience)
	for ctx.Err() == nil && time.Now().Before(deadline) {
		r, err := f.store.Load(f.Context(), c.Writes[0].Key)
		if !errors.Is(err, persist.ErrNotFound) {
			require.NoError(f, err)
			return slices.Contains(r.Commits, c.ID)
		}
		time.Sleep(time.Millisecond)
	}
	return false
}

// promisesNothing reports whether err, by the contract, promises that nothing was written.
func promisesNothing(err error) bool {
	_, conflict := errors.AsType[*persist.Conflict](err)
	_, fenced := errors.AsType[*persist.Fenced](err)
	return conflict || fenced || errors.Is(err, persist.ErrNotApplied) || errors.Is(err, persist.ErrClosed) || errors.Is(err, persist.ErrUnsupported)
}
