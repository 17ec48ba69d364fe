package pawl_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// hooked is a store whose commits and loads pass through functions of the test.
type hooked struct {
	*memory.Store
	onCommit func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error)
	onLoad   func()
	commits  atomic.Int32
	loads    atomic.Int32
}

func (h *hooked) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	h.commits.Add(1)
	commit := func() (time.Time, error) { return h.Store.Commit(ctx, c) }
	if h.onCommit == nil {
		return commit()
	}
	return h.onCommit(c, commit)
}

func (h *hooked) Load(ctx context.Context, k persist.Key) (persist.Record, error) {
	h.loads.Add(1)
	if h.onLoad != nil {
		h.onLoad()
	}
	return h.Store.Load(ctx, k)
}

// decode returns the document of a record as a T.
func decode[T any](t testing.TB, r persist.Record) (state T) {
	t.Helper()
	require.NoError(t, json.Unmarshal(r.Doc, &state))
	return state
}

func encode(t testing.TB, state any) json.RawMessage {
	t.Helper()
	b, err := json.Marshal(state)
	require.NoError(t, err)
	return b
}

// foreign writes to the store behind the runtime's back, as another process would: it adds to n.
func (h *hooked) foreign(t testing.TB, key pawl.Key, n int) {
	t.Helper()
	r, err := h.Store.Load(context.Background(), key)
	w := persist.Write{Key: key, Expected: r.Version, Version: r.Version + 1}
	var doc counts
	if err == nil {
		doc = decode[counts](t, r)
	}
	doc.N += n
	w.Doc = encode(t, doc)
	_, err = h.Store.Commit(context.Background(), persist.Commit{ID: fmt.Sprintf("foreign.%d", r.Version+1), Writes: []persist.Write{w}})
	require.NoError(t, err)
}

func persisted(t *testing.T, c pawl.Config, fn func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts])) {
	t.Helper()
	h := &hooked{Store: memory.New()}
	c.Store = h
	bubble(t, c, func(t *testing.T, rt *pawl.Runtime) { fn(t, h, rt, pawl.Session[counts](rt, "a")) })
}

// Proves CAS-1.
func TestConflictRunsAgainOnTheWinner(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
		var at []time.Time
		h.onCommit = func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			at = append(at, time.Now())
			if len(at) <= 6 {
				h.foreign(t, s.Key(), 100) // somebody is always faster
			}
			return commit()
		}
		var saw []int
		snap, err := s.AtomicState(t.Context(), func(_ context.Context, b *counts) error {
			saw = append(saw, b.N)
			b.N++
			return nil
		})
		require.NoError(t, err)
		assert.Equal(t, []int{0, 100, 200, 300, 400, 500, 600}, saw, "each run sees the state that won")
		assert.Equal(t, 601, snap.ReadOnly().N)
		assert.EqualValues(t, 7, snap.Version)
		for i := 1; i < len(at); i++ {
			limit := min(5*time.Millisecond<<(i-1), 500*time.Millisecond)
			assert.LessOrEqual(t, at[i].Sub(at[i-1]), limit, "delay %d", i)
		}
		assert.Positive(t, at[6].Sub(at[0]), "it backs off")
	})
}

// Proves CAS-1.
func TestBackoffIsFullJitterAndGrows(t *testing.T) {
	const runs, attempts = 200, 10
	longest := make([]time.Duration, attempts)
	shortest := make([]time.Duration, attempts)
	for i := range shortest {
		shortest[i] = time.Hour
	}
	for range runs {
		persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
			var last time.Time
			n := 0
			h.onCommit = func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
				if n > 0 {
					d := time.Since(last)
					longest[n-1], shortest[n-1] = max(longest[n-1], d), min(shortest[n-1], d)
				}
				if last, n = time.Now(), n+1; n <= attempts {
					h.foreign(t, s.Key(), 1)
				}
				return commit()
			}
			_, err := s.IncState(t.Context(), "n", 1)
			require.NoError(t, err)
		})
	}
	for i := range attempts {
		limit := min(5*time.Millisecond<<i, 500*time.Millisecond)
		assert.LessOrEqual(t, longest[i], limit, "delay %d", i+1)
		assert.Greater(t, longest[i], limit/2, "delay %d uses its range", i+1)
		assert.Less(t, shortest[i], limit/4, "delay %d has full jitter", i+1)
	}
}

// Proves CAS-2, CAS-3.
func TestSpentRetryBudget(t *testing.T) {
	kind := pawl.Kind[counts]{Name: "job", Retry: pawl.Retry{Attempts: 4}}
	for _, c := range []struct {
		name   string
		config pawl.Config
		scope  func(*pawl.Runtime) pawl.Scope[counts]
		opts   []pawl.Option
		want   int
	}{
		{"default", pawl.Config{}, func(rt *pawl.Runtime) pawl.Scope[counts] { return pawl.Session[counts](rt, "a") }, nil, 16},
		{"runtime", pawl.Config{Retry: pawl.Retry{Attempts: 3}}, func(rt *pawl.Runtime) pawl.Scope[counts] { return pawl.Session[counts](rt, "a") }, nil, 3},
		{"kind", pawl.Config{Retry: pawl.Retry{Attempts: 3}}, func(rt *pawl.Runtime) pawl.Scope[counts] { return kind.Scope(rt, "a") }, nil, 4},
		{"call", pawl.Config{}, func(rt *pawl.Runtime) pawl.Scope[counts] { return kind.Scope(rt, "a") }, []pawl.Option{pawl.WithRetry(pawl.Retry{Attempts: 5})}, 5},
		{"a single attempt", pawl.Config{}, func(rt *pawl.Runtime) pawl.Scope[counts] { return kind.Scope(rt, "a") }, []pawl.Option{pawl.WithRetry(pawl.Retry{Attempts: 1})}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			persisted(t, c.config, func(t *testing.T, h *hooked, rt *pawl.Runtime, _ pawl.Scope[counts]) {
				s := c.scope(rt)
				h.foreign(t, s.Key(), 100)
				h.onCommit = func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
					h.foreign(t, s.Key(), 100)
					return commit()
				}
				runs, start := 0, time.Now()
				_, err := s.AtomicState(t.Context(), func(_ context.Context, b *counts) error { runs++; b.N++; return nil }, c.opts...)
				var conflict *pawl.ConcurrentModificationError
				require.ErrorAs(t, err, &conflict)
				assert.Equal(t, pawl.ConcurrentModificationError{Scope: s.Key(), Expected: uint64(c.want), Actual: uint64(c.want) + 1, Attempts: c.want, Elapsed: time.Since(start)}, *conflict)
				assert.Equal(t, "CONCURRENT_MODIFICATION", pawl.Code(err))
				assert.Equal(t, 409, pawl.HTTPStatus(err))
				assert.True(t, pawl.IsRetryable(err))
				assert.False(t, pawl.OutcomeUnknown(err))
				assert.ErrorIs(t, err, pawl.ErrConflict)
				assert.Equal(t, c.want, runs)
				b, err := s.State(t.Context())
				require.NoError(t, err)
				assert.Zero(t, b.N%100, "nothing of it was committed")
			})
		})
	}
}

// Proves CAS-2, CAS-3.
func TestRetryBudgetInTime(t *testing.T) {
	persisted(t, pawl.Config{Retry: pawl.Retry{Attempts: 1 << 20, Within: 2 * time.Second}}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
		h.onCommit = func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			h.foreign(t, s.Key(), 1)
			return commit()
		}
		start := time.Now()
		_, err := s.IncState(t.Context(), "n", 1)
		var conflict *pawl.ConcurrentModificationError
		require.ErrorAs(t, err, &conflict)
		assert.LessOrEqual(t, time.Since(start), 2*time.Second)
		assert.Greater(t, conflict.Attempts, 4)
	})
}

// Proves CAS-3.
func TestStaleCacheCostsNoAttempt(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
		_, err := s.IncState(t.Context(), "n", 1)
		require.NoError(t, err)
		h.foreign(t, s.Key(), 100)
		start := time.Now()
		snap, err := s.IncState(t.Context(), "n", 1, pawl.WithRetry(pawl.Retry{Attempts: 1}))
		require.NoError(t, err, "what this process remembered was old: that is a read, not a lost attempt")
		assert.Equal(t, 102, snap.ReadOnly().N)
		assert.Zero(t, time.Since(start), "and it does not wait")
	})
}

// gate holds commits until it is opened.
func (h *hooked) gate() (open func(), entered <-chan persist.Commit) {
	hold, in := make(chan struct{}), make(chan persist.Commit, 100)
	h.onCommit = func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
		in <- c
		<-hold
		return commit()
	}
	return sync.OnceFunc(func() { close(hold) }), in
}

// Proves CAS-4, CAS-5.
func TestWritersShareACommit(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
		open, entered := h.gate()
		first := push(s, "first")
		<-entered // its commit is under way: whoever comes now shares the next one
		want := []string{"first"}
		var answers []<-chan error
		versions := make([]uint64, 50)
		for i := range versions {
			name := fmt.Sprint(i)
			want = append(want, name)
			done := make(chan error, 1)
			answers = append(answers, done)
			go func() {
				snap, err := s.PushState(context.Background(), "done", name)
				versions[i] = snap.Version
				done <- err
			}()
			synctest.Wait()
		}
		open()
		require.NoError(t, <-first)
		for _, a := range answers {
			require.NoError(t, <-a)
		}
		assert.EqualValues(t, 2, h.commits.Load(), "one commit for the first, one for all the others")
		for i, v := range versions {
			assert.EqualValues(t, i+2, v, "each mutation has its own version, in submission order")
		}
		snap, err := s.Snapshot(t.Context())
		require.NoError(t, err)
		assert.Equal(t, want, snap.ReadOnly().Done)
		assert.EqualValues(t, 51, snap.Version)
	})
}

// Proves CAS-4.
func TestEveryAnswerWaitsForTheCommit(t *testing.T) {
	for _, loses := range []bool{false, true} {
		t.Run(fmt.Sprintf("loses=%v", loses), func(t *testing.T) {
			persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
				_, err := s.SetState(t.Context(), counts{N: 1})
				require.NoError(t, err)
				open, entered := h.gate()
				first := push(s, "first")
				<-entered
				boom := errors.New("boom")
				results := map[string]chan any{}
				submit := func(name string, fn func() error) {
					done := make(chan any, 1)
					results[name] = done
					go func() {
						defer func() {
							if v := recover(); v != nil {
								done <- v
							}
						}()
						done <- fn()
					}()
					synctest.Wait()
				}
				// All of these are computed on the uncommitted increment of the first one.
				submit("success", func() error { _, err := s.IncState(t.Context(), "n", 10); return err })
				submit("no-op", func() error {
					snap, err := s.PatchState(t.Context(), pawl.Patch{"n": 11})
					if err == nil && loses != (snap.ReadOnly().N == 11 && snap.Version > 4) {
						return fmt.Errorf("version %d, %+v", snap.Version, *snap.ReadOnly())
					}
					return err
				})
				submit("error", func() error {
					_, err := s.AtomicState(t.Context(), func(_ context.Context, b *counts) error {
						if b.N == 11 {
							return boom
						}
						return nil
					})
					return err
				})
				submit("panic", func() error {
					_, err := s.AtomicState(t.Context(), func(_ context.Context, b *counts) error {
						if b.N == 11 {
							panic(boom)
						}
						return nil
					})
					return err
				})
				submit("refusal", func() error { _, err := s.IncState(t.Context(), "n", 1, pawl.IfVersion(1)); return err })
				submit("last", func() error { _, err := s.IncState(t.Context(), "n", 100); return err })

				hold := make(chan struct{})
				second := make(chan struct{}, 10)
				h.onCommit = func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
					if len(second) == 0 && loses {
						h.foreign(t, s.Key(), 1000)
					}
					second <- struct{}{}
					<-hold
					return commit()
				}
				open()
				require.NoError(t, <-first)
				<-second
				synctest.Wait()
				for name, done := range results {
					assert.Empty(t, done, "%s was answered before the commit", name)
				}
				close(hold)
				synctest.Wait()
				assert.Equal(t, nil, <-results["success"])
				assert.Equal(t, nil, <-results["last"])
				assert.Equal(t, nil, <-results["no-op"])
				assert.ErrorIs(t, (<-results["refusal"]).(error), pawl.ErrConflict)
				b, err := s.State(t.Context())
				require.NoError(t, err)
				if loses {
					// n was 1011 when they ran again: the patch sets it to 11, and then error and panic see that.
					assert.Equal(t, 111, b.N)
				} else {
					assert.Equal(t, 111, b.N)
				}
				assert.ErrorIs(t, (<-results["error"]).(error), boom)
				assert.ErrorIs(t, (<-results["panic"]).(error), boom)
			})
		})
	}
}

// Proves CAS-4.
func TestAnswersThatWroteNothingAreConfirmed(t *testing.T) {
	boom := errors.New("boom")
	for name, verb := range map[string]func(s pawl.Scope[counts]) error{
		"no-op": func(s pawl.Scope[counts]) error {
			snap, err := s.PatchState(context.Background(), pawl.Patch{"n": 1})
			if err == nil && snap.Version != 3 {
				err = fmt.Errorf("version %d", snap.Version)
			}
			return err
		},
		"error": func(s pawl.Scope[counts]) error {
			_, err := s.AtomicState(context.Background(), func(_ context.Context, b *counts) error {
				if b.N == 1 {
					return boom
				}
				return nil
			})
			return err
		},
		"refusal": func(s pawl.Scope[counts]) error {
			_, err := s.PatchState(context.Background(), pawl.Patch{"n": 5}, pawl.IfVersion(2))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
				_, err := s.SetState(t.Context(), counts{N: 1})
				require.NoError(t, err)
				h.foreign(t, s.Key(), 100) // this process does not know
				assert.NoError(t, verb(s), "an answer about a state that is gone")
			})
		})
	}
}

// Proves CAS-9.
func TestCancelBeforeAndInsideACommit(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
		open, entered := h.gate()
		inCommit, leave := context.WithCancel(context.Background())
		committing := make(chan error, 1)
		go func() { _, err := s.PushState(inCommit, "done", "committing"); committing <- err }()
		<-entered
		waiting, leaveQueue := context.WithCancel(context.Background())
		queued := make(chan error, 1)
		go func() { _, err := s.PushState(waiting, "done", "queued"); queued <- err }()
		synctest.Wait()

		leaveQueue()
		var canceled *pawl.CanceledError
		require.ErrorAs(t, <-queued, &canceled)
		assert.Equal(t, pawl.PhaseQueued, canceled.Phase)
		leave()
		err := <-committing
		require.ErrorAs(t, err, &canceled)
		assert.Equal(t, pawl.PhaseCommitting, canceled.Phase)
		assert.True(t, pawl.OutcomeUnknown(err), "it may have landed")

		open()
		synctest.Wait()
		b, err := s.State(t.Context())
		require.NoError(t, err)
		assert.Equal(t, []string{"committing"}, b.Done, "what is in a commit goes on, what waited never runs")
	})
}

// Proves CAS-9.
func TestCancelledMutationIsNotComputedAgain(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
		ctx, leave := context.WithCancel(context.Background())
		left := make(chan struct{})
		h.onCommit = func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			h.onCommit = nil
			h.foreign(t, s.Key(), 100)
			leave()
			<-left
			return commit()
		}
		_, err := s.IncState(ctx, "n", 1)
		require.ErrorIs(t, err, context.Canceled)
		close(left)
		time.Sleep(time.Minute) // long enough for every backoff
		b, err := s.State(t.Context())
		require.NoError(t, err)
		assert.Equal(t, 100, b.N)
	})
}

// Proves CAS-10.
func TestPersistedScopeWithoutAStore(t *testing.T) {
	bubble(t, pawl.Config{}, func(t *testing.T, rt *pawl.Runtime) {
		for _, s := range []pawl.Scope[counts]{pawl.Request[counts](rt, "a"), pawl.Session[counts](rt, "a"), pawl.User[counts](rt, "a"), pawl.Org[counts](rt, "a"),
			pawl.Kind[counts]{Name: "job"}.Scope(rt, "a")} {
			_, err := s.IncState(t.Context(), "n", 1)
			assert.ErrorIs(t, err, pawl.ErrNoStore)
			_, err = s.State(t.Context())
			assert.ErrorIs(t, err, pawl.ErrNoStore)
		}
		_, err := pawl.Open(pawl.Config{Kinds: []pawl.AnyKind{pawl.Kind[counts]{Name: "job"}}})
		assert.ErrorIs(t, err, pawl.ErrNoStore, "a listed kind is found out at Open")
	})
}

// Proves CAS-11.
func TestPersistedScopesAreIndependent(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
		locked := make(chan struct{})
		h.onCommit = func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			switch c.Writes[0].ID {
			case "locked":
				<-locked
			case "rejected":
				return time.Time{}, fmt.Errorf("%w: not this one", persist.ErrNotApplied)
			}
			return commit()
		}
		hung := push(pawl.Session[counts](rt, "locked"), "x")
		start := time.Now()
		for i := range 20 {
			_, err := pawl.Session[counts](rt, "rejected").IncState(t.Context(), "n", 1)
			var unavailable *pawl.UnavailableError
			require.ErrorAs(t, err, &unavailable)
			assert.True(t, pawl.IsRetryable(err))
			snap, err := pawl.Session[counts](rt, "fine").IncState(t.Context(), "n", 1)
			require.NoError(t, err)
			assert.Equal(t, i+1, snap.ReadOnly().N)
		}
		assert.Zero(t, time.Since(start))
		close(locked)
		require.NoError(t, <-hung)
	})
}

// Proves CAS-7.
func TestLostAnswersAreSettledByTheCommitID(t *testing.T) {
	lost := errors.New("connection reset")
	for _, c := range []struct {
		name          string
		applied       bool // before the answer was lost
		foreign       bool // somebody wrote on top meanwhile
		runs, commits int32
		n             int
	}{
		{"applied", true, false, 1, 2, 1},
		{"not applied", false, false, 1, 2, 1},
		{"applied, then somebody else", true, true, 1, 2, 101},
		{"not applied, then somebody else", false, true, 2, 3, 101},
	} {
		t.Run(c.name, func(t *testing.T) {
			persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
				h.onCommit = func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
					h.onCommit = nil
					if c.applied {
						_, err := commit()
						require.NoError(t, err)
					}
					if c.foreign {
						h.foreign(t, s.Key(), 100)
					}
					return time.Time{}, lost
				}
				var runs int32
				_, err := s.AtomicState(t.Context(), func(_ context.Context, b *counts) error { runs++; b.N++; return nil })
				require.NoError(t, err)
				assert.Equal(t, c.runs, runs)
				assert.Equal(t, c.commits, h.commits.Load())
				b, _ := s.State(t.Context())
				assert.Equal(t, c.n, b.N)
			})
		})
	}
}

// Proves CAS-7.
func TestUnknownOutcomeWhenTheBudgetEnds(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *hooked, rt *pawl.Runtime, s pawl.Scope[counts]) {
		lost := errors.New("connection reset")
		h.onCommit = func(persist.Commit, func() (time.Time, error)) (time.Time, error) { return time.Time{}, lost }
		start := time.Now()
		_, err := s.IncState(t.Context(), "n", 1)
		assert.Equal(t, 30*time.Second, time.Since(start))
		var unknown *pawl.UnknownOutcomeError
		require.ErrorAs(t, err, &unknown)
		assert.ErrorIs(t, err, lost)
		assert.True(t, pawl.OutcomeUnknown(err))
		h.onCommit = nil
		snap, err := s.IncState(t.Context(), "n", 1)
		require.NoError(t, err, "work resumes")
		assert.Equal(t, 1, snap.ReadOnly().N)
	})
}

// A round takes in who comes while it is young, and then commits, however many more come while their functions run. Proves CAS-4.
func TestRoundIsNotForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHooked()
		s := pawl.Session[counts](openRuntime(t, pawl.Config{Store: h}), "a")
		var all sync.WaitGroup
		for range 400 {
			all.Go(func() {
				_, err := s.AtomicState(t.Context(), func(_ context.Context, c *counts) error {
					time.Sleep(5 * time.Millisecond) // which is not slow
					c.Done = append(c.Done, "x")
					return nil
				}, pawl.WithRetry(pawl.Retry{Within: time.Second}))
				assert.NoError(t, err)
			})
			time.Sleep(4900 * time.Microsecond)
		}
		all.Wait()
	})
}
