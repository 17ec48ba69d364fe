package persist_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

var (
	noon  = time.Date(2030, 1, 2, 12, 0, 0, 123_456_789, time.FixedZone("east", 3600))
	thing = persist.Key{Kind: "thing", ID: "1"}
)

// TestApplyIsPure: Apply changes neither the commit nor the current records.
//
// Proves STORE-2.
func TestApplyIsPure(t *testing.T) {
	ring := make([]string, 1, 10) // an append in place would write behind its end
	ring[0] = "w.0"
	current := map[persist.Key]persist.Record{thing: {Key: thing, Version: 1, Doc: []byte(`1`), Updated: noon, Commits: ring}}
	c := persist.Commit{ID: "w.1", Writes: []persist.Write{{Key: thing, Expected: 1, Version: 2, Doc: []byte(`2`)}}}
	before, err := json.Marshal(current[thing])
	require.NoError(t, err)
	next, err := persist.Apply(c, current, noon)
	require.NoError(t, err)
	require.Equal(t, []string{"w.0", "w.1"}, next[0].Commits)
	after, err := json.Marshal(current[thing])
	require.NoError(t, err)
	require.JSONEq(t, string(before), string(after))
	require.Empty(t, ring[:2][1])

	_, err = persist.Apply(c, map[persist.Key]persist.Record{thing: next[0]}, noon)
	var conflict *persist.Conflict
	require.ErrorAs(t, err, &conflict)
	conflict.Winners[0].Doc[0] = 'x'
	require.Equal(t, `2`, string(next[0].Doc))
}

// TestApplyKeepsMicroseconds: times are in UTC and have microseconds, as every store keeps them.
//
// Proves STORE-8.
func TestApplyKeepsMicroseconds(t *testing.T) {
	next, err := persist.Apply(persist.Commit{ID: "w.1", Writes: []persist.Write{{
		Key: thing, Version: 1, Doc: []byte(`{}`), TTL: time.Hour + 1, Due: noon,
		Acquire: &persist.Acquire{Holder: "me", For: time.Minute + 999},
	}}}, nil, noon)
	require.NoError(t, err)
	at := time.Date(2030, 1, 2, 11, 0, 0, 123_456_000, time.UTC)
	r := next[0]
	require.Equal(t, []time.Time{at, at, at.Add(time.Hour), at.Add(time.Minute)}, []time.Time{r.Updated, r.Due, r.Expires, r.Lease.Until})
}

// TestKeysAreSorted: stores lock keys in the order of Keys.
//
// Proves STORE-2.
func TestKeysAreSorted(t *testing.T) {
	k := func(kind, id string) persist.Key { return persist.Key{Kind: kind, ID: id} }
	c := persist.Commit{
		Writes: []persist.Write{{Key: k("b", "1")}, {Key: k("a", "2")}},
		Guards: []persist.Guard{{Key: k("a", "1")}, {Key: k("b", "1")}},
	}
	require.Equal(t, []persist.Key{k("a", "1"), k("a", "2"), k("b", "1")}, c.Keys())
}

// TestFloor: a new record cannot have a version that a purged tombstone may have had.
//
// Proves STORE-2.
func TestFloor(t *testing.T) {
	current := map[persist.Key]persist.Record{thing: {Key: thing, Version: 7}}
	for version, ok := range map[uint64]bool{1: false, 7: false, 8: true} {
		_, err := persist.Apply(persist.Commit{ID: "w.1", Writes: []persist.Write{{Key: thing, Version: version, Doc: []byte(`{}`)}}}, current, noon)
		if ok {
			require.NoError(t, err)
			continue
		}
		var conflict *persist.Conflict
		require.ErrorAs(t, err, &conflict)
		require.True(t, conflict.Winners[0].Absent())
		require.EqualValues(t, 7, conflict.Winners[0].Version)
	}
}

// FuzzRecord: a record that was decoded from JSON is the same after encoding and decoding again.
//
// Proves STORE-1.
func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"kind":"thing","id":"1","version":1,"doc":{"n":1},"updated":"2030-01-02T03:04:05.123456Z"}`))
	f.Add([]byte(`{"kind":"a","id":"b","version":18446744073709551615,"deleted":true,"updated":"2030-01-02T03:04:05Z","commits":["w.1","w.2"]}`))
	f.Add([]byte(`{"lease":{"holder":"me","token":3,"until":"2030-01-02T03:04:05+01:00"},"due":"0001-01-01T00:00:00Z","doc":null}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var r persist.Record
		if json.Unmarshal(text, &r) != nil {
			return
		}
		again, err := json.Marshal(r)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		var second persist.Record
		if err := json.Unmarshal(again, &second); err != nil {
			t.Fatalf("%s: %v", again, err)
		}
		third, err := json.Marshal(second)
		if err != nil || string(third) != string(again) {
			t.Fatalf("%s became %s, %v", again, third, err)
		}
		_ = r.Gone(noon)
		_ = persist.Query{}.Match(r, noon)
		// A commit on any stored record either succeeds with its version or returns an error.
		c := persist.Commit{ID: "w.1", Writes: []persist.Write{{Key: r.Key, Expected: r.Version, Gone: r.Gone(noon), Version: r.Version + 1, Doc: []byte(`{}`)}}}
		if next, err := persist.Apply(c, map[persist.Key]persist.Record{r.Key: r}, noon); err == nil && next[0].Version != r.Version+1 {
			t.Fatalf("%+v became %+v", r, next[0])
		}
	})
}

// An adapter reads the current records, calls Apply, and stores the records that it returns.
func ExampleApply() {
	account := persist.Key{Kind: "account", ID: "7"}
	stored := map[persist.Key]persist.Record{}
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

	opening := persist.Commit{ID: "teller.1", Writes: []persist.Write{{Key: account, Version: 1, Doc: []byte(`{"cents":0}`)}}}
	next, err := persist.Apply(opening, stored, now)
	fmt.Println(len(next), err)
	for _, record := range next {
		stored[record.Key] = record
	}
	_, err = persist.Apply(opening, stored, now)
	fmt.Println(err)
	// Output:
	// 1 <nil>
	// persist: version conflict: "account/7": expected no record, found version 1
}

// TestErrorsNameVersions: the messages of Conflict and Fenced have the key, the expected and the
// current version or token.
//
// Proves STORE-2.
func TestErrorsNameVersions(t *testing.T) {
	key := func(id string) persist.Key { return persist.Key{Kind: "thing", ID: id} }
	current := map[persist.Key]persist.Record{
		key("alive"):   {Version: 5},
		key("deleted"): {Version: 6, Deleted: true},
		key("expired"): {Version: 7, Expires: past},
		key("leased"):  {Version: 8, Lease: held},
		key("purged"):  {Version: 9},
		key("lapsed"):  {Version: 10, Lease: persist.Lease{Holder: "me", Token: 4, Until: past}},
	}
	for k, r := range current {
		if r.Key = k; k.ID != "purged" {
			r.Updated, r.Doc = past, []byte(`{}`)
		}
		current[k] = r
	}
	write := func(id string, expected uint64) persist.Write {
		return persist.Write{Key: key(id), Expected: expected, Version: expected + 1, Doc: []byte(`{}`)}
	}
	acquire, gone := write("leased", 8), write("alive", 5)
	acquire.Acquire = &persist.Acquire{Holder: "you", For: time.Hour}
	gone.Gone = true
	for want, c := range map[string]persist.Commit{
		`"thing/alive": expected version 3, found version 5`:                    {Writes: []persist.Write{write("alive", 3)}},
		`"thing/alive": expected version 5 (gone), found version 5`:             {Writes: []persist.Write{gone}},
		`"thing/alive": expected no record, found version 5`:                    {Guards: []persist.Guard{{Key: key("alive"), Read: true}}},
		`"thing/deleted": expected version 6, found version 6 (deleted)`:        {Writes: []persist.Write{write("deleted", 6)}},
		`"thing/expired": expected version 7, found version 7 (expired)`:        {Writes: []persist.Write{write("expired", 7)}},
		`"thing/leased": expected version 8, found version 8 (leased by "me")`:  {Writes: []persist.Write{acquire}},
		`"thing/purged": expected no record, found no record (version floor 9)`: {Writes: []persist.Write{write("purged", 0)}},
		`"thing/absent": expected version 2, found no record`:                   {Writes: []persist.Write{write("absent", 2)}},
		`"thing/alive": expected version 4, found version 5`: {
			Writes: []persist.Write{write("alive", 5)}, Guards: []persist.Guard{{Key: key("alive"), Read: true, Version: 4}},
		},
		`"thing/a": expected version 1, found no record; "thing/b": expected version 2, found no record; ` +
			`"thing/c": expected version 3, found no record; and 1 more`: {
			Writes: []persist.Write{write("a", 1), write("b", 2), write("c", 3), write("d", 4)},
		},
	} {
		c.ID = "w.1"
		_, err := persist.Apply(c, current, noon)
		require.EqualError(t, err, "persist: version conflict: "+want)
	}
	for want, id := range map[string]string{
		`"thing/absent": expected token 3, found no record`:                                                  "absent",
		`"thing/alive": expected token 3, found no lease at version 5`:                                       "alive",
		`"thing/leased": expected token 3, found token 2 of "me"`:                                            "leased",
		`"thing/lapsed": expected token 3, found token 4, which ran out at ` + past.Format(time.RFC3339Nano): "lapsed",
	} {
		_, err := persist.Apply(persist.Commit{Guards: []persist.Guard{{Key: key(id), Token: 3}}}, current, noon)
		require.EqualError(t, err, "persist: lease lost: "+want)
	}
	w := write("alive", 3)
	require.EqualError(t, w.Conflict(persist.Record{Key: key("alive"), Version: 5, Updated: past}),
		`persist: version conflict: "thing/alive": expected version 3, found version 5`)
	require.EqualError(t, &persist.Conflict{}, "persist: version conflict")
}
