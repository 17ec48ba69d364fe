package pawl_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// A verb that comes too late does not get into the commit.
//
// Proves TX-1.
func TestLateVerbRacesWithNobody(t *testing.T) {
	store := &tap{Store: memory.New()}
	rt := openOn(t, store)
	a, b := purses.Scope(rt, "a"), purses.Scope(rt, "b")
	seed(t, a, purse{})
	seed(t, b, purse{})
	checked, over, verb := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	other := openOn(t, store.Store)
	var n atomic.Int32
	store.onCommit(func(ctx context.Context, c persist.Commit) error {
		if n.Add(1) == 1 {
			_, err := purses.Scope(other, "a").IncState(ctx, "balance", 100)
			close(over)
			time.Sleep(30 * time.Millisecond)
			return err
		}
		return nil
	})
	err := pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		go func() {
			slow := &slowContext{Context: context.Background(), at: func() { close(checked); <-over }}
			_, err := a.In(tx).IncState(slow, "balance", 7)
			verb <- err
		}()
		<-checked
		_, err := a.In(tx).IncState(ctx, "balance", 1)
		return err
	})
	require.NoError(t, err)
	got := <-verb
	s, err := a.State(t.Context())
	require.NoError(t, err)
	t.Log("the late verb said", got, "balance", s.Balance)
	require.ErrorIs(t, got, pawl.ErrClosed)
}

// badReader breaks when it is to read several records.
type badReader struct {
	*tap
	bad func()
}

func (s *badReader) LoadAll(ctx context.Context, keys []persist.Key) ([]persist.Record, error) {
	s.bad()
	return s.tap.LoadAll(ctx, keys)
}

// A store that panics or ends its goroutine while queues are held leaves them free.
func TestStoreBreaksInAReadOfSeveral(t *testing.T) {
	for name, bad := range map[string]func(){"panic": func() { panic("store") }, "exit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			store := &badReader{&tap{Store: memory.New()}, bad}
			rt, other := openOn(t, store), openOn(t, store.Store)
			b := purses.Scope(rt, "b")
			seed(t, b, purse{})
			done := make(chan any)
			go func() {
				defer func() { done <- recover() }()
				_ = pawl.Transact(context.Background(), rt, func(ctx context.Context, tx *pawl.Tx) error {
					s, err := b.In(tx).State(ctx)
					if err != nil {
						return err
					}
					_, err = purses.Scope(other, "b").IncState(context.Background(), "balance", 1)
					if err != nil {
						return err
					}
					_, err = b.In(tx).SetState(ctx, s)
					return err
				})
			}()
			t.Logf("%T", <-done)
			_, err := b.IncState(t.Context(), "balance", 1)
			require.NoError(t, err)
			require.NoError(t, rt.Close(t.Context()))
		})
	}
}

// Nor does one that does so in the commit.
func TestStoreBreaksInACommitOfSeveral(t *testing.T) {
	for name, bad := range map[string]func(){"panic": func() { panic("store") }, "exit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			store := &tap{Store: memory.New()}
			rt := openOn(t, store)
			a := purses.Scope(rt, "a")
			seed(t, a, purse{})
			store.onCommit(func(context.Context, persist.Commit) error { bad(); return nil })
			err := pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
				_, err := a.In(tx).IncState(ctx, "balance", 1)
				return err
			})
			require.ErrorIs(t, err, pawl.ErrUnknownOutcome)
			store.onCommit(nil)
			_, err = a.IncState(t.Context(), "balance", 1)
			require.NoError(t, err)
			require.NoError(t, rt.Close(t.Context()))
		})
	}
}

// Mutators inside that panic or exit leave nothing behind.
//
// Proves TX-1.
func TestMutatorsThatFailInATransaction(t *testing.T) {
	rt := openOn(t, memory.New())
	a := purses.Scope(rt, "a")
	seed(t, a, purse{Balance: 1})
	err := pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		func() {
			defer func() { require.NotNil(t, recover()) }()
			_, _ = a.In(tx).AtomicState(ctx, func(_ context.Context, p *purse) error { p.Balance = 77; panic("x") })
		}()
		_, err := a.In(tx).IncState(ctx, "balance", 1)
		if tx.Attempt() == 1 {
			_, err := a.IncState(context.Background(), "balance", 1)
			require.NoError(t, err)
		}
		return err
	})
	require.NoError(t, err)
	s, _ := a.State(t.Context())
	require.EqualValues(t, 3, s.Balance)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = pawl.Transact(context.Background(), rt, func(ctx context.Context, tx *pawl.Tx) error {
			if tx.Attempt() == 1 {
				_, _ = a.In(tx).State(ctx)
				_, _ = a.IncState(context.Background(), "balance", 1)
				return errPoor
			}
			_, err := a.In(tx).AtomicState(ctx, func(_ context.Context, p *purse) error { runtime.Goexit(); return nil })
			return err
		})
	}()
	<-done
	_, err = a.IncState(t.Context(), "balance", 1)
	require.NoError(t, err)
	require.NoError(t, rt.Close(t.Context()))
}

// Expiry is renewed in a transaction as outside.
//
// Proves SCOPE-7.
func TestTTLInATransaction(t *testing.T) {
	store := memory.New()
	rt, other := openOn(t, store), openOn(t, store)
	a := purses.Scope(rt, "a")
	_, err := a.SetState(t.Context(), purse{Balance: 1}, pawl.WithTTL(time.Hour))
	require.NoError(t, err)
	_, err = purses.Scope(other, "a").SetState(t.Context(), purse{Balance: 2}, pawl.WithTTL(time.Hour))
	require.NoError(t, err)
	require.NoError(t, pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		_ = pawl.Transact(ctx, tx, func(ctx context.Context, tx *pawl.Tx) error {
			_, _ = a.In(tx).PatchState(ctx, pawl.Patch{"balance": 1}, pawl.WithTTL(9*time.Hour))
			return errors.New("undo")
		})
		_, err := a.In(tx).PatchState(ctx, pawl.Patch{"balance": 2}, pawl.WithTTL(5*time.Hour))
		return err
	}))
	r, err := store.Load(t.Context(), a.Key())
	require.NoError(t, err)
	require.EqualValues(t, 2, r.Version)
	require.InDelta(t, 5*time.Hour, r.Expires.Sub(r.Now), float64(time.Minute))
}

// Containers that are collected in the middle are not missed.
func TestCollectionInATransaction(t *testing.T) {
	rt := openOn(t, memory.New())
	require.NoError(t, pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		_, err := purses.Scope(tx, "a").State(ctx)
		require.NoError(t, err)
		collect()
		if tx.Attempt() == 1 {
			_, err = purses.Scope(rt, "a").IncState(context.Background(), "balance", 1)
			require.NoError(t, err)
		}
		collect()
		_, err = purses.Scope(tx, "a").IncState(ctx, "balance", 1)
		return err
	}))
	s, err := purses.Scope(rt, "a").State(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, s.Balance)
}

// narrowPurse knows less than a purse.
type narrowPurse struct {
	Count int64 `json:"count"`
}

// Two types on one key, and fields that one of them does not know, survive a conflict.
//
// Proves SCOPE-8.
func TestTwoTypesInATransaction(t *testing.T) {
	store := &tap{Store: memory.New()}
	rt, other := openOn(t, store), openOn(t, store.Store)
	wide, narrow := pawl.Session[board](rt, "a"), pawl.Session[narrowPurse](rt, "a")
	seed(t, wide, board{Title: "t", Count: 1, Tags: []string{"x"}})
	_, err := pawl.Session[pawl.Doc](other, "a").PatchState(t.Context(), pawl.Patch{"extra": 5})
	require.NoError(t, err)
	require.NoError(t, pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		if _, err := narrow.In(tx).IncState(ctx, "count", 1); err != nil {
			return err
		}
		if _, err := wide.In(tx).PushState(ctx, "tags", "y"); err != nil {
			return err
		}
		if _, err := narrow.In(tx).IncState(ctx, "count", 1); err != nil {
			return err
		}
		_, err := wide.In(tx).PatchState(ctx, pawl.Patch{"title": "u"})
		return err
	}))
	d, err := pawl.Session[pawl.Doc](rt, "a").State(t.Context())
	require.NoError(t, err)
	require.Equal(t, pawl.Doc{"title": "u", "count": int64(3), "tags": []any{"x", "y"}, "notes": nil, "extra": int64(5)}, d)
	require.NoError(t, pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		if err := narrow.In(tx).Delete(ctx); err != nil {
			return err
		}
		_, err := narrow.In(tx).IncState(ctx, "count", 9, pawl.IfAbsent())
		return err
	}))
	d, err = pawl.Session[pawl.Doc](rt, "a").State(t.Context())
	require.NoError(t, err)
	require.Equal(t, pawl.Doc{"count": int64(9)}, d)
}
