package pawl_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// requireRefused asserts that every verb and read of s gives the same *LimitError.
func requireRefused(t *testing.T, s pawl.Scope[board], what string, limit, got int) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		var e *pawl.LimitError
		require.ErrorAs(t, err, &e)
		require.Equal(t, what, e.What)
		require.Equal(t, limit, e.Limit)
		require.Equal(t, got, e.Got)
		require.Equal(t, "LIMIT", pawl.Code(err))
		require.Equal(t, 400, pawl.HTTPStatus(err))
		require.Less(t, len(err.Error()), 200, "a name of any length makes a short message")
	}
	for _, m := range everyVerb {
		_, err := s.Apply(t.Context(), m)
		check(err)
	}
	_, err := s.State(t.Context())
	check(err)
	_, err = s.Snapshot(t.Context())
	check(err)
	check(s.Delete(t.Context()))
	_, ok := s.LastSeen()
	require.False(t, ok)
	require.False(t, s.Abandon())
}

// An id has 1 to 255 bytes of valid UTF-8 without control characters. Proves SCOPE-11.
func TestIDs(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		for _, id := range []string{
			"", strings.Repeat("x", 256), strings.Repeat("é", 128), strings.Repeat("x", 1<<20),
			"a\x00", "a\n", "\x1b", "\x7f", "a\u0085", "\xff", "a\xed\xa0\x80",
		} {
			requireRefused(t, scopeOf[board](p, id), "id", pawl.MaxID, len(id))
		}
		for _, id := range []string{"x", strings.Repeat("x", 255), strings.Repeat("é", 127) + "x", "\U0001f512", "a b"} {
			s := scopeOf[board](p, id)
			_, err := s.IncState(t.Context(), "count", 1)
			require.NoError(t, err)
			requireState(t, p, s, 1, board{Count: 1})
		}
		if p.store != nil {
			require.EqualValues(t, 5, p.store.Commits.Load())
		}
	})
}

// The name of a kind has 1 to 64 bytes of valid UTF-8 without control characters. Proves SCOPE-11.
func TestKindNames(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		for _, name := range []string{"", strings.Repeat("k", 65), "a\x00", "a\tb", "\xff"} {
			kind := pawl.Kind[board]{Name: name, InMemory: p.store == nil}
			requireRefused(t, kind.Scope(p.rt, "a"), "kind", pawl.MaxKind, len(name))
			_, err := pawl.Open(pawl.Config{Store: memory.New(), Kinds: []pawl.AnyKind{kind}})
			var e *pawl.LimitError
			require.ErrorAs(t, err, &e)
			require.Equal(t, "kind", e.What)
		}
		for _, name := range []string{"k", strings.Repeat("k", 64), "Kind/1", "\U0001f512", "../kind"} {
			s := pawl.Kind[board]{Name: name, InMemory: p.store == nil}.Scope(p.rt, "a")
			_, err := s.IncState(t.Context(), "count", 1)
			require.NoError(t, err)
			requireState(t, p, s, 1, board{Count: 1})
		}
	})
}

// unusualIDs are ids that a careless store would confuse with each other or misinterpret.
var unusualIDs = []string{
	"../x", "..", ".", "a/b", "a/b/../c", "/etc/passwd", `a\b`, `..\x`, "a", "A", "ä", "Ä", "a\u0308", "ａ", "x.", "x..", "x", " x", "x ", "CON", "con", "NUL.txt", "aux",
	"\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "%00", "%2e%2e%2f", "a%", "a_", "_", "%", "*", "?", "a:b", "a;b", "a'b", `a"b`, "'; DROP TABLE pawl_records; --",
	"\u202etxt", "\ufeffx", "null", "0", "00", "1e3", "-", "--", "~", "$HOME", "${x}", "{{x}}", "a\u2028b", "session/a", "a,b", "a=b", "<a>", "İ", "ı", "I", "i", "ß", "ss", "SS",
}

// Each unusual id has its own state, on every path. Proves SCOPE-11.
func TestUnusualIDs(t *testing.T) {
	onPaths(t, func(t *testing.T, p path) {
		for i, id := range unusualIDs {
			_, err := scopeOf[board](p, id).IncState(t.Context(), "count", int64(i+1))
			require.NoError(t, err, "%q", id)
		}
		for i, id := range unusualIDs {
			requireState(t, p, scopeOf[board](p, id), 1, board{Count: int64(i + 1)})
			if p.store != nil {
				got, err := pawl.Session[board](p.another(t), id).State(t.Context())
				require.NoError(t, err)
				require.EqualValues(t, i+1, got.Count, "%q", id)
			}
		}
		if p.store == nil {
			return
		}
		ids := map[string]bool{}
		for snap, err := range (pawl.Kind[board]{Name: pawl.KindSession}).List(t.Context(), p.rt, pawl.Query{}) {
			require.NoError(t, err)
			ids[snap.ID] = true
		}
		require.Len(t, ids, len(unusualIDs))
		for i, id := range unusualIDs {
			if i%2 == 0 {
				require.NoError(t, scopeOf[board](p, id).Delete(t.Context()))
			}
		}
		for i, id := range unusualIDs {
			require.Equal(t, i%2 == 0, p.record(t, pawl.Key{Kind: pawl.KindSession, ID: id}).Deleted, "%q", id)
		}
	})
}

// A mutation that makes its document too large is refused, whatever the verb, and the document
// stays unchanged. Proves SCOPE-11.
func TestDocumentLimit(t *testing.T) {
	const limit = 1000
	onStores(t, func(t *testing.T, p path) {
		s := scopeOf[board](p, "a")
		start := board{Title: strings.Repeat("x", 500)}
		seed(t, s, start)
		big := strings.Repeat("y", 600)
		for name, m := range map[string]pawl.Mutation{
			"Patch": pawl.Patch{"tags": []string{big}}, "Set": pawl.Set{State: board{Title: big + big}}, "Push": pawl.Push{Field: "tags", Values: []any{big}},
			"SetRecord": pawl.SetRecord{Field: "notes", Key: big, Value: ""}, "Atomic": pawl.Atomic(func(_ context.Context, b *board) error { b.Title += big; return nil }),
			"All": pawl.All{pawl.Inc{Field: "count", By: 1}, pawl.Push{Field: "tags", Values: []any{big}}},
		} {
			_, err := s.Apply(t.Context(), m)
			var e *pawl.LimitError
			require.ErrorAs(t, err, &e, name)
			require.Equal(t, "document", e.What)
			require.Equal(t, limit, e.Limit)
			require.Greater(t, e.Got, 1100)
			require.Equal(t, s.Key(), e.Scope)
			require.Equal(t, 413, pawl.HTTPStatus(err))
			requireState(t, p, s, 1, start)
		}
		require.EqualValues(t, 1, p.store.Commits.Load())
		_, err := s.PushState(t.Context(), "tags", "small")
		require.NoError(t, err)
	}, func(c *pawl.Config) { c.MaxDoc = limit })
}

// The limit of a document is exact, and 1 MiB by default. Proves SCOPE-11.
func TestDocumentLimitIsExact(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		s := scopeOf[pawl.Doc](p, "a")
		fits := strings.Repeat("x", pawl.DefaultMaxDoc-len(`{"d":""}`))
		_, err := s.PatchState(t.Context(), pawl.Patch{"d": fits + "x"})
		require.Equal(t, &pawl.LimitError{Scope: s.Key(), What: "document", Limit: 1 << 20, Got: 1<<20 + 1}, err)
		requireAbsent(t, p, s)
		_, err = s.PatchState(t.Context(), pawl.Patch{"d": fits})
		require.NoError(t, err)
		require.Len(t, p.record(t, s.Key()).Doc, 1<<20)
	})
}

// In a shared commit only the mutation that exceeds the limit is refused. Proves SCOPE-11.
func TestDocumentLimitInSharedCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTap()
		rt := openRuntime(t, pawl.Config{Store: store, MaxDoc: 1000})
		s := pawl.Session[board](rt, "a")
		entered, release := store.Hold()
		var wg sync.WaitGroup
		wg.Go(func() { _, err := s.IncState(t.Context(), "count", 1); assert.NoError(t, err) })
		<-entered
		for i := range 5 {
			wg.Go(func() { _, err := s.IncState(t.Context(), "count", 1); assert.NoError(t, err) })
			wg.Go(func() {
				_, err := s.SetStateRecord(t.Context(), "notes", fmt.Sprint(i), strings.Repeat("x", 2000))
				var e *pawl.LimitError
				assert.ErrorAs(t, err, &e)
			})
			wg.Go(func() {
				_, err := s.AtomicState(t.Context(), func(_ context.Context, b *board) error { b.Count++; return nil })
				assert.NoError(t, err)
			})
		}
		synctest.Wait()
		release()
		wg.Wait()
		snap, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 11, snap.Version)
		require.Equal(t, board{Count: 11}, snap.State())
	})
}

// In a shared commit only the mutation with an invalid label or due time is refused.
// Proves SCOPE-11.
func TestLabelLimitInSharedCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newTap()
		rt := openRuntime(t, pawl.Config{Store: store})
		s := pawl.Kind[pawl.Doc]{Name: "job", Label: "status", Due: "at"}.Scope(rt, "a")
		entered, release := store.Hold()
		var wg sync.WaitGroup
		wg.Go(func() { _, err := s.IncState(t.Context(), "n", 1); assert.NoError(t, err) })
		<-entered
		refused := []struct {
			m    pawl.Mutation
			want any
		}{
			{pawl.Patch{"status": strings.Repeat("x", pawl.MaxLabel+1)}, new(*pawl.LimitError)},
			{pawl.Patch{"status": 5}, new(*pawl.FieldError)},
			{pawl.Patch{"at": "tomorrow"}, new(*pawl.FieldError)},
			{pawl.Patch{"at": 5}, new(*pawl.FieldError)},
		}
		for _, r := range refused {
			wg.Go(func() { _, err := s.IncState(t.Context(), "n", 1); assert.NoError(t, err) })
			wg.Go(func() { _, err := s.Apply(t.Context(), r.m); assert.ErrorAs(t, err, r.want) })
		}
		synctest.Wait()
		release()
		wg.Wait()
		snap, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		require.Equal(t, pawl.Doc{"n": int64(1 + len(refused))}, snap.State())
	})
}

// A document that was written under a larger limit, and exceeds the current one, can still shrink.
// Proves SCOPE-11.
func TestDocumentOverLimitCanShrink(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		s := scopeOf[board](p, "a")
		p.put(t, s.Key(), `{"title":"`+strings.Repeat("x", 3000)+`"}`, 0)
		_, err := s.PatchState(t.Context(), pawl.Patch{"title": strings.Repeat("x", 3000), "count": 1000})
		var e *pawl.LimitError
		require.ErrorAs(t, err, &e)
		_, err = s.PatchState(t.Context(), pawl.Patch{"title": "x"})
		require.NoError(t, err)
		requireState(t, p, s, 2, board{Title: "x"})
	}, func(c *pawl.Config) { c.MaxDoc = 1000 })
}

// A state that is nested more than 100 levels deep is refused, on every path and for every verb.
// Proves SCOPE-11.
func TestDepthLimit(t *testing.T) {
	nested := func(depth int) any {
		var v any = "x"
		for range depth {
			v = []any{v}
		}
		return v
	}
	cyclic := map[string]any{}
	cyclic["self"] = cyclic
	onPaths(t, func(t *testing.T, p path) {
		for i, v := range []any{nested(pawl.MaxDepth), nested(10_000), cyclic} {
			for name, m := range map[string]pawl.Mutation{
				"Patch": pawl.Patch{"v": v}, "Set": pawl.Set{State: pawl.Doc{"v": v}}, "Push": pawl.Push{Field: "v", Values: []any{v}},
				"SetRecord": pawl.SetRecord{Field: "", Key: "v", Value: v}, "Atomic": pawl.Atomic(func(_ context.Context, d *pawl.Doc) error { (*d)["v"] = v; return nil }),
			} {
				s := scopeOf[pawl.Doc](p, name)
				_, err := s.Apply(t.Context(), m)
				var e *pawl.LimitError
				require.ErrorAs(t, err, &e, "%d %s", i, name)
				require.Equal(t, "depth", e.What)
				require.Equal(t, pawl.MaxDepth, e.Limit)
				requireAbsent(t, p, s)
			}
		}
		s := scopeOf[pawl.Doc](p, "fits")
		_, err := s.PatchState(t.Context(), pawl.Patch{"v": nested(pawl.MaxDepth - 1)})
		require.NoError(t, err)
		got, err := s.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, pawl.Doc{"v": nested(pawl.MaxDepth - 1)}, got)
	})
}

// A value that contains itself is refused without visiting every path through it. Proves LOCK-5,
// SCOPE-11.
func TestCyclicValueIsRefusedAtOnce(t *testing.T) {
	list := []any{nil, nil}
	list[0], list[1] = list, list // visiting every path would take 2^100 steps
	type node struct {
		Kids []*node `json:"kids"`
		Any  any     `json:"any"`
	}
	tree := &node{}
	tree.Kids = []*node{tree, tree}
	bubble(t, pawl.Config{Store: memory.New()}, func(t *testing.T, rt *pawl.Runtime) {
		var limit *pawl.LimitError
		_, err := pawl.Memory[pawl.Doc](rt, "a").PatchState(t.Context(), pawl.Patch{"list": list})
		assert.ErrorAs(t, err, &limit)
		_, err = pawl.Memory[node](rt, "b").SetState(t.Context(), *tree)
		assert.ErrorAs(t, err, &limit)
		_, err = pawl.Session[node](rt, "b").AtomicState(t.Context(), func(_ context.Context, n *node) error { *n = *tree; return nil })
		assert.ErrorAs(t, err, &limit)
	})
}

// A document that the store rejects for good is reported with the store's reason. A retry is not
// advised, and the cached version is not used again. Proves SCOPE-11, SCOPE-21.
func TestStoreRefusesCommit(t *testing.T) {
	p := paths(t)[1]
	s := scopeOf[board](p, "a")
	p.store.OnCommit(func(context.Context, persist.Commit) error {
		return fmt.Errorf("malformed commit: %w", persist.ErrNotApplied)
	})
	transact := func() error {
		return pawl.Transact(t.Context(), p.rt, func(ctx context.Context, tx *pawl.Tx) error {
			_, err := s.In(tx).IncState(ctx, "count", 1)
			return err
		})
	}
	_, err := s.IncState(t.Context(), "count", 1)
	for _, err := range []error{err, transact()} {
		var rejected *pawl.FieldError
		require.ErrorAs(t, err, &rejected)
		require.Equal(t, s.Key(), rejected.Scope)
		require.Contains(t, rejected.Reason, "malformed commit")
		require.False(t, pawl.IsRetryable(err))
		require.False(t, pawl.OutcomeUnknown(err))
	}
	p.store.OnCommit(nil)
	requireAbsent(t, p, s)
	require.NoError(t, transact())
}

// In a shared commit only the mutations whose documents the store rejects fail. The others commit in
// their order, and answers that wrote nothing rest on committed state. Proves CAS-4, SCOPE-21.
func TestRejectedDocumentsInASharedCommit(t *testing.T) {
	for _, writers := range []int{2, 3, 17, 64} {
		for name, bad := range map[string]func(i int) bool{
			"one": func(i int) bool { return i == writers/2 }, "first": func(i int) bool { return i == 0 }, "last": func(i int) bool { return i == writers-1 },
			"all": func(int) bool { return true }, "every other": func(i int) bool { return i%2 == 1 },
		} {
			t.Run(fmt.Sprint(writers, " ", name), func(t *testing.T) {
				persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
					var want []string
					open, entered := gate(h)
					first := push(s, "first")
					<-entered
					want = append(want, "first")
					var all sync.WaitGroup
					for i := range writers {
						entry := fmt.Sprint(i)
						if bad(i) {
							entry = "unfit " + entry
						} else {
							want = append(want, entry)
						}
						all.Go(func() {
							var err error
							if i%3 == 0 {
								_, err = s.AtomicState(context.Background(), func(_ context.Context, c *counts) error {
									c.Done = append(c.Done, entry)
									return nil
								})
							} else {
								_, err = s.PushState(context.Background(), "done", entry)
							}
							if !bad(i) {
								assert.NoError(t, err)
								return
							}
							var rejected *pawl.FieldError
							assert.ErrorAs(t, err, &rejected)
							assert.Contains(t, fmt.Sprint(err), "unfit for this store")
						})
						synctest.Wait()
						all.Go(func() { // an answer that writes nothing, between the others
							_, err := s.IncState(context.Background(), "n", 0)
							assert.NoError(t, err)
						})
						synctest.Wait()
					}
					h.Around(func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
						if strings.Contains(string(c.Writes[0].Doc), "unfit") {
							return time.Time{}, fmt.Errorf("%w: unfit for this store", persist.ErrNotApplied)
						}
						return commit()
					})
					open()
					require.NoError(t, <-first)
					all.Wait()
					snap, err := s.Snapshot(t.Context())
					require.NoError(t, err)
					require.Equal(t, want, snap.ReadOnly().Done)
					require.EqualValues(t, len(want), snap.Version)
				})
			})
		}
	}
}

// A document that one store rejects and others keep affects no other writer. PostgreSQL writes
// exponents out, and limits the digits of a whole document. Proves CAS-4, SCOPE-21.
func TestDocumentThatOneStoreRejects(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		s := scopeOf[pawl.Doc](p, "a")
		numbers := slices.Repeat([]any{json.Number("1e4000")}, 200)
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() { _, err := s.IncState(t.Context(), "n", 1); assert.NoError(t, err) })
			all.Go(func() {
				_, err := s.PatchState(t.Context(), pawl.Patch{"numbers": numbers})
				if p.name != "postgres store" {
					assert.NoError(t, err)
					return
				}
				var rejected *pawl.FieldError
				assert.ErrorAs(t, err, &rejected)
				assert.False(t, pawl.IsRetryable(err))
			})
		}
		all.Wait()
		got, err := s.State(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 20, got["n"])
	})
}

// A store that fails or ends the goroutine while the members of a rejected commit are committed in
// halves leaves no caller without an answer. Proves CAS-4.
func TestFailureDuringIsolation(t *testing.T) {
	for name, failure := range map[string]func() error{
		"outage": func() error { return errors.Join(persist.ErrNotApplied, persist.ErrUnavailable) },
		"doubt":  func() error { return errAnswerLost },
		"Goexit": func() error { runtime.Goexit(); return nil },
		"panic":  func() error { panic("a bug in the store") },
	} {
		t.Run(name, func(t *testing.T) {
			retry := pawl.Retry{Within: time.Second}
			persisted(t, pawl.Config{Retry: retry}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
				open, entered := gate(h)
				first := push(s, "first")
				<-entered
				var answers []<-chan error
				for i := range 8 {
					answers = append(answers, push(s, fmt.Sprint(i)))
				}
				synctest.Wait()
				commits := 0
				h.Around(func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
					switch commits++; {
					case commits <= 2:
						return time.Time{}, persist.ErrNotApplied // the whole batch, and carefully
					case commits == 3:
						return time.Time{}, failure()
					}
					return commit()
				})
				open()
				require.NoError(t, <-first)
				failed := 0
				for _, a := range answers {
					if err := <-a; err != nil {
						failed++
					}
				}
				if name == "doubt" {
					require.Zero(t, failed, "the commit in doubt was sent again")
				} else {
					require.Equal(t, 4, failed, "the half that was sent")
				}
				_, err := s.IncState(t.Context(), "n", 1)
				require.NoError(t, err)
			})
		})
	}
}

// listed is a kind that tests list by label and by due time.
var listed = pawl.Kind[listedState]{Name: "listed", Label: "status", Due: "at"}

type listedState struct {
	Status string    `json:"status"`
	At     time.Time `json:"at"`
}

// A query has at most MaxLabels labels, on every store. List and Take with one more return
// *LimitError.
//
// Proves SCOPE-11.
func TestLabelsOfAQueryAreLimited(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		_, err := listed.Scope(p.rt, "a").SetState(t.Context(), listedState{Status: "open"})
		require.NoError(t, err)
		for _, count := range []int{pawl.MaxLabels, pawl.MaxLabels + 1, 70_000} {
			q := pawl.Query{Labels: make([]string, count)}
			for i := range q.Labels {
				q.Labels[i] = fmt.Sprint(i)
			}
			q.Labels[count-1] = "open"
			ids, listErr := 0, error(nil)
			for _, err := range listed.List(t.Context(), p.rt, q) {
				if listErr = err; err == nil {
					ids++
				}
			}
			taken, takeErr := listed.Take(t.Context(), p.rt, q)
			for _, err := range []error{listErr, takeErr} {
				if count <= pawl.MaxLabels {
					require.NoError(t, err)
					continue
				}
				var limit *pawl.LimitError
				require.ErrorAs(t, err, &limit)
				require.Equal(t, &pawl.LimitError{Scope: pawl.Key{Kind: listed.Name}, What: "labels", Limit: pawl.MaxLabels, Got: count, Reason: "in one query"}, limit)
			}
			if count <= pawl.MaxLabels {
				require.Equal(t, 1, ids)
				require.Len(t, taken, 1)
				require.NoError(t, taken[0].Lease.Release(t.Context()))
			}
		}
	})
}
