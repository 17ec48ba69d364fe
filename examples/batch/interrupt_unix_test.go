//go:build unix

package main

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit/stores"
)

// requireCanceled checks the last lines about a job that was canceled: all points are refunded, and
// no file is left.
func requireCanceled(t *testing.T, lines []string, done int) {
	t.Helper()
	require.GreaterOrEqual(t, len(lines), 4)
	last := lines[len(lines)-4:]
	require.Equal(t, fmt.Sprintf("canceled: %d of %d made, %d canceled", done, items, items), last[0])
	var before, charged, refunded, balance int
	_, err := fmt.Sscanf(last[1], "points before: %d, charged: %d, refunded: %d, balance: %d", &before, &charged, &refunded, &balance)
	require.NoError(t, err, last[1])
	require.GreaterOrEqual(t, charged, done*price)
	require.Less(t, charged, items*price)
	require.Equal(t, charged, refunded)
	require.Equal(t, points, balance)
	require.Equal(t, []string{"files left: 0", "the books balance: 0 thumbnails are paid for"}, last[2:])
}

// The first interrupt cancels the job while calls are in progress. Proves CANCEL-9.
func TestInterrupt(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		t.Parallel() // much of it is waiting for leases
		dir := t.TempDir()
		p := start(t, location, dir, 7)
		awaitLine(t, p, made(7))
		p.Signal(syscall.SIGINT)
		lines := p.Wait()
		require.Contains(t, strings.Join(lines, "\n"), "cancel: ")
		requireCanceled(t, lines, 7)
		lines = start(t, location, dir, items).Wait()
		require.Equal(t, "job j was submitted before: canceled, 7 of 20 made", lines[0])
		requireCanceled(t, lines, 7)
	})
}

// The second interrupt ends the process although a call does not end. The next start finishes the
// cancel.
func TestSecondInterrupt(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		t.Parallel() // much of it is waiting for leases
		dir := t.TempDir()
		p := start(t, location, dir, 7, envDeaf+"=1")
		awaitLine(t, p, made(7))
		p.Signal(syscall.SIGINT)
		awaitLine(t, p, "cancel: ")
		p.Signal(syscall.SIGINT)
		for _, ok := p.Next(); ok; _, ok = p.Next() {
		}
		p.Kill() // it has ended; this collects it
		requireCanceled(t, start(t, location, dir, items).Wait(), 7)
	})
}
