package stream_test

import (
	"context"
	"errors"
	"iter"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/stream"
)

// reacting adds a reaction to the streams whose names start with p, with a handler.
func reacting(t testing.TB, d *depot, types []string, handle func(ctx context.Context, del *stream.Delivery) error) {
	t.Helper()
	require.NoError(t, d.React(stream.Reaction{
		Name: "follow", Source: regexp.MustCompile("^p"), Types: types, Handle: handle, MaxRetries: stream.NoRetries,
	}))
}

// requirePending asserts that CloseStream and Trim wait for a reaction at an event.
func requirePending(t testing.TB, d *depot, name string, next int64) (pending stream.PendingError) {
	t.Helper()
	before := texts(d.all(t, name))
	for _, err := range []error{d.Trim(context.Background(), name, d.last(t, name)), d.CloseStream(context.Background(), name, stream.Any, never(t))} {
		var p *stream.PendingError
		require.ErrorAs(t, err, &p)
		require.Equal(t, []any{name, "follow", next}, []any{p.Stream, p.Reaction, p.Next})
		require.Equal(t, "STREAM_PENDING", pawl.Code(err))
		require.Equal(t, 409, pawl.HTTPStatus(err))
		require.True(t, pawl.IsRetryable(err))
		pending = *p
	}
	require.Equal(t, before, texts(d.all(t, name)), "nothing was removed")
	h, err := d.Head(context.Background(), name)
	require.NoError(t, err)
	require.False(t, h.Closed, "a handler may have to append")
	return pending
}

// CloseStream and Trim return *PendingError while a reaction has events to handle, also if it was not
// told of them yet, and also in a process that does not run the reaction. Proves STREAM-6.
func TestCloseWaitsForReactions(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		ctx, d, elsewhere, a := t.Context(), open(), open(), &archive{}
		handled := 0
		reacting(t, d, []string{"moved"}, func(context.Context, *stream.Delivery) error { handled++; return nil })
		d.fill(t, "other", 2)
		_, err := d.Drain(ctx) // the store knows the reaction now
		require.NoError(t, err)
		d.fill(t, "p", 3)
		_, err = d.Append(ctx, "p", stream.Any, packed{"not wanted"})
		require.NoError(t, err)
		require.Zero(t, requirePending(t, d, "p", 0).Holder)
		requirePending(t, elsewhere, "p", 0)
		_, err = d.Drain(ctx)
		require.NoError(t, err)
		require.Equal(t, 3, handled)
		require.NoError(t, elsewhere.CloseStream(ctx, "p", stream.Any, a.take, moved{"seed", 1}))
		require.Len(t, a.books[0], 4)

		_, err = d.Drain(ctx)
		require.NoError(t, err)
		require.Equal(t, 4, handled, "the seed is handled")
		_, err = d.Append(ctx, "p", stream.Any, packed{"not wanted"})
		require.NoError(t, err)
		require.NoError(t, d.Trim(ctx, "p", d.last(t, "p")+1), "an event that the reaction does not want does not hold it up")
		require.NoError(t, d.CloseStream(ctx, "other", stream.Any, a.take), "the reaction does not match this stream")
	})
}

// CloseStream returns *PendingError while a reaction is at work on the stream. Proves STREAM-6.
func TestCloseWaitsForAHandler(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		ctx, d, elsewhere := t.Context(), open(), open(func(c *depotConfig) { c.runtime.Holder = "elsewhere" })
		working, release := make(chan struct{}, 2), make(chan struct{})
		goOn := sync.OnceFunc(func() { close(release) })
		defer goOn()
		reacting(t, elsewhere, nil, func(context.Context, *stream.Delivery) error {
			working <- struct{}{}
			<-release
			return nil
		})
		d.fill(t, "p", 2)
		drained := make(chan error, 1)
		go func() {
			_, err := elsewhere.Drain(context.Background())
			drained <- err
		}()
		testkit.Receive(t, working)
		pending := requirePending(t, d, "p", 0)
		require.Equal(t, "elsewhere", pending.Holder)
		require.ErrorIs(t, &pending, pawl.ErrHeld)
		require.Contains(t, pending.Error(), "held by elsewhere")
		goOn()
		require.NoError(t, testkit.Receive(t, drained))
		require.NoError(t, d.CloseStream(ctx, "p", stream.Any, nil))
	})
}

// CloseStream returns *PendingError with the reason while a reaction is blocked, and goes on once the
// reaction has caught up. Proves STREAM-6.
func TestCloseWaitsForABlockedReaction(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		ctx, d, elsewhere := t.Context(), open(), open()
		fail := errors.New("no ink")
		reacting(t, d, nil, func(context.Context, *stream.Delivery) error { return fail })
		d.fill(t, "p", 2)
		_, err := d.Drain(ctx)
		require.NoError(t, err)
		for _, any := range []*depot{d, elsewhere} {
			pending := requirePending(t, any, "p", 0)
			require.Equal(t, "no ink", pending.Blocked)
			require.NotErrorIs(t, &pending, pawl.ErrHeld)
			require.EqualError(t, &pending, `stream: reaction follow is at event 0 of "p", blocked: no ink`)
		}
		fail = nil
		n, err := elsewhere.Unblock(ctx, stream.Filter{Streams: []string{"p"}})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		_, err = d.Drain(ctx)
		require.NoError(t, err)
		require.NoError(t, elsewhere.CloseStream(ctx, "p", stream.Any, nil))
		require.Empty(t, d.all(t, "p"))
	})
}

// A reaction whose position cannot be read may have handled nothing: CloseStream and Trim wait for it.
// Forget and DeleteStream remove its position. Proves STREAM-6.
func TestUnreadablePosition(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		ctx, d := t.Context(), open()
		reacting(t, d, nil, func(context.Context, *stream.Delivery) error { return nil })
		rt, err := pawl.Open(pawl.Config{Store: d.store})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, rt.Close(context.Background())) })
		damage := func(name string, doc map[string]any) {
			d.fill(t, name, 2)
			_, err := d.Drain(ctx)
			require.NoError(t, err)
			damaged := pawl.Kind[map[string]any]{Name: "stream.position"}.Scope(rt, name+"/follow")
			_, err = damaged.SetState(ctx, doc, pawl.IfExists())
			require.NoError(t, err)
		}
		damage("p", map[string]any{"reaction": "follow", "stream": "p", "next": "?"})
		damage("p/q", map[string]any{"next": 2})
		require.Contains(t, requirePending(t, d, "p", 0).Blocked, "cannot be read")
		require.NoError(t, d.DeleteStream(ctx, "p"))
		require.Contains(t, requirePending(t, d, "p/q", 0).Blocked, "cannot be read", "it belongs to another stream")
		require.NoError(t, d.Forget(ctx, "q/follow"), "there is no such reaction")
		requirePending(t, d, "p/q", 0)
		require.NoError(t, d.Forget(ctx, "follow"))
		page, err := d.store.List(ctx, persist.Query{Kind: "stream.position"})
		require.NoError(t, err)
		require.Empty(t, page.Records)
	})
}

// A reaction gets an event between the first test of CloseStream and its guard. The guard is taken
// back, so that the handler can append. Proves STREAM-6.
func TestReactionBehindTheGuard(t *testing.T) {
	onTaps(t, func(t *testing.T, d *depot, tap *meter, other func() *depot) {
		ctx, elsewhere, a := t.Context(), other(), &archive{}
		reacting(t, elsewhere, []string{"packed"}, func(ctx context.Context, del *stream.Delivery) error {
			_, err := elsewhere.Append(ctx, del.Stream, stream.Any, moved{"reaction", 1})
			return err
		})
		d.fill(t, "p", 3)
		_, err := elsewhere.Drain(ctx)
		require.NoError(t, err)
		var once sync.Once
		tap.OnCommit(func(context.Context, persist.Commit) error {
			once.Do(func() {
				_, err := elsewhere.Append(ctx, "p", stream.Any, packed{"x"})
				require.NoError(t, err)
			})
			return nil
		})
		var pending *stream.PendingError
		require.ErrorAs(t, d.CloseStream(ctx, "p", stream.Any, never(t)), &pending)
		require.EqualValues(t, 3, pending.Next)
		h, err := d.Head(ctx, "p")
		require.NoError(t, err)
		require.Equal(t, stream.Head{Last: 3}, h)
		_, err = elsewhere.Drain(ctx)
		require.NoError(t, err)
		require.NoError(t, d.CloseStream(ctx, "p", stream.Any, a.take))
		require.Equal(t, []int64{0, 1, 2, 3, 4}, versions(a.books[0]))
	})
}

// A call of CloseStream that has seen the guard of another one, which then takes it back, returns a
// conflict: nothing is closed. Proves STREAM-6.
func TestCloseWhoseGuardIsTakenBack(t *testing.T) {
	onTaps(t, func(t *testing.T, d *depot, tap *meter, other func() *depot) {
		ctx, elsewhere := context.Background(), other()
		reacting(t, elsewhere, nil, func(context.Context, *stream.Delivery) error { return nil })
		d.fill(t, "p", 3)
		_, err := elsewhere.Drain(ctx)
		require.NoError(t, err)
		inArchive, goOn, second := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		var commits atomic.Int64
		tap.OnCommit(func(context.Context, persist.Commit) error {
			switch commits.Add(1) {
			case 1: // the guard: an event comes before it
				_, err := elsewhere.Append(ctx, "p", stream.Any, packed{"late"})
				require.NoError(t, err)
			case 3: // the guard is taken back: the reaction has caught up meanwhile, and another call reads its archive
				_, err := elsewhere.Drain(ctx)
				require.NoError(t, err)
				go func() {
					second <- elsewhere.CloseStream(ctx, "p", stream.At(3), func(_ context.Context, events iter.Seq2[stream.Event, error]) error {
						for _, err := range events {
							assert.NoError(t, err)
						}
						close(inArchive)
						<-goOn
						return nil
					}, packed{"seed"})
				}()
				<-inArchive
			}
			return nil
		})
		err = d.CloseStream(ctx, "p", stream.Any, nil)
		require.ErrorAs(t, err, new(*stream.PendingError))
		require.NotErrorIs(t, err, pawl.ErrConflict)
		close(goOn)
		require.ErrorIs(t, testkit.Receive(t, second), pawl.ErrConflict)
		require.Len(t, d.all(t, "p"), 4, "nothing is closed")
		a := &archive{}
		require.NoError(t, d.CloseStream(ctx, "p", stream.At(3), a.take, packed{"seed"}))
		require.Len(t, a.books[0], 4)
	})
}
