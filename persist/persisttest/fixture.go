package persisttest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

// fixture is the store of one test, with short methods for using it.
type fixture struct {
	*testing.T
	store    persist.Store
	location string
}

// fresh opens an empty store that is closed when t ends.
func (s suite) fresh(t *testing.T) *fixture {
	t.Helper()
	return s.at(t, s.location(t))
}

// at opens the store at location.
func (s suite) at(t *testing.T, location string) *fixture {
	t.Helper()
	store, err := s.open(location)
	require.NoError(t, err, "open")
	t.Cleanup(func() { require.NoError(t, store.Close(), "close") })
	return &fixture{T: t, store: store, location: location}
}

var lastCommit atomic.Int64

// commitID returns an id that is unique in this process.
func commitID() string { return fmt.Sprintf("suite.%d", lastCommit.Add(1)) }

var thing = persist.Key{Kind: "thing", ID: "1"}

func key(id string) persist.Key { return persist.Key{Kind: "thing", ID: id} }

// create returns the write that creates an absent key.
func create(k persist.Key) persist.Write { return update(k, 0) }

// update returns the write of the version after expected.
func update(k persist.Key, expected uint64) persist.Write {
	return persist.Write{Key: k, Expected: expected, Version: expected + 1, Doc: doc(int(expected) + 1)}
}

// remove returns the delete of version expected.
func remove(k persist.Key, expected uint64) persist.Write {
	return persist.Write{Key: k, Expected: expected, Version: expected + 1, Deleted: true}
}

// doc returns a document that contains n.
func doc(n int) json.RawMessage { return fmt.Appendf(nil, `{"n": %d}`, n) }

// write commits writes alone.
func (f *fixture) write(writes ...persist.Write) (time.Time, error) {
	f.Helper()
	return f.store.Commit(f.Context(), persist.Commit{ID: commitID(), Writes: writes})
}

// guard commits guards alone.
func (f *fixture) guard(guards ...persist.Guard) (time.Time, error) {
	f.Helper()
	return f.store.Commit(f.Context(), persist.Commit{ID: commitID(), Guards: guards})
}

// must commits writes and fails the test on an error.
func (f *fixture) must(writes ...persist.Write) time.Time {
	f.Helper()
	at, err := f.write(writes...)
	require.NoError(f, err)
	require.False(f, at.IsZero(), "Commit returned no time")
	return at
}

// load returns the record of a key that is not absent.
func (f *fixture) load(k persist.Key) persist.Record {
	f.Helper()
	r, err := f.store.Load(f.Context(), k)
	require.NoError(f, err)
	require.Equal(f, k, r.Key)
	require.False(f, r.Now.IsZero(), "Record.Now is not set")
	return r
}

// floor returns the version floor. The key k must be absent.
func (f *fixture) floor(k persist.Key) uint64 {
	f.Helper()
	r, err := f.store.Load(f.Context(), k)
	require.ErrorIs(f, err, persist.ErrNotFound)
	require.True(f, r.Absent())
	return r.Version
}

// eventually loads k until is returns true. Tests use it to wait for a time of the store's clock.
func (f *fixture) eventually(k persist.Key, want string, is func(persist.Record) bool) persist.Record {
	f.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		r := f.load(k)
		if is(r) {
			return r
		}
		require.True(f, time.Now().Before(deadline), "%s was never %s", k, want)
		time.Sleep(time.Millisecond)
	}
}

// lost asserts that err is a *Conflict and returns its winners.
func lost(t require.TestingT, err error) []persist.Record {
	var conflict *persist.Conflict
	require.ErrorAs(t, err, &conflict)
	require.NotEmpty(t, conflict.Winners)
	for _, winner := range conflict.Winners {
		require.False(t, winner.Now.IsZero(), "Record.Now of a winner is not set")
	}
	return conflict.Winners
}

// fenced asserts that err is a *Fenced and returns its record.
func fenced(t require.TestingT, err error) persist.Record {
	var fenced *persist.Fenced
	require.ErrorAs(t, err, &fenced)
	require.False(t, fenced.Current.Now.IsZero(), "Record.Now of *Fenced is not set")
	return fenced.Current
}

// same asserts that two records are equal except for Now. Documents are compared as JSON with exact
// numbers, because a store may change their spelling.
func same(t require.TestingT, want, got persist.Record) {
	require.Equal(t, plain(t, want), plain(t, got))
}

// plain returns r decoded from JSON, without Now.
func plain(t require.TestingT, r persist.Record) map[string]any {
	text, err := json.Marshal(r)
	require.NoError(t, err)
	return decode(t, text).(map[string]any)
}

// sameDoc asserts that two documents are equal as JSON with exact numbers.
func sameDoc(t require.TestingT, want, got json.RawMessage) {
	require.Equal(t, decode(t, want), decode(t, got))
}

// decode decodes JSON and keeps the spelling of numbers.
func decode(t require.TestingT, text []byte) any {
	var value any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	require.NoError(t, decoder.Decode(&value), "%s", text)
	return value
}

// isConflict reports whether err is a *Conflict.
func isConflict(err error) bool {
	var conflict *persist.Conflict
	return errors.As(err, &conflict)
}
