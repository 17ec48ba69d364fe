package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/stream"
)

func TestMain(m *testing.M) { testkit.Main(m.Run, stores.Stop) }

// The demo runs on an SQLite file.
func Example() {
	folder, _ := os.MkdirTemp("", "ticket")
	defer os.RemoveAll(folder)
	if err := demo(context.Background(), os.Stdout, filepath.Join(folder, "desk.db"), folder, 100*time.Millisecond); err != nil {
		fmt.Println(err)
	}
	// Output:
	// ticket-1: opened: The printer prints hearts
	// ticket-1: escalated: no owner for 100ms
	// ticket-1, assigned again: the ticket is solved
	// ticket-1.jsonl: 4 events
	// ticket-1: closed true, events left 0
	// ticket-2: opened: There is no coffee
	// ticket-2: assigned to ada
}

const story = `ticket-1: opened: The printer prints hearts
ticket-1: escalated: no owner for 200ms
ticket-1, assigned again: the ticket is solved
ticket-1.jsonl: 4 events
ticket-1: closed true, events left 0
ticket-2: opened: There is no coffee
ticket-2: assigned to ada
`

// archived is a line of an archive.
type archived struct {
	Version int64
	Type    string
	At      time.Time
	Data    json.RawMessage
}

// readArchive returns the lines of a ticket in an archive.
func readArchive(t *testing.T, folder, id string) (all []archived) {
	t.Helper()
	file, err := os.Open(filepath.Join(folder, id+".jsonl"))
	require.NoError(t, err)
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var a archived
		require.NoError(t, json.Unmarshal(lines.Bytes(), &a))
		all = append(all, a)
	}
	return all
}

// The demo prints the same lines on every store, also when it runs again. The ticket is not escalated
// too early, and the archive has all of its events.
func TestStory(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		folder := t.TempDir()
		for range 2 {
			var output strings.Builder
			require.NoError(t, demo(t.Context(), &output, stores.Flag(location), folder, 200*time.Millisecond))
			require.Equal(t, story, output.String())
		}
		all := readArchive(t, folder, "ticket-1")
		require.Len(t, all, 4)
		for i, typ := range []string{"opened", "escalated", "assigned", "solved"} {
			require.Equal(t, typ, all[i].Type)
			require.EqualValues(t, i, all[i].Version)
		}
		require.GreaterOrEqual(t, all[1].At.Sub(all[0].At), 200*time.Millisecond)
		files, err := filepath.Glob(filepath.Join(folder, "*.tmp"))
		require.NoError(t, err)
		require.Empty(t, files)
	})
}

// openDesk returns a desk on an SQLite file.
func openDesk(t *testing.T, patience time.Duration) *Desk {
	t.Helper()
	location := stores.SQLite.New(t)
	rt, err := pawl.Open(pawl.Config{Store: stores.OpenFor(t, location)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rt.Close(context.Background())) })
	desk, err := newDesk(rt, patience, t.TempDir())
	require.NoError(t, err)
	return desk
}

// A ticket that is assigned or solved before its time is over is not escalated. One that waits is
// escalated once.
func TestEscalation(t *testing.T) {
	desk := openDesk(t, time.Minute)
	for _, id := range []string{"ticket-1", "ticket-2", "ticket-3"} {
		require.NoError(t, desk.Open(t.Context(), id, "x"))
	}
	_, err := desk.log.Drain(t.Context()) // defers all three
	require.NoError(t, err)
	require.NoError(t, desk.Assign(t.Context(), "ticket-1", "ada"))
	require.NoError(t, desk.Solve(t.Context(), "ticket-2", "ada"))
	desk.patience = 0 // the time is over
	_, err = desk.log.Reset(t.Context(), stream.Filter{Reactions: []string{"escalate"}})
	require.NoError(t, err)
	for range 2 {
		_, err = desk.log.Drain(t.Context())
		require.NoError(t, err)
	}
	for id, want := range map[string]bool{"ticket-1": false, "ticket-2": false, "ticket-3": true} {
		ticket, _, err := stream.Load(t.Context(), desk.log, id, fold)
		require.NoError(t, err)
		require.Equal(t, want, ticket.Escalated, id)
	}
	head, err := desk.log.Head(t.Context(), "ticket-3")
	require.NoError(t, err)
	require.EqualValues(t, 1, head.Last, "it must be escalated once")
}

// An id that is taken, a ticket that does not exist and one that is solved are refused.
func TestRefusals(t *testing.T) {
	desk := openDesk(t, time.Minute)
	require.NoError(t, desk.Open(t.Context(), "ticket-1", "x"))
	var taken *stream.ConcurrencyError
	require.ErrorAs(t, desk.Open(t.Context(), "ticket-1", "y"), &taken)
	require.ErrorIs(t, desk.Assign(t.Context(), "ticket-2", "ada"), ErrUnknown)
	require.NoError(t, desk.Solve(t.Context(), "ticket-1", "ada"))
	require.ErrorIs(t, desk.Assign(t.Context(), "ticket-1", "ada"), ErrSolved)
}

// An archive that fails half-way leaves no file, and the ticket keeps its events. The next attempt
// completes it.
func TestArchiveFails(t *testing.T) {
	desk := openDesk(t, 0)
	require.NoError(t, desk.Open(t.Context(), "ticket-1", "x"))
	require.NoError(t, desk.Solve(t.Context(), "ticket-1", "ada"))
	_, err := desk.log.Drain(t.Context())
	require.NoError(t, err)
	broken := errors.New("the disk is full")
	err = desk.log.CloseStream(t.Context(), "ticket-1", stream.Any, func(ctx context.Context, events iter.Seq2[stream.Event, error]) error {
		return desk.write(ctx, func(yield func(stream.Event, error) bool) {
			for e, err := range events {
				if !yield(e, errors.Join(err, broken)) {
					return
				}
			}
		})
	})
	require.ErrorIs(t, err, broken)
	entries, err := os.ReadDir(desk.archive)
	require.NoError(t, err)
	require.Empty(t, entries)
	var closed *stream.ClosedError
	_, err = desk.log.Append(t.Context(), "ticket-1", stream.Any, Assigned{"bob"})
	require.ErrorAs(t, err, &closed, "the books are being closed")
	require.NoError(t, desk.Close(t.Context(), "ticket-1"))
	require.Len(t, readArchive(t, desk.archive, "ticket-1"), 2)
}
