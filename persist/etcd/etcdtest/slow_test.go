package etcdtest_test

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/etcd"
)

// slowLink returns the location behind proxies that pass every byte on only after a delay.
func slowLink(t *testing.T, location string, delay time.Duration) string {
	prefix, addresses, _ := strings.Cut(location, "@")
	var linked []string
	for address := range strings.SplitSeq(addresses, ",") {
		linked = append(linked, slowProxy(t, address, delay))
	}
	return prefix + "@" + strings.Join(linked, ",")
}

// slowProxy returns the address of a proxy in front of target. It ends with t.
func slowProxy(t *testing.T, target string, delay time.Duration) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				_ = client.Close()
				continue
			}
			go passOn(server, client, delay)
			go passOn(client, server, delay)
		}
	}()
	return listener.Addr().String()
}

// passOn copies src to dst, each part after the delay, and closes both at the end.
func passOn(dst, src net.Conn, delay time.Duration) {
	type part struct {
		bytes []byte
		at    time.Time
	}
	parts := make(chan part, 1024)
	go func() {
		defer close(parts)
		for {
			buffer := make([]byte, 1<<15)
			n, err := src.Read(buffer)
			if n > 0 {
				parts <- part{buffer[:n], time.Now().Add(delay)}
			}
			if err != nil {
				return
			}
		}
	}()
	var err error
	for p := range parts {
		time.Sleep(time.Until(p.at))
		if err == nil {
			_, err = dst.Write(p.bytes)
		}
		if err != nil {
			_ = src.Close()
		}
	}
	_ = dst.Close()
	_, _ = io.Copy(io.Discard, src)
}

// A process whose requests take much longer than the clock's steps commits and takes leases, while
// another process moves the clock.
//
// Proves STORE-8, STORE-13.
func TestSlowRequests(t *testing.T) {
	t.Parallel()
	const tick = 20 * time.Millisecond
	location := place(t, 1)
	opened := func(location string) *etcd.Store {
		prefix, addresses, _ := strings.Cut(location, "@")
		s, err := etcd.Open(t.Context(), strings.Split(addresses, ","), etcd.Config{Prefix: prefix, Tick: tick})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		return s
	}
	direct, slow := opened(location), opened(slowLink(t, location, 3*tick))

	key := persist.Key{Kind: "k", ID: "1"}
	write := func(expected uint64) persist.Commit {
		return persist.Commit{ID: "a." + string(rune('0'+expected)), Writes: []persist.Write{
			{Key: key, Expected: expected, Version: expected + 1, Doc: []byte("1")},
		}}
	}
	_, err := slow.Commit(t.Context(), write(0))
	require.NoError(t, err, "create")
	_, err = slow.Commit(t.Context(), write(1))
	require.NoError(t, err, "write of a record that the process knows")

	before, err := direct.Load(t.Context(), key)
	require.NoError(t, err)
	taken, err := slow.Take(t.Context(), persist.Query{Kind: "k"}, persist.Acquire{Holder: "me", For: time.Minute}, nil)
	require.NoError(t, err)
	require.Len(t, taken, 1)
	require.False(t, taken[0].Lease.Until.Before(before.Now.Add(time.Minute)), "the lease lasts from after the call began")

	before, err = direct.Load(t.Context(), key)
	require.NoError(t, err)
	at, err := slow.Commit(t.Context(), persist.Commit{ID: "a.9", Guards: []persist.Guard{{Key: key, Token: taken[0].Lease.Token, Extend: time.Minute}}})
	require.NoError(t, err, "renewal")
	require.False(t, at.Before(before.Now), "the lease lasts from after the call began")
}
