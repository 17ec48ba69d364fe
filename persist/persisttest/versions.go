package persisttest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

func (s suite) versions() map[string]func(*testing.T) {
	return map[string]func(*testing.T){
		"an absent key is not found":            s.absentKey,
		"a created record is as it was written": s.created,
		"an update replaces all but commit ids": s.replaced,
		"a stale version conflicts":             s.staleVersion,
		"a second creator conflicts":            s.secondCreator,
		"a future version conflicts":            s.futureVersion,
		"several mutations share one write":     s.sharedWrite,
		"the winner is the current record":      s.winnerIsCurrent,
	}
}

// absentKey: Load returns ErrNotFound for an absent key, not another error.
//
// Proves STORE-1.
func (s suite) absentKey(t *testing.T) {
	f := s.fresh(t)
	r, err := f.store.Load(f.Context(), thing)
	require.ErrorIs(t, err, persist.ErrNotFound)
	require.True(t, r.Absent())
	require.Zero(t, r.Version, "the floor of an empty store")
}

// created: every field is kept, times in UTC with microseconds.
//
// Proves STORE-1, STORE-8.
func (s suite) created(t *testing.T) {
	f := s.fresh(t)
	due := time.Date(2031, 2, 3, 4, 5, 6, 789_123_000, time.FixedZone("east", 3600))
	before := time.Now().Add(-time.Minute)
	write := persist.Write{
		Key: thing, Version: 3, Doc: doc(3), Schema: 7, Label: "open", Due: due, TTL: time.Hour,
		Acquire: &persist.Acquire{Holder: "me", For: time.Minute},
	}
	commit := persist.Commit{ID: commitID(), Writes: []persist.Write{write}}
	at, err := f.store.Commit(f.Context(), commit)
	require.NoError(t, err)
	require.WithinRange(t, at, before, time.Now().Add(time.Minute))
	r := f.load(thing)
	same(t, persist.Record{
		Key: thing, Version: 3, Born: 3, Doc: doc(3), Schema: 7, Label: "open", Due: due.UTC(),
		Expires: at.Add(time.Hour), Updated: at, Commits: []string{commit.ID},
		Lease: persist.Lease{Holder: "me", Token: 3, Until: at.Add(time.Minute)},
	}, r)
	require.WithinRange(t, r.Now, at, at.Add(time.Minute))
}

// replaced: a write replaces the metadata too, and keeps the lease.
//
// Proves STORE-1.
func (s suite) replaced(t *testing.T) {
	f := s.fresh(t)
	write := create(thing)
	write.Schema, write.Label, write.Due, write.TTL = 7, "open", time.Now(), time.Hour
	write.Acquire = &persist.Acquire{Holder: "me", For: time.Hour}
	f.must(write)
	lease := f.load(thing).Lease
	at := f.must(update(thing, 1))
	r := f.load(thing)
	require.Len(t, r.Commits, 2)
	r.Commits = nil
	same(t, persist.Record{Key: thing, Version: 2, Born: 1, Doc: doc(2), Updated: at, Lease: lease}, r)

	late := update(thing, 2)
	late.DueIn = time.Hour
	at = f.must(late)
	require.True(t, f.load(thing).Due.Equal(at.Add(time.Hour)), "DueIn counts from the commit")
}

// staleVersion: a write that expects an old version conflicts and changes nothing.
//
// Proves STORE-2.
func (s suite) staleVersion(t *testing.T) {
	f := s.fresh(t)
	f.must(create(thing))
	f.must(update(thing, 1))
	before := f.load(thing)
	_, err := f.write(update(thing, 1))
	winners := lost(t, err)
	require.Len(t, winners, 1)
	same(t, before, winners[0])
	same(t, before, f.load(thing))
}

// secondCreator: creating an existing record returns a conflict with the existing record.
//
// Proves STORE-2, STORE-5.
func (s suite) secondCreator(t *testing.T) {
	f := s.fresh(t)
	f.must(create(thing))
	second := create(thing)
	second.Version = 9
	_, err := f.write(second)
	same(t, f.load(thing), lost(t, err)[0])
}

// futureVersion: a write that expects a version that was never written conflicts, also on an absent
// key.
//
// Proves STORE-2.
func (s suite) futureVersion(t *testing.T) {
	f := s.fresh(t)
	_, err := f.write(update(thing, 5))
	winner := lost(t, err)[0]
	require.True(t, winner.Absent())
	require.Equal(t, thing, winner.Key)
	f.must(create(thing))
	_, err = f.write(update(thing, 5))
	require.EqualValues(t, 1, lost(t, err)[0].Version)
}

// sharedWrite: a version may grow by more than one.
//
// Proves STORE-1.
func (s suite) sharedWrite(t *testing.T) {
	f := s.fresh(t)
	f.must(create(thing))
	batch := update(thing, 1)
	batch.Version = 11
	f.must(batch)
	require.EqualValues(t, 11, f.load(thing).Version)
	f.must(update(thing, 11))
}

// winnerIsCurrent: a writer that loses gets the current record, and can write the next version
// without another read.
//
// Proves STORE-5.
func (s suite) winnerIsCurrent(t *testing.T) {
	f := s.fresh(t)
	f.must(create(thing))
	for version := uint64(1); version < 20; version++ {
		f.must(update(thing, version))
		_, err := f.write(update(thing, version))
		winner := lost(t, err)[0]
		require.EqualValues(t, version+1, winner.Version)
		sameDoc(t, doc(int(version)+1), winner.Doc)
		require.Len(t, winner.Commits, min(int(version)+1, 4))
	}
}
