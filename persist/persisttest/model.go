package persisttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pawl-go/pawl/persist"
)

func (s suite) model() map[string]func(*testing.T) {
	return map[string]func(*testing.T){
		"random commits do the same as Apply": s.likeApply,
	}
}

// likeApply runs random commits on the store and with persist.Apply, and compares answers, records
// and lists. The model uses the times that the store returned, so all times are equal.
//
// Proves STORE-1, STORE-2, STORE-5, SCOPE-14.
func (s suite) likeApply(t *testing.T) {
	f := s.fresh(t)
	check := 0
	rapid.Check(t, func(r *rapid.T) {
		check++
		m := &model{T: r, ctx: t.Context(), store: f.store, kind: fmt.Sprintf("model-%d", check), records: map[persist.Key]persist.Record{}}
		for range rapid.IntRange(5, 25).Draw(r, "steps") {
			c := m.commit(s.options.SingleKey)
			m.compareCommit(c)
		}
		m.compareRecords()
		m.compareList()
	})
}

// model holds the records of one kind that the store should have.
type model struct {
	*rapid.T
	ctx     context.Context
	store   persist.Store
	kind    string
	records map[persist.Key]persist.Record
	latest  time.Time // the latest known time of the store
}

var modelIDs = []string{"a", "b", "c"}

// durations end at once or long after the test, so that no result depends on speed.
var durations = []time.Duration{0, 0, time.Microsecond, time.Hour}

// commit draws a commit. Most of its expectations are right.
func (m *model) commit(single bool) persist.Commit {
	c := persist.Commit{ID: fmt.Sprintf("w%d.%d", rapid.IntRange(0, 2).Draw(m.T, "writer"), lastCommit.Add(1))}
	single = single || rapid.Bool().Draw(m.T, "alone")
	for _, id := range modelIDs {
		k := persist.Key{Kind: m.kind, ID: id}
		if rapid.IntRange(0, 2).Draw(m.T, "written") == 0 {
			c.Writes = append(c.Writes, m.write(k))
		}
		if rapid.IntRange(0, 3).Draw(m.T, "guarded") == 0 {
			c.Guards = append(c.Guards, m.guard(k))
		}
		if single && len(c.Writes)+len(c.Guards) > 0 {
			break
		}
	}
	return c
}

// expectation draws the state of r that a writer expects.
func (m *model) expectation(r persist.Record) (version uint64, gone bool) {
	if !r.Absent() {
		version, gone = r.Version, r.Gone(m.latest.Add(2*time.Microsecond))
	}
	switch rapid.IntRange(0, 11).Draw(m.T, "mistake") {
	case 0:
		version = uint64(rapid.IntRange(0, int(version)+1).Draw(m.T, "wrong version"))
	case 1:
		gone = !gone
	}
	return version, gone
}

func (m *model) write(k persist.Key) persist.Write {
	w := persist.Write{Key: k}
	if r := m.records[k]; rapid.Bool().Draw(m.T, "plain") && !r.Absent() { // most writes of an application are plain
		w.Expected, w.Gone = m.expectation(r)
		w.Version, w.Doc, w.Schema, w.Label, w.Due = w.Expected+1, doc(rapid.IntRange(0, 99).Draw(m.T, "doc")), r.Schema, r.Label, r.Due
		w.Recent = r.Commits
		return w
	}
	w.Expected, w.Gone = m.expectation(m.records[k])
	w.Version = w.Expected + uint64(rapid.IntRange(1, 3).Draw(m.T, "growth"))
	w.EndLease = rapid.IntRange(0, 3).Draw(m.T, "ends lease") == 0
	if w.Deleted = rapid.IntRange(0, 5).Draw(m.T, "deleted") == 0; w.Deleted {
		w.Swept = w.Gone && rapid.Bool().Draw(m.T, "swept")
		return w
	}
	if rapid.Bool().Draw(m.T, "knows commits") {
		w.Recent = m.records[k].Commits
	}
	w.Doc = doc(rapid.IntRange(0, 99).Draw(m.T, "doc"))
	w.Schema = rapid.IntRange(0, 3).Draw(m.T, "schema")
	w.Label = rapid.SampledFrom([]string{"", "open", "closed"}).Draw(m.T, "label")
	w.TTL = rapid.SampledFrom(append(slices.Clone(durations), persist.KeepTTL)).Draw(m.T, "ttl")
	switch rapid.IntRange(0, 3).Draw(m.T, "due") {
	case 0:
		w.DueIn = rapid.SampledFrom(durations).Draw(m.T, "due in")
	case 1:
		w.Due = time.Unix(int64(rapid.IntRange(1, 5).Draw(m.T, "due at")), 123_456_789)
	}
	if rapid.IntRange(0, 3).Draw(m.T, "acquires") == 0 {
		w.Acquire = &persist.Acquire{Holder: "me", For: rapid.SampledFrom(durations[2:]).Draw(m.T, "lease")}
	}
	return w
}

func (m *model) guard(k persist.Key) persist.Guard {
	g := persist.Guard{Key: k}
	r := m.records[k]
	if rapid.Bool().Draw(m.T, "read") {
		g.Read = true
		g.Version, g.Gone = m.expectation(r)
		if g.Version > 0 && !g.Gone {
			g.TTL = rapid.SampledFrom(durations).Draw(m.T, "ttl")
		}
	}
	if !g.Read || rapid.Bool().Draw(m.T, "token") {
		g.Token = max(r.Lease.Token, 1)
		switch rapid.IntRange(0, 3).Draw(m.T, "lease") {
		case 0:
			g.Extend = rapid.SampledFrom(durations).Draw(m.T, "extend")
		case 1:
			g.Release = true
		}
	}
	return g
}

// compareCommit commits to the store and to the model.
func (m *model) compareCommit(c persist.Commit) {
	at, err := m.store.Commit(m.ctx, c)
	var conflict *persist.Conflict
	var fence *persist.Fenced
	switch {
	case errors.As(err, &conflict):
		require.NotEmpty(m, conflict.Winners)
		at = conflict.Winners[0].Now
	case errors.As(err, &fence):
		at = fence.Current.Now
	case err != nil:
		require.ErrorIs(m, err, persist.ErrNotApplied)
	}
	next, want := persist.Apply(c, m.records, at)
	var wantConflict *persist.Conflict
	var wantFence *persist.Fenced
	switch {
	case errors.As(want, &wantConflict):
		require.NotNil(m, conflict, "want a conflict, got %v for %+v", err, c)
		m.compareWinners(wantConflict.Winners, conflict.Winners)
	case errors.As(want, &wantFence):
		require.NotNil(m, fence, "want a lost lease, got %v for %+v", err, c)
		lost := m.records[fence.Current.Key]
		lost.Key = fence.Current.Key
		same(m, lost, fence.Current)
	case want != nil:
		require.ErrorIs(m, err, persist.ErrNotApplied)
	default:
		require.NoError(m, err, "%+v", c)
	}
	for _, r := range next {
		m.records[r.Key] = r
	}
	if at.After(m.latest) {
		m.latest = at
	}
}

func (m *model) compareWinners(want, got []persist.Record) {
	byID := func(a, b persist.Record) int { return strings.Compare(a.ID, b.ID) }
	slices.SortFunc(got, byID)
	require.Len(m, got, len(want))
	for i := range want {
		same(m, want[i], got[i])
	}
}

// compareRecords compares the records that Load returns.
func (m *model) compareRecords() {
	for _, id := range modelIDs {
		k := persist.Key{Kind: m.kind, ID: id}
		want, known := m.records[k]
		got, err := m.store.Load(m.ctx, k)
		if !known {
			require.ErrorIs(m, err, persist.ErrNotFound)
			continue
		}
		require.NoError(m, err)
		same(m, want, got)
	}
}

// compareList compares a random query with Query.Match.
func (m *model) compareList() {
	q := persist.Query{
		Kind:    m.kind,
		Prefix:  rapid.SampledFrom([]string{"", "", "a"}).Draw(m.T, "prefix"),
		From:    rapid.SampledFrom([]string{"", "", "b"}).Draw(m.T, "from"),
		Before:  rapid.SampledFrom([]string{"", "", "b"}).Draw(m.T, "before"),
		Reverse: rapid.Bool().Draw(m.T, "reverse"),
		Labels:  rapid.SampledFrom([][]string{nil, nil, {"open"}, {"open", "closed"}, {""}}).Draw(m.T, "labels"),
		Age:     rapid.SampledFrom(durations).Draw(m.T, "age"),
		Due:     rapid.IntRange(0, 2).Draw(m.T, "due") == 0,
		DueIn:   rapid.SampledFrom([]time.Duration{0, time.Hour, 100 * time.Hour}).Draw(m.T, "due in"),
		Unheld:  rapid.IntRange(0, 2).Draw(m.T, "unheld") == 0,
		Expired: rapid.IntRange(0, 2).Draw(m.T, "expired") == 0,
		Deleted: rapid.IntRange(0, 3).Draw(m.T, "deleted") == 0,
	}
	var now time.Time
	for !now.After(m.latest.Add(2 * time.Microsecond)) { // wait for the end of short durations
		r, err := m.store.Load(m.ctx, persist.Key{Kind: m.kind, ID: "a"})
		if err != nil {
			require.ErrorIs(m, err, persist.ErrNotFound)
		}
		require.False(m, r.Now.IsZero(), "Record.Now is not set")
		now = r.Now
	}
	page, err := m.store.List(m.ctx, q)
	require.NoError(m, err)
	got := map[string]bool{}
	for _, r := range page.Records {
		got[r.ID] = true
		same(m, m.records[r.Key], r)
	}
	want := map[string]bool{}
	for _, r := range m.records {
		if q.Match(r, now) {
			want[r.ID] = true
		}
	}
	require.Equal(m, want, got, "%+v", q)
}
