package erase_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/erase"
	"github.com/pawl-go/pawl/flow/batch"
	"github.com/pawl-go/pawl/flow/run"
	"github.com/pawl-go/pawl/idempotency"
	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/internal/testkit/stores"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/stream"
)

// All that every layer has about a user goes, and nothing else. Proves ERASE-1.
func TestErase(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt := open(t, store)
		fillAll(t, rt, "ann", "anna", "bob")
		before := all(t, store)
		anns := of(before, "ann")
		kinds := map[string]int{}
		for key := range anns {
			kinds[key.Kind]++
		}
		maps.DeleteFunc(kinds, func(kind string, _ int) bool { return strings.HasPrefix(kind, "pawl.log") })
		require.Equal(t, map[string]int{
			"note": 4, "thread": 4, "thread.position": 8, "thread.snapshot": 4, "run": 2, "run.signal": 2,
			"batch.images": 1, "batch.images.item": 2, "wallet": 1, "order": 1, "machine.effect": 1, "idempotency": 1,
		}, kinds)

		parts := partsOf(t, store, "ann")
		found := list(t, store, parts)
		for key := range anns {
			if !strings.HasPrefix(key.Kind, "pawl.log") {
				require.Contains(t, found, key)
				require.Empty(t, found[key])
			}
		}
		var deleted []persist.Key
		report, err := erase.Erase(t.Context(), store, parts, erase.Options{Deleted: func(_ string, key persist.Key) { deleted = append(deleted, key) }})
		require.NoError(t, err)
		require.Equal(t, erase.Report{Deleted: len(found)}, report)
		require.ElementsMatch(t, slices.Collect(maps.Keys(found)), deleted)

		after := all(t, store)
		require.Empty(t, of(after, "ann"))
		entries, err := persist.Logs(store).ReadOrder(t.Context(), persist.OrderQuery{})
		require.NoError(t, err)
		require.Len(t, entries, 16) // of anna and bob
		for _, e := range entries {
			require.NotContains(t, string(e.Data), secret("ann"))
		}
		for _, other := range []string{"anna", "bob"} {
			require.Equal(t, of(before, other), of(after, other))
		}
		for key := range before {
			_, listed := found[key]
			_, kept := after[key]
			require.True(t, kept != listed || strings.HasPrefix(key.Kind, "pawl.log"), key)
		}

		report, err = erase.Erase(t.Context(), store, parts, erase.Options{})
		require.NoError(t, err)
		require.Zero(t, report)
		_, err = notes.Scope(rt, "ann").SetState(t.Context(), note{}) // a process that knows the scope
		require.ErrorIs(t, err, pawl.ErrDeleted)
		made, err := newLog(t, rt).Append(t.Context(), "ann", stream.Any, said{"new"})
		require.NoError(t, err)
		require.Zero(t, made[0].Version)
	})
}

// Named kinds bring those that a layer keeps beside them. Labels select records of a kind.
// Proves ERASE-1.
func TestEraseSomeKinds(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt := open(t, store)
		fillRuns(t, rt, []string{"ann", "bob"})
		for _, id := range []string{"ann", "bob"} {
			_, err := notes.Scope(rt, id).SetState(t.Context(), note{Team: "red"})
			require.NoError(t, err)
		}
		_, err := notes.Scope(rt, "cid").SetState(t.Context(), note{Team: "blue"})
		require.NoError(t, err)
		parts, err := erase.Parts(t.Context(), store, subject("ann"), "run.signal")
		require.NoError(t, err)
		report, err := erase.Erase(t.Context(), store, parts, erase.Options{})
		require.NoError(t, err)
		require.Equal(t, 4, report.Deleted)
		require.Len(t, of(all(t, store), "ann"), 1) // the note

		report, err = erase.Erase(t.Context(), store, []erase.Part{erase.Labeled("note", "red")}, erase.Options{})
		require.NoError(t, err)
		require.Equal(t, 2, report.Deleted)
		require.Contains(t, all(t, store), persist.Key{Kind: "note", ID: "cid"})
	})
}

func TestEraseArguments(t *testing.T) {
	store := stores.OpenFor(t, stores.Memory.New(t))
	for _, s := range []erase.Subject{{}, {IDs: []string{""}}, {Prefixes: []string{"a", ""}}, {Workspaces: []string{""}}, {Principals: []string{""}}, {IDs: []string{"\xff"}}, {IDs: []string{"a\x00"}}} {
		_, err := erase.Parts(t.Context(), store, s)
		require.ErrorAs(t, err, new(*pawl.ArgumentError), "%q", s)
	}
	for _, p := range []erase.Part{
		{Queries: []persist.Query{{Kind: "note"}}}, {Queries: []persist.Query{{Prefix: "a"}}}, erase.Labeled("note"),
		{Queries: []persist.Query{{Kind: "pawl.log", Prefix: "a"}}}, {Queries: []persist.Query{{Kind: "note", Prefix: "a"}, {Kind: "note", Before: "b"}}},
	} {
		_, err := erase.Erase(t.Context(), store, []erase.Part{p}, erase.Options{})
		require.ErrorAs(t, err, new(*pawl.ArgumentError))
		for _, err := range erase.List(t.Context(), store, []erase.Part{p}) {
			require.ErrorAs(t, err, new(*pawl.ArgumentError))
		}
	}
	parts, err := erase.Parts(t.Context(), store, subject("ann"))
	require.NoError(t, err)
	require.Empty(t, parts) // an empty store has no kinds
	require.NoError(t, store.Close())
}

// hold acquires the lease of a record, as a worker of another process does.
func hold(t testing.TB, store persist.Store, key persist.Key) {
	t.Helper()
	r, err := store.Load(t.Context(), key)
	require.NoError(t, err)
	_, err = store.Commit(t.Context(), persist.Commit{ID: "worker.1", Writes: []persist.Write{{
		Key: key, Expected: r.Version, Version: r.Version + 1, Doc: r.Doc, Label: r.Label, Due: r.Due, Acquire: &persist.Acquire{Holder: "worker", For: time.Hour},
	}}})
	require.NoError(t, err)
}

// release ends the lease of a record.
func release(t testing.TB, store persist.Store, key persist.Key) {
	t.Helper()
	r, err := store.Load(t.Context(), key)
	require.NoError(t, err)
	_, err = store.Commit(t.Context(), persist.Commit{ID: "worker.2", Guards: []persist.Guard{{Key: key, Token: r.Lease.Token, Release: true}}})
	require.NoError(t, err)
}

// firstOf returns the key of the first record of a kind in texts.
func firstOf(texts map[persist.Key]string, kind string) persist.Key {
	keys := slices.SortedFunc(maps.Keys(texts), persist.Key.Compare)
	return keys[slices.IndexFunc(keys, func(k persist.Key) bool { return k.Kind == kind })]
}

// A record that is held stays with all records of its unit, until its holder has released it.
// Proves ERASE-2.
func TestEraseHeld(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt := open(t, store)
		fillAll(t, rt, "ann")
		before := of(all(t, store), "ann")
		held := []persist.Key{{Kind: "note", ID: "ann/1"}, {Kind: "thread.position", ID: "ann/t/mail"}, firstOf(before, "run"), firstOf(before, "batch.images"), firstOf(before, "idempotency")}
		for _, key := range held {
			hold(t, store, key)
		}
		parts := partsOf(t, store, "ann")
		want := append(slices.Clone(held), persist.Key{Kind: "thread", ID: "ann/t"}, persist.Key{Kind: "thread.position", ID: "ann/t/bill"}, persist.Key{Kind: "thread.snapshot", ID: "ann/t/texts/all"},
			persist.Key{Kind: "run.signal", ID: held[2].ID + "/a/b"}, persist.Key{Kind: "batch.images.item", ID: "ann%2Fb%261/00000000"}, persist.Key{Kind: "batch.images.item", ID: "ann%2Fb%261/00000001"})
		var shown []persist.Key
		for key, left := range list(t, store, parts) {
			if left != "" {
				require.Contains(t, left, `held by "worker" until`)
				shown = append(shown, key)
			}
		}
		require.ElementsMatch(t, want, shown)
		for range 2 { // again, it finds nothing to do
			report, err := erase.Erase(t.Context(), store, parts, erase.Options{})
			require.ErrorIs(t, err, erase.ErrLeft)
			require.ErrorContains(t, err, "11 records left")
			var left []persist.Key
			for _, f := range report.Left {
				left = append(left, f.Key)
				require.Contains(t, f.Left, `held by "worker" until`)
			}
			require.ElementsMatch(t, want, left)
			after := all(t, store)
			for _, key := range want {
				require.Contains(t, after, key)
			}
			require.NotContains(t, after, persist.Key{Kind: "note", ID: "ann"})
		}
		events, err := newLog(t, rt).Last(t.Context(), "ann/t", 10)
		require.NoError(t, err)
		require.Len(t, events, 2)

		release(t, store, held[0])
		report, err := erase.Erase(t.Context(), store, parts, erase.Options{})
		require.ErrorIs(t, err, erase.ErrLeft)
		require.Equal(t, 1, report.Deleted)

		report, err = erase.Erase(t.Context(), store, parts, erase.Options{Force: true})
		require.NoError(t, err)
		require.Equal(t, 10, report.Deleted)
		require.Empty(t, of(all(t, store), "ann"))
		_, err = store.Commit(t.Context(), persist.Commit{ID: "worker.3", Guards: []persist.Guard{{Key: held[1], Token: 1, Extend: time.Hour}}})
		require.ErrorAs(t, err, new(*persist.Fenced))
	})
}

// The holder of a real lease goes on, and its commits are accepted. Proves ERASE-2.
func TestEraseBesideHolder(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt := open(t, store)
		keys, err := idempotency.New(rt, idempotency.Config{})
		require.NoError(t, err)
		_, err = notes.Scope(rt, "ann").SetState(t.Context(), note{Text: "1"})
		require.NoError(t, err)
		var parts []erase.Part
		op := idempotency.Op{Principal: "ann", Name: "pay", Key: "k"}
		result, _, err := idempotency.Do(t.Context(), keys, op, func(ctx context.Context) (string, error) {
			return "paid", notes.Scope(rt, "ann").Hold(ctx, func(ctx context.Context, _ *pawl.Lease) error {
				parts = partsOf(t, store, "ann")
				report, err := erase.Erase(context.WithoutCancel(t.Context()), store, parts, erase.Options{})
				require.ErrorIs(t, err, erase.ErrLeft)
				require.Len(t, report.Left, 2)
				_, err = notes.Scope(rt, "ann").SetState(ctx, note{Text: "2"})
				return err
			})
		})
		require.NoError(t, err)
		require.Equal(t, "paid", result)
		report, err := erase.Erase(t.Context(), store, parts, erase.Options{})
		require.NoError(t, err)
		require.Equal(t, 2, report.Deleted)
	})
}

// A job that is not over stays until it was canceled: what it has made and charged is known to its
// records only. Proves ERASE-2.
func TestEraseUnfinishedBatch(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt := open(t, store)
		_, err := wallets.Scope(rt, "shop").SetState(t.Context(), wallet{Points: 10})
		require.NoError(t, err)
		q := newBatches(t, rt)
		_, _, err = q.Submit(t.Context(), batch.Job[string]{ID: "ann", Account: "shop", Items: []string{"a"}})
		require.NoError(t, err)
		parts := partsOf(t, store, "ann")
		report, err := erase.Erase(t.Context(), store, parts, erase.Options{})
		require.ErrorIs(t, err, erase.ErrLeft)
		require.ErrorContains(t, err, "job is queued: cancel it first")
		require.Len(t, report.Left, 2)
		_, err = q.Cancel(t.Context(), "ann")
		require.NoError(t, err)
		require.NoError(t, q.Start(t.Context()))
		for p, err := range q.Watch(t.Context(), "ann") {
			require.NoError(t, err)
			require.NotEqual(t, batch.Completed, p.Status)
		}
		require.NoError(t, q.Stop(testkit.Within(t, testkit.Patience)))
		report, err = erase.Erase(t.Context(), store, parts, erase.Options{})
		require.NoError(t, err)
		require.Equal(t, 2, report.Deleted)
	})
}

// deleting reports whether a commit deletes records of a kind.
func deleting(c persist.Commit, kind string) bool {
	return slices.ContainsFunc(c.Writes, func(w persist.Write) bool { return w.Deleted && w.Kind == kind })
}

// A record that changes between the listing and the deletion is listed again. A worker that acquires
// it in between keeps it, with its unit. Proves ERASE-2, ERASE-3.
func TestEraseMeanwhile(t *testing.T) {
	for name, c := range map[string]struct {
		kind    string // whose deletion is disturbed
		meddle  func(t *testing.T, rt *pawl.Runtime, store persist.Store, key persist.Key)
		deleted int
		left    int
	}{
		"written": {kind: "note", deleted: 9, meddle: func(t *testing.T, rt *pawl.Runtime, _ persist.Store, _ persist.Key) {
			_, err := notes.Scope(rt, "ann").SetState(t.Context(), note{Text: "new"})
			require.NoError(t, err)
		}},
		"created": {kind: "note", deleted: 10, meddle: func(t *testing.T, rt *pawl.Runtime, _ persist.Store, _ persist.Key) {
			_, err := notes.Scope(rt, "ann/0").SetState(t.Context(), note{Text: "new"})
			require.NoError(t, err)
		}},
		"appended": {kind: "thread", deleted: 9, meddle: func(t *testing.T, rt *pawl.Runtime, _ persist.Store, _ persist.Key) {
			_, err := newLog(t, rt).Append(t.Context(), "ann", stream.Any, said{"new"})
			require.NoError(t, err)
		}},
		"acquired": {kind: "run", deleted: 7, left: 2, meddle: func(t *testing.T, _ *pawl.Runtime, store persist.Store, key persist.Key) {
			hold(t, store, key)
		}},
		"deleted": {kind: "note", deleted: 8, meddle: func(t *testing.T, rt *pawl.Runtime, _ persist.Store, _ persist.Key) {
			require.NoError(t, notes.Scope(rt, "ann").Delete(t.Context()))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			stores.EachOpen(t, func(t *testing.T, store persist.Store) {
				rt := open(t, store)
				for _, id := range []string{"ann", "ann/1", "ann/2"} {
					_, err := notes.Scope(rt, id).SetState(t.Context(), note{Text: secret("ann")})
					require.NoError(t, err)
				}
				_, err := newLog(t, rt).Append(t.Context(), "ann", stream.Any, said{"old"})
				require.NoError(t, err)
				_, _, err = stream.Load(t.Context(), newLog(t, rt), "ann", stream.Fold[int]{Name: "f", Apply: func(n *int, _ stream.Event) error { *n++; return nil }})
				require.NoError(t, err)
				fillRuns(t, rt, []string{"ann"})
				tap := &stores.Tap{Store: store}
				done := false
				tap.OnCommit(func(_ context.Context, commit persist.Commit) error {
					if !done && deleting(commit, c.kind) {
						done = true
						c.meddle(t, rt, store, commit.Writes[0].Key)
					}
					return nil
				})
				report, err := erase.Erase(t.Context(), tap, partsOf(t, store, "ann"), erase.Options{})
				require.True(t, done)
				require.Equal(t, c.deleted, report.Deleted)
				require.Len(t, report.Left, c.left)
				require.Len(t, of(all(t, store), "ann"), c.left)
				if c.left == 0 {
					require.NoError(t, err)
				} else {
					require.ErrorIs(t, err, erase.ErrLeft)
				}
			})
		})
	}
}

// A reaction that claims the position of a stream between the listing and the deletion of the stream
// keeps the stream, with its events. Other streams are deleted. Proves ERASE-2.
func TestErasePositionClaimedMeanwhile(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		fillStreams(t, open(t, store), []string{"ann"})
		position, head := persist.Key{Kind: "thread.position", ID: "ann/mail"}, persist.Key{Kind: "thread", ID: "ann"}
		tap := &stores.Tap{Store: store}
		claimed := false
		tap.OnCommit(func(_ context.Context, c persist.Commit) error {
			if !claimed && deleting(c, "thread") {
				claimed = true
				hold(t, store, position)
			}
			return nil
		})
		report, err := erase.Erase(t.Context(), tap, partsOf(t, store, "ann"), erase.Options{})
		require.True(t, claimed)
		require.ErrorIs(t, err, erase.ErrLeft)
		want := []persist.Key{head, position, {Kind: "thread.position", ID: "ann/bill"}, {Kind: "thread.snapshot", ID: "ann/texts/all"}}
		var left []persist.Key
		for _, f := range report.Left {
			left = append(left, f.Key)
		}
		require.ElementsMatch(t, want, left)
		after := of(all(t, store), "ann")
		maps.DeleteFunc(after, func(key persist.Key, _ string) bool { return persist.IsLogKind(key.Kind) })
		require.ElementsMatch(t, want, slices.Collect(maps.Keys(after)))
		events, err := persist.Logs(store).ReadLog(t.Context(), persist.LogQuery{Key: head})
		require.NoError(t, err)
		require.NotEmpty(t, events, "the reaction that claimed the stream can read its events")

		release(t, store, position)
		_, err = erase.Erase(t.Context(), tap, partsOf(t, store, "ann"), erase.Options{})
		require.NoError(t, err)
		require.Empty(t, of(all(t, store), "ann"))
	})
}

// An id is that of a whole record: the signals of runs in a workspace of that name stay, and so does a
// kind of the user's own that is named like a position of a stream.
//
// Proves ERASE-1.
func TestEraseOneID(t *testing.T) {
	store := stores.OpenFor(t, stores.Memory.New(t))
	put := func(kind, id, doc string) persist.Key {
		key := persist.Key{Kind: kind, ID: id}
		_, err := store.Commit(t.Context(), persist.Commit{ID: kind + id + ".1", Writes: []persist.Write{{Key: key, Version: 1, Doc: []byte(doc)}}})
		require.NoError(t, err)
		return key
	}
	erased := func(s erase.Subject) (keys []persist.Key) {
		parts, err := erase.Parts(t.Context(), store, s)
		require.NoError(t, err)
		_, err = erase.Erase(t.Context(), store, parts, erase.Options{Deleted: func(_ string, key persist.Key) { keys = append(keys, key) }})
		require.NoError(t, err)
		return keys
	}
	run, signal := put("run", "ann/R1", `{}`), put("run.signal", "ann/R1/go", `{}`)
	own, other := put("playback.position", "ann/7", `{"stream":"movie"}`), put("playback.position", "bob/7", `{"stream":"ann"}`)
	require.Empty(t, erased(erase.Subject{IDs: []string{"ann"}}))
	require.ElementsMatch(t, []persist.Key{run, signal, own}, erased(erase.Subject{Prefixes: []string{"ann/"}}))
	_, err := store.Load(t.Context(), other)
	require.NoError(t, err)
}

// A commit that is too large for the store is made in parts.
//
// Proves ERASE-1.
func TestEraseOnASmallStore(t *testing.T) {
	store := stores.OpenFor(t, stores.Memory.New(t))
	rt := open(t, store)
	for i := range 50 {
		_, err := notes.Scope(rt, fmt.Sprintf("ann/%d", i)).SetState(t.Context(), note{Text: "x"})
		require.NoError(t, err)
	}
	tap := &stores.Tap{Store: store}
	tap.OnCommit(func(_ context.Context, c persist.Commit) error { return persist.Limits{MaxKeys: 7}.Check(c) })
	report, err := erase.Erase(t.Context(), tap, partsOf(t, store, "ann"), erase.Options{})
	require.NoError(t, err)
	require.Equal(t, 50, report.Deleted)
	require.Empty(t, of(all(t, store), "ann"))
}

// Writers that never stop do not keep Erase going.
//
// Proves ERASE-3.
func TestEraseBesideEndlessWriters(t *testing.T) {
	t.Run("same_record", func(t *testing.T) {
		store := stores.OpenFor(t, stores.Memory.New(t))
		rt := open(t, store)
		tap := &stores.Tap{Store: store}
		n := 0
		write := func() {
			n++
			_, err := notes.Scope(rt, "ann").SetState(t.Context(), note{Text: fmt.Sprint(n)})
			require.NoError(t, err)
		}
		write()
		tap.OnCommit(func(context.Context, persist.Commit) error { write(); return nil })
		report, err := erase.Erase(t.Context(), tap, partsOf(t, store, "ann"), erase.Options{})
		require.ErrorIs(t, err, erase.ErrLeft)
		require.ErrorContains(t, err, "written meanwhile")
		require.Len(t, report.Left, 1)
		require.EqualValues(t, 20, tap.Commits.Load())
	})
	t.Run("new_records", func(t *testing.T) {
		store := stores.OpenFor(t, stores.Memory.New(t))
		rt := open(t, store)
		tap := &stores.Tap{Store: store}
		n := 0
		write := func() {
			n++
			_, err := notes.Scope(rt, fmt.Sprintf("ann/%06d", n)).SetState(t.Context(), note{})
			require.NoError(t, err)
		}
		write()
		tap.OnCommitted(func(_ persist.Commit, at time.Time, err error) (time.Time, error) { write(); return at, err })
		report, err := erase.Erase(t.Context(), tap, partsOf(t, store, "ann"), erase.Options{})
		require.ErrorIs(t, err, erase.ErrLeft)
		require.ErrorContains(t, err, "records were written in each of 20 passes")
		require.Equal(t, 20, report.Deleted)
	})
}

// Several processes erase beside writers. After the writers have ended, one more call leaves nothing,
// and each record was counted once. Proves ERASE-3.
func TestEraseBesideWriters(t *testing.T) {
	stores.EachShared(t, func(t *testing.T, location string) {
		const writers, writes = 4, 25
		parts := []erase.Part{{Name: "note", Queries: []persist.Query{{Kind: "note", Prefix: "ann/"}}}}
		var deleted, created, writing atomic.Int64
		writing.Store(writers)
		var running sync.WaitGroup
		for range 2 {
			store := stores.OpenFor(t, location)
			running.Go(func() {
				for last := false; !last; {
					last = writing.Load() == 0 // then this call begins after the last write
					report, err := erase.Erase(t.Context(), store, parts, erase.Options{})
					deleted.Add(int64(report.Deleted))
					if err != nil && (last || !errors.Is(err, erase.ErrLeft)) {
						t.Error(err)
						return
					}
				}
			})
		}
		for i := range writers {
			rt := open(t, stores.OpenFor(t, location))
			running.Go(func() {
				defer writing.Add(-1)
				for n := range writes {
					if _, err := notes.Scope(rt, fmt.Sprintf("ann/%d-%d", i, n)).SetState(t.Context(), note{Text: "x"}, pawl.IfAbsent()); err != nil {
						t.Error(err)
						return
					}
					created.Add(1)
				}
			})
		}
		running.Wait()
		require.EqualValues(t, writers*writes, created.Load())
		require.Equal(t, created.Load(), deleted.Load())
		require.Empty(t, all(t, stores.OpenFor(t, location)))
	})
}

// Runs that were erased are not continued. Proves ERASE-2.
func TestErasedRunDoesNotContinue(t *testing.T) {
	stores.EachOpen(t, func(t *testing.T, store persist.Store) {
		rt := open(t, store)
		worked := make(chan string, 10)
		e := run.NewEngine(rt, run.Config{})
		runs := run.Register(e, run.Definition[note]{Name: "trip", Steps: []run.Step[note]{
			{Name: "go", Do: func(_ context.Context, a *run.Attempt[note]) (run.Next, error) {
				worked <- a.State.Text
				return run.Continue(), nil
			}},
		}})
		for _, user := range []string{"ann", "bob"} {
			_, _, err := runs.Start(t.Context(), note{Text: user}, run.InWorkspace(user))
			require.NoError(t, err)
		}
		_, err := erase.Erase(t.Context(), store, partsOf(t, store, "ann"), erase.Options{})
		require.NoError(t, err)
		require.NoError(t, e.Start(t.Context()))
		require.Equal(t, "bob", testkit.Receive(t, worked))
		require.NoError(t, e.Stop(testkit.Within(t, testkit.Patience)))
		require.Empty(t, worked)
	})
}
