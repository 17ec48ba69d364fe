package pawl_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/pawl-go/pawl"
	"github.com/stretchr/testify/require"
)

// oldProfile and newProfile are one kind's state in two releases.
type oldProfile struct {
	Name    string             `json:"name"`
	Visits  int                `json:"visits"`
	Home    oldPlace           `json:"home"`
	Work    *oldPlace          `json:"work"`
	Trips   []oldPlace         `json:"trips"`
	Friends map[string]oldTrip `json:"friends"`
}

type oldPlace struct {
	City string `json:"city"`
}

type oldTrip struct {
	Stops []oldPlace `json:"stops"`
}

type newProfile struct {
	Name    string             `json:"name"`
	Visits  int                `json:"visits"`
	Email   string             `json:"email"`
	Home    newPlace           `json:"home"`
	Work    *newPlace          `json:"work"`
	Trips   []newPlace         `json:"trips"`
	Friends map[string]newTrip `json:"friends"`
}

type newPlace struct {
	City string  `json:"city"`
	Zip  string  `json:"zip"`
	Rank *uint64 `json:"rank,omitempty"`
}

type newTrip struct {
	Stops []newPlace `json:"stops"`
	Price int64      `json:"price"`
}

func newProfileState() newProfile {
	rank := uint64(1<<64 - 1)
	return newProfile{
		Name: "ann", Visits: 1, Email: "ann@example.com", Home: newPlace{City: "A", Zip: "1", Rank: &rank}, Work: &newPlace{City: "B", Zip: "2"},
		Trips:   []newPlace{{City: "C", Zip: "3"}, {City: "D", Zip: "4"}, {City: "E", Zip: "5"}},
		Friends: map[string]newTrip{"bob": {Stops: []newPlace{{City: "F", Zip: "6"}}, Price: 1<<63 - 1}},
	}
}

// A verb of an older release keeps the fields that only a newer release knows. This includes fields
// in nested structs, behind pointers, in list elements and in map entries. Proves SCOPE-8.
func TestUnknownFieldsSurvive(t *testing.T) {
	cases := []struct {
		name string
		m    pawl.Mutation
		want func(*newProfile)
	}{
		{"Patch", pawl.Patch{"name": "anna", "home.city": "AA", "work": oldPlace{City: "BB"}}, func(n *newProfile) {
			n.Name, n.Home.City, n.Work.City = "anna", "AA", "BB"
		}},
		{"Inc", pawl.Inc{Field: "visits", By: 1}, func(n *newProfile) { n.Visits = 2 }},
		{"Push", pawl.Push{Field: "trips", Values: []any{oldPlace{City: "new"}}}, func(n *newProfile) {
			n.Trips = append(n.Trips, newPlace{City: "new"})
		}},
		{"SetRecord", pawl.SetRecord{Field: "friends", Key: "cid", Value: oldTrip{Stops: []oldPlace{{City: "G"}}}}, func(n *newProfile) {
			n.Friends["cid"] = newTrip{Stops: []newPlace{{City: "G"}}}
		}},
		{"DeleteRecord", pawl.DeleteRecord{Field: "friends", Key: "bob"}, func(n *newProfile) { n.Friends = map[string]newTrip{} }},
		{"Set", pawl.Set{State: oldProfile{Name: "anna", Home: oldPlace{City: "A"}, Trips: []oldPlace{{City: "C"}, {City: "D"}, {City: "E"}}}}, func(n *newProfile) {
			*n = newProfile{Name: "anna", Email: n.Email, Home: n.Home, Trips: n.Trips}
		}},
		{"Atomic: in place", pawl.Atomic(func(_ context.Context, o *oldProfile) error {
			o.Trips[1].City, o.Friends["bob"].Stops[0].City = "DD", "FF"
			return nil
		}), func(n *newProfile) { n.Trips[1].City, n.Friends["bob"].Stops[0].City = "DD", "FF" }},
		{"Atomic: remove from a list", pawl.Atomic(func(_ context.Context, o *oldProfile) error {
			o.Trips = o.Trips[1:]
			return nil
		}), func(n *newProfile) { n.Trips = n.Trips[1:] }},
		{"Atomic: insert into a list", pawl.Atomic(func(_ context.Context, o *oldProfile) error {
			o.Trips = append([]oldPlace{{City: "first"}}, o.Trips...)
			return nil
		}), func(n *newProfile) { n.Trips = append([]newPlace{{City: "first"}}, n.Trips...) }},
		{"Atomic: reorder a list", pawl.Atomic(func(_ context.Context, o *oldProfile) error {
			o.Trips[0], o.Trips[2] = o.Trips[2], o.Trips[0]
			return nil
		}), func(n *newProfile) { n.Trips[0], n.Trips[2] = n.Trips[2], n.Trips[0] }},
		{"All", pawl.All{pawl.Inc{Field: "visits", By: 1}, pawl.Patch{"home.city": "AA"}}, func(n *newProfile) {
			n.Visits, n.Home.City = 2, "AA"
		}},
	}
	onStores(t, func(t *testing.T, p path) {
		old := p.another(t)
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				written := pawl.User[newProfile](p.rt, c.name)
				seed(t, written, newProfileState())
				_, err := pawl.User[oldProfile](old, c.name).Apply(t.Context(), c.m)
				require.NoError(t, err)
				want := newProfileState()
				c.want(&want)
				record := p.record(t, written.Key())
				require.EqualValues(t, 2, record.Version)
				var stored newProfile
				require.NoError(t, json.Unmarshal(record.Doc, &stored))
				require.Equal(t, want, stored)
				got, err := written.State(t.Context())
				require.NoError(t, err)
				require.Equal(t, want, got)
			})
		}
	})
}

// Unknown fields survive many writes of a runtime with a cached version. The newer release reads
// their current values. Proves SCOPE-8.
func TestUnknownFieldsSurviveManyWrites(t *testing.T) {
	onStores(t, func(t *testing.T, p path) {
		older := pawl.User[oldProfile](p.another(t), "a")
		newer := pawl.User[newProfile](p.rt, "a")
		seed(t, newer, newProfileState())
		want := newProfileState()
		for i := range 10 {
			_, err := older.Apply(t.Context(), pawl.All{pawl.Inc{Field: "visits", By: 1}, pawl.Push{Field: "trips", Values: []any{oldPlace{City: "x"}}}})
			require.NoError(t, err)
			want.Visits, want.Trips = want.Visits+1, append(want.Trips, newPlace{City: "x"})
			if i%3 == 0 {
				_, err = newer.PatchState(t.Context(), pawl.Patch{"home.zip": "z", "email": "e"})
				require.NoError(t, err)
				want.Home.Zip, want.Email = "z", "e"
			}
		}
		got, err := newer.State(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, got)
	})
}

// Two types on one key of one runtime keep each other's fields when either writes.
// Proves SCOPE-8, SCOPE-19.
func TestTwoTypesOnOneKey(t *testing.T) {
	type left struct {
		L int `json:"l"`
	}
	type right struct {
		R int `json:"r"`
	}
	onStores(t, func(t *testing.T, p path) {
		l, r := pawl.Org[left](p.rt, "a"), pawl.Org[right](p.rt, "a")
		for i := range uint64(10) {
			snapL, err := l.IncState(t.Context(), "l", 1)
			require.NoError(t, err)
			require.Equal(t, 2*i+1, snapL.Version, "both types share one sequence of versions")
			snapR, err := r.AtomicState(t.Context(), func(_ context.Context, s *right) error { s.R += 2; return nil })
			require.NoError(t, err)
			require.Equal(t, 2*i+2, snapR.Version)
		}
		requireState(t, p, pawl.Org[pawl.Doc](p.rt, "a"), 20, pawl.Doc{"l": int64(10), "r": int64(20)})
	})
}

// narrowPurse knows one of the fields of board.
type narrowPurse struct {
	Count int64 `json:"count"`
}

// In a transaction with a conflict, two types on one key keep each other's fields and unknown
// fields.
//
// Proves SCOPE-8.
func TestTwoTypesInATransaction(t *testing.T) {
	store := newTap()
	rt, other := openOn(t, store), openOn(t, store.Store)
	wide, narrow := pawl.Session[board](rt, "a"), pawl.Session[narrowPurse](rt, "a")
	seed(t, wide, board{Title: "t", Count: 1, Tags: []string{"x"}})
	_, err := pawl.Session[pawl.Doc](other, "a").PatchState(t.Context(), pawl.Patch{"extra": 5})
	require.NoError(t, err)
	require.NoError(t, pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		if _, err := narrow.In(tx).IncState(ctx, "count", 1); err != nil {
			return err
		}
		if _, err := wide.In(tx).PushState(ctx, "tags", "y"); err != nil {
			return err
		}
		if _, err := narrow.In(tx).IncState(ctx, "count", 1); err != nil {
			return err
		}
		_, err := wide.In(tx).PatchState(ctx, pawl.Patch{"title": "u"})
		return err
	}))
	d, err := pawl.Session[pawl.Doc](rt, "a").State(t.Context())
	require.NoError(t, err)
	require.Equal(t, pawl.Doc{"title": "u", "count": int64(3), "tags": []any{"x", "y"}, "notes": nil, "extra": int64(5)}, d)
	require.NoError(t, pawl.Transact(t.Context(), rt, func(ctx context.Context, tx *pawl.Tx) error {
		if err := narrow.In(tx).Delete(ctx); err != nil {
			return err
		}
		_, err := narrow.In(tx).IncState(ctx, "count", 9, pawl.IfAbsent())
		return err
	}))
	d, err = pawl.Session[pawl.Doc](rt, "a").State(t.Context())
	require.NoError(t, err)
	require.Equal(t, pawl.Doc{"count": int64(9)}, d)
}
