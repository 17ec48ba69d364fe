package main

import (
	"bytes"
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/stream"
)

// The positions that W6 fills a store with have the form of those that package stream writes: the same
// ids, labels and fields, while they are pending and when they are not.
func TestPositionsAreThoseOfStreams(t *testing.T) {
	b := benchFor(t)
	at, err := b.placeIn(inSQLite)
	require.NoError(t, err)
	l, rt, closing, err := openStreams(t.Context(), at, nil)
	require.NoError(t, err)
	defer closing()
	const name = "conversation-000000"
	key := pawl.Key{Kind: positions.Name, ID: name + "/" + reacting}
	load := func() persist.Record {
		r, err := rt.Store().Load(context.Background(), key)
		require.NoError(t, err)
		return r
	}
	var pending persist.Record
	require.NoError(t, l.React(stream.Reaction{Name: reacting, Handle: func(context.Context, *stream.Delivery) error {
		pending = load()
		return nil
	}}))
	_, err = l.Append(t.Context(), name, stream.Any, hello)
	require.NoError(t, err)
	n, err := l.Drain(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, n)

	other, err := b.placeIn(inSQLite)
	require.NoError(t, err)
	_, filled, closing, err := openStreams(t.Context(), other, nil)
	require.NoError(t, err)
	defer closing()
	require.NoError(t, fillPositions(t.Context(), filled.Store(), 10, 10))
	for id, r := range map[string]persist.Record{name: pending, "conversation-000001": load()} {
		ours, err := filled.Store().Load(t.Context(), pawl.Key{Kind: positions.Name, ID: id + "/" + reacting})
		require.NoError(t, err)
		require.Equal(t, r.Label, ours.Label)
		require.Equal(t, r.Due.IsZero(), ours.Due.IsZero())
		require.Equal(t, r.Schema, ours.Schema)
		var theirs, own position
		d := json.NewDecoder(bytes.NewReader(r.Doc))
		d.DisallowUnknownFields()
		require.NoError(t, d.Decode(&theirs))
		require.NoError(t, json.Unmarshal(ours.Doc, &own))
		require.Equal(t, theirs.Label, own.Label)
		require.Equal(t, theirs.Reaction, own.Reaction)
		require.Equal(t, theirs.Known > theirs.Next, own.Known > own.Next)
	}
}

// As many positions are pending as were asked for. Package stream reads them.
func TestFillPositions(t *testing.T) {
	b := benchFor(t)
	for _, oneIn := range []int{1, 4} {
		at, err := b.placeIn(inSQLite)
		require.NoError(t, err)
		l, rt, closing, err := openStreams(t.Context(), at, nil)
		require.NoError(t, err)
		require.NoError(t, fillPositions(t.Context(), rt.Store(), 1_004, oneIn))
		all, pending := 0, 0
		for p, err := range l.Positions(t.Context(), stream.Filter{Reactions: []string{reacting}}) {
			require.NoError(t, err)
			if all++; p.Pending {
				require.False(t, p.Due.IsZero())
				pending++
			}
		}
		require.Equal(t, 1_004, all)
		require.Equal(t, 1_004/oneIn, pending)
		closing()
	}
}

// Every claim gets 16 positions, and puts them back behind the others. A claim that gets fewer fails.
func TestClaims(t *testing.T) {
	b := benchFor(t)
	withPostgres(t, b)
	for _, store := range []string{inPostgres, inSQLite} {
		s := claiming(store, 80, 2)
		for range 2 {
			m, err := b.once(s, load{writers: 1, each: 6})
			require.NoError(t, err, store)
			require.EqualValues(t, 6, m.acknowledged, store)
			require.Zero(t, m.failed, store)
			require.EqualValues(t, 6, m.latency.total, store)
		}
		_, err := b.once(claiming(store, 30, 2), load{writers: 1, each: 1})
		require.ErrorIs(t, err, errFewClaims, store)
	}

	rt, err := openPositions(b, inSQLite, 64, 1)
	require.NoError(t, err)
	claimed := map[string]int{}
	for range 8 { // each position twice
		taken, err := positions.Take(t.Context(), rt, claimable, claimOptions...)
		require.NoError(t, err)
		require.Len(t, taken, claimSize)
		for _, p := range taken {
			claimed[p.ID]++
		}
		require.NoError(t, putBack(t.Context(), rt, taken))
	}
	require.Len(t, claimed, 64)
	for id, n := range claimed {
		require.Equal(t, 2, n, id)
	}
}

// An event is handled in the process that it is meant for, and the time of each is measured.
func TestReactions(t *testing.T) {
	b := benchFor(t)
	withPostgres(t, b)
	for name, start := range map[string]func(*bench, string) (*reactor, error){"here": reactHere, "there": reactThere} {
		t.Run(name, func(t *testing.T) {
			m, err := b.once(reactionTo(start), load{writers: 1, each: 3})
			require.NoError(t, err)
			require.EqualValues(t, 3, m.acknowledged)
			require.Zero(t, m.failed)
			require.EqualValues(t, 3, m.latency.total)
			require.Positive(t, m.latency.at(0.5))
		})
	}
}
