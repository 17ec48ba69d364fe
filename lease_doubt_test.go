package pawl_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/stretchr/testify/require"
)

// An Acquire whose answer is lost takes the lease once and applies its mutation once.
//
// Proves STORE-13.
func TestAcquireWithLostAnswers(t *testing.T) {
	for _, landed := range []bool{true, false} {
		persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
			sent := 0
			h.Around(func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
				if sent++; sent > 2 {
					return commit()
				}
				if landed {
					_, _ = commit()
				}
				return time.Time{}, errAnswerLost
			})
			l, err := s.Acquire(t.Context(), pawl.WithMutation(pawl.Inc{Field: "n", By: 1}))
			require.NoError(t, err)
			require.EqualValues(t, 1, l.Token())
			r, err := h.Store.Load(t.Context(), s.Key())
			require.NoError(t, err)
			require.EqualValues(t, 1, r.Lease.Token)
			require.Equal(t, 1, decode[counts](t, r).N)
			_, err = s.IncState(l.Context(), "n", 1)
			require.NoError(t, err)
			require.NoError(t, l.Release(t.Context()))
		})
	}
	onStores(t, func(t *testing.T, p path) {
		rt := openRuntime(t, pawl.Config{Store: flaky{p.store.Store, 0.4}})
		s := ships.Scope(rt, "argo")
		for i := range 5 {
			err := s.Hold(t.Context(), func(ctx context.Context, l *pawl.Lease) error {
				_, err := s.IncState(ctx, "miles", 1)
				return err
			}, pawl.WaitForLease(), pawl.WithMutation(pawl.Inc{Field: "miles", By: 100}))
			require.NoError(t, err)
			require.Zero(t, p.record(t, s.Key()).Lease)
			state, err := s.State(t.Context())
			require.NoError(t, err)
			require.Equal(t, 101*(i+1), state.Miles)
		}
	})
}

// An Acquire in doubt stays in doubt when its repetition is refused because the lease is held. The
// first commit can still land when the lease is free, and counts once.
//
// Proves STORE-13, CAS-7.
func TestAcquireInDoubtWhileHeld(t *testing.T) {
	persisted(t, pawl.Config{Retry: pawl.Retry{Within: 5 * time.Second}}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		elsewhere := openAnother(t, h)
		held, err := pawl.Session[counts](elsewhere, "a").Acquire(t.Context())
		require.NoError(t, err)
		_, err = s.IncState(t.Context(), "n", 1) // now this process has seen the newest version, but not its holder
		require.NoError(t, err)
		var late func() (time.Time, error)
		refused := make(chan struct{}, 100)
		h.Around(func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			if len(c.Writes) == 0 || c.Writes[0].Acquire == nil {
				return commit()
			}
			if late == nil {
				late = commit // sent later, as if the network had delayed it
				return time.Time{}, errAnswerLost
			}
			at, err := commit()
			if err != nil {
				refused <- struct{}{}
			}
			return at, err
		})
		mine := acquire(s, pawl.WithMutation(pawl.Inc{Field: "n", By: 10}))
		<-refused
		require.NoError(t, held.Release(t.Context()))
		_, err = late()
		if err != nil {
			require.ErrorAs(t, err, new(*persist.Conflict))
		}
		got := <-mine
		require.NoError(t, got.err)
		r, err := h.Store.Load(t.Context(), s.Key())
		require.NoError(t, err)
		require.Equal(t, 11, decode[counts](t, r).N)
		require.Equal(t, got.lease.Token(), r.Lease.Token)
		require.NoError(t, got.lease.Release(t.Context()))

		// While the holder stays, the outcome is unknown.
		held, err = pawl.Session[counts](elsewhere, "a").Acquire(t.Context())
		require.NoError(t, err)
		_, err = s.IncState(t.Context(), "n", 1)
		require.NoError(t, err)
		late = nil
		_, err = s.Acquire(t.Context())
		require.True(t, pawl.OutcomeUnknown(err), err)
		require.NoError(t, held.Release(t.Context()))
		require.NoError(t, elsewhere.Close(t.Context()))
	})
}

// A commit under a lease is in doubt, and its repetition is refused because the lease is lost. The
// caller succeeds if the first commit landed, and otherwise gets ErrLeaseLost.
//
// Proves STORE-13, CAS-7.
func TestFencedCommitInDoubt(t *testing.T) {
	for name, landed := range map[string]bool{"landed": true, "not landed": false} {
		for _, how := range []string{"verb", "shared", "transaction"} {
			t.Run(how+", "+name, func(t *testing.T) {
				persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
					elsewhere := openAnother(t, h)
					l, err := pawl.Session[counts](rt, "lock").Acquire(t.Context())
					require.NoError(t, err)
					_, err = s.SetState(t.Context(), counts{})
					require.NoError(t, err)
					var other *pawl.Lease
					writes, entered, hold := 0, make(chan struct{}), make(chan struct{})
					h.Around(func(c persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
						if !slices.ContainsFunc(c.Writes, func(w persist.Write) bool { return w.Key == s.Key() }) {
							return commit()
						}
						writes++
						if how == "shared" && writes == 1 {
							close(entered)
							<-hold
						}
						if cut := how == "shared"; writes != 1 && !cut || writes != 2 && cut {
							return commit()
						}
						if landed {
							_, err := commit()
							require.NoError(t, err)
						}
						other = replaceHolder(t, elsewhere, "lock")
						return time.Time{}, errAnswerLost
					})
					ctx := context.WithoutCancel(l.Context())
					var beside <-chan error
					switch how {
					case "verb":
						_, err = s.IncState(ctx, "n", 1)
					case "shared":
						first := push(s, "first")
						<-entered // mutations submitted during this commit share the next one
						fenced := make(chan error, 1)
						go func() { _, err := s.IncState(ctx, "n", 1); fenced <- err }()
						synctest.Wait()
						beside = push(s, "beside")
						close(hold)
						require.NoError(t, <-first)
						err = <-fenced
					case "transaction":
						err = pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
							if _, err := pawl.Session[counts](tx, "z").IncState(ctx, "n", 1); err != nil {
								return err
							}
							_, err := s.In(tx).IncState(ctx, "n", 1)
							return err
						})
					}
					if beside != nil {
						require.NoError(t, <-beside, "a mutation without a lease must not be refused")
					}
					got, readErr := s.State(t.Context())
					require.NoError(t, readErr)
					if landed {
						require.NoError(t, err)
						require.Equal(t, 1, got.N)
					} else {
						require.ErrorIs(t, err, pawl.ErrLeaseLost)
						require.Equal(t, 0, got.N)
					}
					if beside != nil {
						require.Equal(t, []string{"first", "beside"}, got.Done)
					}
					require.NoError(t, other.Release(t.Context()))
					require.NoError(t, elsewhere.Close(t.Context()))
				})
			})
		}
	}
}

// A transaction that only releases a lease, and whose answer is lost, has an unknown outcome: a retry
// would find the lease lost. Proves CAS-7.
func TestReleaseInWithALostAnswer(t *testing.T) {
	persisted(t, pawl.Config{}, func(t *testing.T, h *stores.Tap, rt *pawl.Runtime, s pawl.Scope[counts]) {
		l, err := s.Acquire(t.Context())
		require.NoError(t, err)
		h.Around(func(_ persist.Commit, commit func() (time.Time, error)) (time.Time, error) {
			_, _ = commit()
			return time.Time{}, errAnswerLost
		})
		err = pawl.Transact(t.Context(), rt, func(_ context.Context, tx *pawl.Tx) error { return l.ReleaseIn(tx) })
		require.True(t, pawl.OutcomeUnknown(err), "%v", err)
		require.False(t, pawl.IsRetryable(err))
		r, err := h.Store.Load(t.Context(), s.Key())
		require.NoError(t, err)
		require.Zero(t, r.Lease.Token, "the release landed")
	})
}
