package postgres

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/pgtest"
)

// stopping is a connection of a process that is stopped during a write until its context has ended.
// pgconn reads in another goroutine during a long write: it gets the answer, and then the deadline.
type stopping struct {
	net.Conn
	end  *atomic.Pointer[context.CancelFunc] // of the next write's context, if that is the one
	read chan error
}

func (c stopping) Write(p []byte) (int, error) {
	end := c.end.Swap(nil)
	if end == nil {
		return c.Conn.Write(p)
	}
	for len(c.read) > 0 {
		<-c.read // of before
	}
	n, err := c.Conn.Write(p)
	if err != nil || <-c.read != nil {
		panic("no answer was read while the process wrote")
	}
	(*end)()
	if <-c.read == nil {
		panic("more than the answer was read")
	}
	return n, nil
}

func (c stopping) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	select {
	case c.read <- err:
	default:
	}
	return n, err
}

// TestStoppedWhileItWrites: a connection whose deadline passed is not used again, even if the
// answer arrived.
//
// Proves STORE-14.
func TestStoppedWhileItWrites(t *testing.T) {
	var end atomic.Pointer[context.CancelFunc]
	pool := pooled(t, connections(t, pgtest.URL(t), 1), func(c *pgxpool.Config) {
		dial := c.ConnConfig.DialFunc
		c.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			return stopping{Conn: conn, end: &end, read: make(chan error, 2)}, err
		}
	})
	s, err := New(t.Context(), pool, Config{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	afterCommits(t, s, "a", 1)
	_, err = s.Load(t.Context(), thing("a")) // which the session knows by name now
	require.NoError(t, err)

	ctx, cancel := context.WithCancel(t.Context())
	end.Store(&cancel)
	_, _ = s.Load(ctx, thing("a"))
	require.Error(t, ctx.Err())
	must(t, s, put("a", 1))
}
