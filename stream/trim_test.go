package stream_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/stream"
)

// Trim removes the events below a version. The others keep their versions, and appends go on.
// Proves STREAM-6.
func TestTrim(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		ctx, d, other := t.Context(), open(), open()
		d.fill(t, "p", 6)
		for _, c := range []struct {
			before int64
			want   []int64
		}{{0, from(0, 6)}, {2, from(2, 6)}, {1, from(2, 6)}, {5, from(5, 6)}, {100, from(6, 6)}, {6, from(6, 6)}} {
			require.NoError(t, d.Trim(ctx, "p", c.before))
			require.Equal(t, c.want, versions(other.all(t, "p")))
			require.Equal(t, c.want, versions(collect(t, other.ReadAll(ctx, stream.AllQuery{}))))
			h, err := other.Head(ctx, "p")
			require.NoError(t, err)
			require.Equal(t, stream.Head{Last: 5, First: 6 - int64(len(c.want))}, h)
		}
		_, err := other.Append(ctx, "p", stream.Absent, packed{"x"})
		require.Equal(t, stream.ConcurrencyError{Stream: "p", Expected: -1, Last: 5}, concurrency(t, err))
		made, err := other.Append(ctx, "p", stream.At(5), packed{"x"})
		require.NoError(t, err)
		require.EqualValues(t, 6, made[0].Version)
		require.Equal(t, []int64{6}, versions(d.all(t, "p")))
		last, err := d.Last(ctx, "p", 5)
		require.NoError(t, err)
		require.Equal(t, []int64{6}, versions(last))
	})
}

// Trim and appends of several processes do not disturb each other. Proves STREAM-1.
func TestTrimBesideAppends(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		d, other, n := open(patient), open(patient), testkit.Times(40, 15)
		var all sync.WaitGroup
		all.Go(func() {
			for i := range n {
				if _, err := other.Append(context.Background(), "p", stream.Any, moved{"w", i}, moved{"w", i}); err != nil {
					t.Error(err)
					return
				}
			}
		})
		for i := range n {
			require.NoError(t, d.Trim(t.Context(), "p", int64(i)))
		}
		all.Wait()
		events := d.all(t, "p")
		h, err := d.Head(t.Context(), "p")
		require.NoError(t, err)
		require.EqualValues(t, 2*n-1, h.Last)
		require.Equal(t, from(h.First, int64(2*n)), versions(events))
	})
}

// DeleteStream deletes the events, the positions of reactions and the snapshots of a stream, and no
// others. A handler in progress loses its lease. Proves STREAM-6.
func TestDeleteStream(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		ctx, d, other := t.Context(), open(every10), open(every10, func(c *depotConfig) { c.Lease = time.Second })
		working := make(chan struct{})
		var lost error
		reacting(t, other, nil, func(ctx context.Context, del *stream.Delivery) error {
			if del.Stream != "p" || del.Version > 0 || lost != nil {
				return nil
			}
			close(working)
			<-ctx.Done()
			_, lost = other.Append(context.WithoutCancel(ctx), "made", stream.Any, packed{"x"})
			return lost
		})
		for _, name := range []string{"p", "p/x"} {
			d.fill(t, name, 12)
			_, _, err := stream.Load(ctx, d.Log, name, route)
			require.NoError(t, err)
		}
		ended, drained := make(chan struct{}), make(chan error, 1)
		go func() {
			_, err := other.Drain(context.Background())
			drained <- err
			close(ended)
		}()
		testkit.Receive(t, working)
		require.NoError(t, d.DeleteStream(ctx, "p"))
		require.NoError(t, testkit.Receive(t, drained))
		<-ended
		require.ErrorIs(t, lost, pawl.ErrLeaseLost)
		require.Empty(t, d.all(t, "made"))
		require.Empty(t, d.all(t, "p"))
		require.Len(t, d.all(t, "p/x"), 12)
		require.Nil(t, d.snapshotOf(t, "p"))
		for p, err := range d.Positions(ctx, stream.Filter{}) {
			require.NoError(t, err)
			require.Equal(t, "p/x", p.Stream)
		}
		made, err := d.Append(ctx, "p", stream.Absent, packed{"anew"})
		require.NoError(t, err)
		_, err = other.Drain(ctx)
		require.NoError(t, err)
		for p, err := range d.Positions(ctx, stream.Filter{Streams: []string{"p"}}) {
			require.NoError(t, err)
			require.EqualValues(t, 1, p.Next, "the new stream is handled from its first event %s", made[0].ID)
		}
	})
}

// Trim closes no books: CloseStream up to an event that Trim has removed closes them, or finds that
// events were appended after it. Proves STREAM-6.
func TestCloseAfterTrim(t *testing.T) {
	onDepots(t, func(t *testing.T, open func(...func(*depotConfig)) *depot) {
		ctx, d, a := t.Context(), open(), &archive{}
		d.fill(t, "p", 6)
		require.NoError(t, d.Trim(ctx, "p", 6))
		require.NoError(t, d.CloseStream(ctx, "p", stream.At(5), a.take))
		require.Equal(t, [][]stream.Event{nil}, a.books)
		_, err := d.Append(ctx, "p", stream.Any, packed{"x"})
		require.ErrorAs(t, err, new(*stream.ClosedError))

		d.fill(t, "q", 8)
		require.NoError(t, d.Trim(ctx, "q", 6))
		err = d.CloseStream(ctx, "q", stream.At(5), never(t), packed{"seed"})
		require.Equal(t, stream.ConcurrencyError{Stream: "q", Expected: 5, Last: 7}, concurrency(t, err))
	})
}
