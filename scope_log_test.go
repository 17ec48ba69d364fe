package pawl_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pawl-go/pawl"

	"github.com/stretchr/testify/require"
)

// tape is the state of a scope with a log: the number of the next entry.
type tape struct {
	Next uint64 `json:"next"`
}

var tapes = pawl.Kind[tape]{Name: "tape", Log: true}

// recording returns a function that adds entries to the log of s.
func recording(s pawl.Scope[tape], texts ...string) func(context.Context, *tape) error {
	return func(ctx context.Context, t *tape) error {
		for _, text := range texts {
			if err := s.AppendLog(ctx, t.Next, json.RawMessage(text)); err != nil {
				return err
			}
			t.Next++
		}
		return nil
	}
}

// played returns the log of s.
func played(t *testing.T, s pawl.Scope[tape], q pawl.LogQuery) (texts []string) {
	t.Helper()
	entries, err := s.ReadLog(t.Context(), q)
	require.NoError(t, err)
	for _, e := range entries {
		require.Equal(t, s.Key(), e.Key)
		texts = append(texts, fmt.Sprintf("%d:%s", e.Number, e.Data))
	}
	return texts
}

// Entries and state are one commit: a function that fails adds neither. Proves STREAM-7.
func TestLogIsPartOfTheMutation(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx, s := t.Context(), tapes.Scope(p.rt, "a")
		_, err := s.AtomicState(ctx, recording(s, `1`, `{"b": [2]}`))
		require.NoError(t, err)
		failure := errors.New("no")
		_, err = s.AtomicState(ctx, func(ctx context.Context, b *tape) error {
			require.NoError(t, recording(s, `3`)(ctx, b))
			return failure
		})
		require.ErrorIs(t, err, failure)
		snap, err := s.AtomicState(ctx, recording(s, `"c"`))
		require.NoError(t, err)
		require.EqualValues(t, 2, snap.Version)
		require.EqualValues(t, 3, snap.State().Next)
		require.Equal(t, []string{`0:1`, `1:{"b": [2]}`, `2:"c"`}, played(t, s, pawl.LogQuery{}))
		require.Equal(t, []string{`2:"c"`, `1:{"b": [2]}`}, played(t, s, pawl.LogQuery{Reverse: true, Limit: 2}))
		require.Equal(t, []string{`1:{"b": [2]}`}, played(t, s, pawl.LogQuery{From: 1, Before: 2}))

		_, err = s.AtomicState(ctx, func(ctx context.Context, b *tape) error { return s.AppendLog(ctx, 3, json.RawMessage(`4`)) })
		require.NoError(t, err)
		require.EqualValues(t, 3, p.record(t, s.Key()).Version, "an entry alone is a change")
		_, err = s.AtomicState(ctx, func(ctx context.Context, b *tape) error { return s.DropLog(ctx, 2) })
		require.NoError(t, err)
		require.Equal(t, []string{`2:"c"`, `3:4`}, played(t, s, pawl.LogQuery{}))
	})
}

// Mutations of one process share commits, each with its entries, and numbers have no gaps and no
// duplicates, also with a second process. Proves STREAM-1.
func TestLogsOfManyWriters(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		const writers, each = 8, 10
		other := p.another(t)
		var all sync.WaitGroup
		for w := range writers {
			rt := p.rt
			if w%2 == 1 {
				rt = other
			}
			all.Go(func() {
				s := tapes.Scope(rt, "a")
				for i := range each {
					_, err := s.AtomicState(context.Background(), recording(s, fmt.Sprintf(`"%d.%d"`, w, i)))
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
		entries, err := tapes.Scope(p.rt, "a").ReadLog(t.Context(), pawl.LogQuery{Limit: 2 * writers * each})
		require.NoError(t, err)
		require.Len(t, entries, writers*each)
		seen, order := map[string]bool{}, map[string]int{}
		for i, e := range entries {
			require.EqualValues(t, i, e.Number)
			require.False(t, seen[string(e.Data)], "twice: %s", e.Data)
			seen[string(e.Data)] = true
			writer, _, _ := strings.Cut(string(e.Data), ".")
			require.Equal(t, fmt.Sprintf(`%s.%d"`, writer, order[writer]), string(e.Data), "the order of one writer")
			order[writer]++
		}
		all2, err := p.rt.ReadLogs(t.Context(), 0, 2*writers*each, tapes.Name)
		require.NoError(t, err)
		require.Len(t, all2, writers*each)
		for i, e := range all2 {
			require.Equal(t, entries[i].Data, e.Data)
			if i > 0 {
				require.Greater(t, e.Position, all2[i-1].Position)
			}
		}
	})
}

// A deleted scope loses its log, and starts over with number 0, in one batch too. Proves STREAM-1.
func TestLogEndsWithItsScope(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx, s := t.Context(), tapes.Scope(p.rt, "a")
		_, err := s.AtomicState(ctx, recording(s, `1`, `2`))
		require.NoError(t, err)
		require.NoError(t, s.Delete(ctx))
		require.Empty(t, played(t, s, pawl.LogQuery{}))
		_, err = s.AtomicState(ctx, recording(s, `3`), pawl.IfAbsent())
		require.NoError(t, err)
		require.Equal(t, []string{`0:3`}, played(t, s, pawl.LogQuery{}))
		require.NoError(t, pawl.Transact(ctx, p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			in := s.In(tx)
			if err := in.Delete(ctx); err != nil {
				return err
			}
			_, err := in.AtomicState(ctx, recording(in, `4`), pawl.IfAbsent())
			return err
		}))
		require.Equal(t, []string{`0:4`}, played(t, s, pawl.LogQuery{}))
		n, err := tapes.DeletePrefix(ctx, p.rt, "a")
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Empty(t, played(t, s, pawl.LogQuery{}))
	})
}

// A scope that expires and is made anew, or is swept, loses its log. Proves STREAM-1.
func TestLogOfAnExpiredScope(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx, s := t.Context(), tapes.Scope(p.rt, "a")
		const short = 50 * time.Millisecond
		gone := func() {
			t.Helper()
			require.Eventually(t, func() bool {
				snap, err := s.Snapshot(ctx)
				return err == nil && !snap.Exists()
			}, time.Minute, short)
		}
		_, err := s.AtomicState(ctx, recording(s, `1`, `2`), pawl.WithTTL(short))
		require.NoError(t, err)
		gone()
		_, err = s.AtomicState(ctx, recording(s, `3`), pawl.WithTTL(short))
		require.NoError(t, err)
		require.Equal(t, []string{`0:3`}, played(t, s, pawl.LogQuery{}))
		gone()
		sweeper, err := pawl.NewSweeper(p.rt, pawl.SweeperConfig{})
		require.NoError(t, err)
		did, err := sweeper.Sweep(ctx)
		require.NoError(t, err)
		require.Equal(t, 1, did.Cleared)
		require.Empty(t, played(t, s, pawl.LogQuery{}))
	})
}

// Entries of several scopes and documents of others are one commit of a transaction; if a guard
// fails, none is there. Proves STREAM-7.
func TestLogsInATransaction(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx := t.Context()
		a, b, n := tapes.Scope(p.rt, "a"), tapes.Scope(p.rt, "b"), pawl.User[counts](p.rt, "u")
		both := func(fail error) error {
			return pawl.Transact(ctx, p.rt, func(ctx context.Context, tx *pawl.Tx) error {
				for _, s := range []pawl.Scope[tape]{a.In(tx), b.In(tx)} {
					if _, err := s.AtomicState(ctx, recording(s, `1`)); err != nil {
						return err
					}
				}
				if _, err := n.In(tx).IncState(ctx, "n", 1); err != nil {
					return err
				}
				return fail
			})
		}
		failure := errors.New("no")
		require.ErrorIs(t, both(failure), failure)
		require.Empty(t, played(t, a, pawl.LogQuery{}))
		require.NoError(t, both(nil))
		require.NoError(t, both(nil))
		require.Equal(t, []string{`0:1`, `1:1`}, played(t, a, pawl.LogQuery{}))
		require.Equal(t, []string{`0:1`, `1:1`}, played(t, b, pawl.LogQuery{}))
		state, err := n.State(ctx)
		require.NoError(t, err)
		require.Equal(t, 2, state.N)
	})
}

// What cannot be done with a log is refused.
func TestLogArguments(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx, s := t.Context(), tapes.Scope(p.rt, "a")
		var argument *pawl.ArgumentError
		var limit *pawl.LimitError
		require.ErrorAs(t, s.AppendLog(ctx, 0, json.RawMessage(`1`)), &argument, "outside a function")
		within := func(fn func(ctx context.Context) error) error {
			_, err := s.AtomicState(ctx, func(ctx context.Context, _ *tape) error { return fn(ctx) })
			return err
		}
		require.ErrorAs(t, within(func(ctx context.Context) error {
			return tapes.Scope(p.rt, "b").AppendLog(ctx, 0, json.RawMessage(`1`))
		}), &argument, "of another scope")
		require.ErrorAs(t, within(func(ctx context.Context) error { return s.AppendLog(ctx, 0, json.RawMessage(`{`)) }), &argument)
		require.ErrorAs(t, within(func(ctx context.Context) error { return s.AppendLog(ctx, 0, json.RawMessage("\"\xff\"")) }), &argument)
		require.ErrorAs(t, within(func(ctx context.Context) error {
			require.NoError(t, s.AppendLog(ctx, 0, json.RawMessage(`1`)))
			return s.AppendLog(ctx, 2, json.RawMessage(`2`))
		}), &argument, "a gap")
		require.ErrorAs(t, within(func(ctx context.Context) error {
			return s.AppendLog(ctx, 0, make([]json.RawMessage, pawl.MaxEntries+1)...)
		}), &limit)
		require.ErrorAs(t, within(func(ctx context.Context) error {
			return s.AppendLog(ctx, 0, json.RawMessage(`"`+strings.Repeat("x", pawl.DefaultMaxDoc)+`"`))
		}), &limit)
		var kept context.Context
		require.NoError(t, within(func(ctx context.Context) error { kept = ctx; return nil }))
		require.ErrorIs(t, s.AppendLog(kept, 0, json.RawMessage(`1`)), pawl.ErrClosed, "the function has returned")
		_, err := pawl.User[counts](p.rt, "u").ReadLog(ctx, pawl.LogQuery{})
		require.ErrorAs(t, err, &argument, "a kind without a log")
		_, err = s.ReadLog(ctx, pawl.LogQuery{Limit: -1})
		require.ErrorAs(t, err, &argument)
		require.Empty(t, played(t, s, pawl.LogQuery{}))
		_, err = pawl.Memory[tape](p.rt, "m").ReadLog(ctx, pawl.LogQuery{})
		require.ErrorIs(t, err, pawl.ErrNotPersisted)
	})
}

// A number that is taken is a conflict: the mutation is computed again until its budget is spent, and
// nothing is written. Proves STREAM-3.
func TestLogNumberIsTaken(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		ctx, s := t.Context(), tapes.Scope(p.rt, "a")
		_, err := s.AtomicState(ctx, recording(s, `1`))
		require.NoError(t, err)
		_, err = s.AtomicState(ctx, func(ctx context.Context, b *tape) error {
			return s.AppendLog(ctx, 0, json.RawMessage(`2`))
		}, pawl.WithRetry(pawl.Retry{Attempts: 2, First: time.Millisecond, Max: time.Millisecond}))
		var lost *pawl.ConcurrentModificationError
		require.ErrorAs(t, err, &lost)
		require.Equal(t, []string{`0:1`}, played(t, s, pawl.LogQuery{}))
		require.EqualValues(t, 1, p.record(t, s.Key()).Version)
	})
}
