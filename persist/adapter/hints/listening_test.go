package hints

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
)

// Watch calls share one listener, wait until it hears, and end with it. After the last one has left,
// or the listener has failed, the next one starts another. Proves SCOPE-13.
func TestListening(t *testing.T) { synctest.Test(t, testListening) }

func testListening(t *testing.T) {
	var (
		hub       Hub
		g         Listening
		listeners = make(chan *Listener)
		ended     = make(chan struct{})
	)
	listen := func(l *Listener) {
		listeners <- l
		<-l.Life().Done()
		ended <- struct{}{}
	}
	watch := func(ctx context.Context) (woken chan persist.Hint, over chan error) {
		woken, over = make(chan persist.Hint, 10), make(chan error, 1)
		go func() { over <- g.Watch(ctx, &hub, listen, func(h persist.Hint) { woken <- h }) }()
		return woken, over
	}
	ctx, leave := context.WithCancel(t.Context())
	one, oneOver := watch(ctx)
	l := testkit.Receive(t, listeners)
	two, twoOver := watch(t.Context())
	synctest.Wait()
	require.Equal(t, 2, l.watchers, "both share a listener")
	require.Empty(t, one)
	require.Empty(t, two)
	l.Ready()
	l.Ready()
	require.Equal(t, persist.Hint{}, testkit.Receive(t, one))
	require.Equal(t, persist.Hint{}, testkit.Receive(t, two))
	hub.Send(hint("a", 1))
	require.Equal(t, hint("a", 1), testkit.Receive(t, two))
	leave()
	require.ErrorIs(t, testkit.Receive(t, oneOver), context.Canceled)
	require.NoError(t, l.Life().Err(), "there is another one")

	broken := errors.New("broken")
	l.Fail(broken)
	require.ErrorIs(t, testkit.Receive(t, twoOver), broken)
	testkit.Receive(t, ended)
	ctx, leave = context.WithCancel(t.Context())
	_, over := watch(ctx)
	next := testkit.Receive(t, listeners)
	require.NotSame(t, l, next)
	leave()
	require.ErrorIs(t, testkit.Receive(t, over), context.Canceled, "also before it hears")
	testkit.Receive(t, ended)

	_, over = watch(t.Context())
	testkit.Receive(t, listeners).Ready()
	go g.Close()
	testkit.Receive(t, ended)
	require.ErrorIs(t, testkit.Receive(t, over), persist.ErrClosed)
	g.Close()
	require.ErrorIs(t, g.Watch(t.Context(), &hub, listen, nil), persist.ErrClosed)
}
