package pawl_test

import (
	"context"
	"errors"
	"math"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

func openOn(t *testing.T, store persist.Store) *pawl.Runtime {
	rt, err := pawl.Open(pawl.Config{Store: store})
	require.NoError(t, err)
	return rt
}

// That a verb was not refused tells something of the state: an error after it rests on that.
//
// Proves TX-2.
func TestErrorAfterAConditionalVerbIsConfirmed(t *testing.T) {
	store := memory.New()
	rt, other := openOn(t, store), openOn(t, store)
	name := purses.Scope(rt, "name")
	_, err := name.State(t.Context()) // this process has seen that it is absent
	require.NoError(t, err)
	seed(t, purses.Scope(other, "name"), purse{Balance: 1}) // it is taken from here on
	free := errors.New("the name is free")
	err = pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		if _, err := name.In(tx).SetState(ctx, purse{}, pawl.IfAbsent()); err != nil {
			return err
		}
		return free // a dry run
	})
	runtime.KeepAlive(name)
	require.ErrorIs(t, err, pawl.ErrExists)
}

// What a joined part learned before it was undone is tested by the commit all the same.
//
// Proves TX-2.
func TestUndoneVerbsWereReads(t *testing.T) {
	store := memory.New()
	rt, other := openOn(t, store), openOn(t, store)
	name := purses.Scope(rt, "name")
	_, err := name.State(t.Context())
	require.NoError(t, err)
	seed(t, purses.Scope(other, "name"), purse{Balance: 1})
	dry := errors.New("dry run")
	err = pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		err := pawl.Transact(ctx, tx, func(ctx context.Context, tx *pawl.Tx) error {
			if _, err := name.In(tx).SetState(ctx, purse{}, pawl.IfAbsent()); err != nil {
				return err
			}
			return dry
		})
		verdict := "taken"
		if errors.Is(err, dry) {
			verdict = "free"
		} else if !errors.Is(err, pawl.ErrExists) {
			return err
		}
		_, err = purses.Scope(tx, "report").SetStateRecord(ctx, "notes", "name", verdict)
		return err
	})
	require.NoError(t, err)
	runtime.KeepAlive(name)
	s, err := purses.Scope(rt, "report").State(t.Context())
	require.NoError(t, err)
	require.Equal(t, "taken", s.Notes["name"])
}

// lateReader lets one Load return late.
type lateReader struct {
	*memory.Store
	after atomic.Pointer[func()]
}

func (s *lateReader) Load(ctx context.Context, k persist.Key) (persist.Record, error) {
	r, err := s.Store.Load(ctx, k)
	if f := s.after.Swap(nil); f != nil {
		(*f)()
	}
	return r, err
}

// What another reader of this process brought back late is no proof that it is current.
//
// Proves CAS-4.
func TestLateReaderIsNoProof(t *testing.T) {
	store := &lateReader{Store: memory.New()}
	rt, other := openOn(t, store), openOn(t, store.Store)
	a := purses.Scope(rt, "a")
	seed(t, a, purse{Balance: 1}) // v1
	set := func(n int64) {
		_, err := purses.Scope(other, "a").SetState(t.Context(), purse{Balance: n})
		require.NoError(t, err)
	}
	set(10) // v2
	loaded, goOn, read := make(chan struct{}), make(chan struct{}), make(chan struct{})
	f := func() { close(loaded); <-goOn }
	store.after.Store(&f)
	go func() { defer close(read); _, _ = a.Snapshot(context.Background()) }() // reads v2, and is slow to say so
	<-loaded
	set(1) // v3: from now on, and all through the transaction, the balance is 1
	err := pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		_, err := a.In(tx).PatchState(ctx, pawl.Patch{"balance": 10})
		if tx.Attempt() == 1 {
			close(goOn)
			<-read
		}
		return err
	})
	require.NoError(t, err)
	s, err := a.State(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 10, s.Balance, "Transact acknowledged it")
}

// A transaction that was accepted before Close may commit.
//
// Proves SCOPE-18.
func TestCloseLetsTransactionsFinish(t *testing.T) {
	rt := openOn(t, memory.New())
	a := purses.Scope(rt, "a")
	inside, goOn, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		done <- pawl.Transact(context.Background(), rt, func(ctx context.Context, tx *pawl.Tx) error {
			_, err := a.In(tx).IncState(ctx, "balance", 1)
			close(inside)
			<-goOn
			return err
		})
	}()
	<-inside
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var busy *pawl.BusyError
	require.ErrorAs(t, rt.Close(ctx), &busy)
	close(goOn)
	require.NoError(t, rt.Close(t.Context()), "it waits")
	require.NoError(t, <-done, "it was accepted before Close")
}

// Close refuses transactions, also when it could not wait for something else.
//
// Proves SCOPE-18.
func TestTransactAfterAnUnfinishedClose(t *testing.T) {
	rt := openOn(t, memory.New())
	a, b := purses.Scope(rt, "a"), purses.Scope(rt, "b")
	seed(t, b, purse{Balance: 1})
	inside, goOn, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := a.AtomicState(context.Background(), func(context.Context, *purse) error { close(inside); <-goOn; return nil })
		done <- err
	}()
	<-inside
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var busy *pawl.BusyError
	require.ErrorAs(t, rt.Close(ctx), &busy)
	defer func() { close(goOn); <-done }()
	_, err := b.State(t.Context())
	require.ErrorIs(t, err, pawl.ErrClosed)
	ran := false
	err = pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		ran = true
		_, err := b.In(tx).State(ctx)
		return err
	})
	require.ErrorIs(t, err, pawl.ErrClosed)
	require.False(t, ran)
}

// A callback that ends its goroutine does not keep Close from returning.
//
// Proves TX-5.
func TestGoexitInALateCallback(t *testing.T) {
	store := &tap{Store: memory.New()}
	rt := openOn(t, store)
	a := purses.Scope(rt, "a")
	seed(t, a, purse{})
	entered, release := store.hold()
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-entered; cancel() }()
	second := make(chan struct{})
	err := pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
		tx.AfterCommit(func() { runtime.Goexit() })
		tx.AfterCommit(func() { close(second) })
		_, err := a.In(tx).IncState(ctx, "balance", 1)
		return err
	})
	requireLeft(t, err, pawl.PhaseCommitting, context.Canceled)
	release()
	limit, stop := context.WithTimeout(t.Context(), 2*time.Second)
	defer stop()
	require.NoError(t, rt.Close(limit))
}

// The longest budget there is does not overflow.
func TestTransactWithAnEndlessBudget(t *testing.T) {
	store := &tap{Store: memory.New()}
	rt := openOn(t, store)
	store.onCommit(func(context.Context, persist.Commit) error { time.Sleep(50 * time.Millisecond); return nil })
	endless := pawl.WithRetry(pawl.Retry{Within: math.MaxInt64})
	_, err := purses.Scope(rt, "a").IncState(t.Context(), "balance", 1, endless)
	require.NoError(t, err)
	err = pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		_, err := purses.Scope(tx, "a").IncState(ctx, "balance", 1)
		return err
	}, endless)
	require.NoError(t, err)
}

// slowContext is a context whose Err takes its time when asked the second time.
type slowContext struct {
	context.Context
	asked atomic.Int32
	at    func()
}

func (c *slowContext) Err() error {
	if c.asked.Add(1) == 2 {
		c.at()
	}
	return c.Context.Err()
}

// A verb that comes too late is refused.
//
// Proves TX-1.
func TestVerbInFlightWhenTheFunctionReturns(t *testing.T) {
	rt := openOn(t, memory.New())
	a := purses.Scope(rt, "a")
	checked, over, verb := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	err := pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		go func() {
			slow := &slowContext{Context: context.Background(), at: func() { close(checked); <-over }}
			_, err := a.In(tx).IncState(slow, "balance", 1)
			verb <- err
		}()
		<-checked
		return nil
	})
	require.NoError(t, err)
	close(over)
	require.ErrorIs(t, <-verb, pawl.ErrClosed, "it came too late, so it must not be acknowledged")
}

// A function that starts while a joined part is undone races with nobody.
func TestAtomicWhileAJoinedPartIsUndone(t *testing.T) {
	rt := openOn(t, memory.New())
	err := pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		a := purses.Scope(tx, "a")
		_, err := a.IncState(ctx, "balance", 1)
		require.NoError(t, err)
		done := make(chan struct{})
		_ = pawl.Transact(ctx, tx, func(ctx context.Context, tx *pawl.Tx) error {
			go func() {
				defer close(done)
				_, _ = a.AtomicState(ctx, func(context.Context, *purse) error { time.Sleep(50 * time.Millisecond); return nil })
			}()
			time.Sleep(20 * time.Millisecond)
			return errPoor
		})
		<-done
		return nil
	})
	require.NoError(t, err)
}

// After the commit a data verb's Snapshot shows what was committed.
//
// Proves CAS-4.
func TestSnapshotOfADataVerbAfterTheCommit(t *testing.T) {
	store := memory.New()
	rt, other := openOn(t, store), openOn(t, store)
	a := purses.Scope(rt, "a")
	seed(t, a, purse{Balance: 1})
	_, err := purses.Scope(other, "a").IncState(t.Context(), "balance", 100) // rt does not know
	require.NoError(t, err)
	var snap pawl.Snapshot[purse]
	var told int64
	err = pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) (err error) {
		snap, err = a.In(tx).IncState(ctx, "balance", 1)
		tx.AfterCommit(func() { told = snap.State().Balance })
		return err
	})
	require.NoError(t, err)
	now, err := a.State(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 102, now.Balance)
	require.EqualValues(t, now.Balance, told, "what the callback was told was never committed")
}

// An error that could not be confirmed, because the caller left, is no answer.
//
// Proves TX-2.
func TestErrorOfACallerWhoLeft(t *testing.T) {
	store := memory.New()
	rt, other := openOn(t, store), openOn(t, store)
	a := purses.Scope(rt, "a")
	seed(t, a, purse{Balance: 1})
	_, err := purses.Scope(other, "a").IncState(t.Context(), "balance", 100)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	err = pawl.Transact(ctx, rt, func(ctx context.Context, tx *pawl.Tx) error {
		err := pay(ctx, tx, "a", "b", 10)
		cancel()
		return err
	})
	require.NotErrorIs(t, err, errPoor, "there was enough all the time")
	requireLeft(t, err, pawl.PhaseQueued, context.Canceled)
}

// A scope can be read inside its own mutator, in a transaction as outside.
func TestReadingInsideAtomicStateInATransaction(t *testing.T) {
	rt := openOn(t, memory.New())
	a := purses.Scope(rt, "a")
	seed(t, a, purse{Balance: 1})
	_, err := a.AtomicState(t.Context(), func(ctx context.Context, p *purse) error {
		_, err := a.State(ctx)
		return err
	})
	require.NoError(t, err, "outside Transact reading is no mutation")
	err = pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		_, err := a.In(tx).AtomicState(ctx, func(ctx context.Context, p *purse) error {
			_, err := a.In(tx).State(ctx)
			return err
		})
		return err
	})
	require.NoError(t, err)
}
