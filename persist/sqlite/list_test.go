package sqlite

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

// A tombstone that keeps its expiry is listed as a tombstone, before and after that time, and never
// as expired; every answer is that of persist.Query.Match.
//
// Proves SCOPE-14.
func TestSweptTombstones(t *testing.T) {
	s := openAt(t, dbPath(t), Config{})
	now := hostTime()
	past, future := now.Add(-time.Hour), now.Add(time.Hour)
	live := persist.Lease{Holder: "h", Token: 1, Until: future}
	records := map[string]persist.Record{
		"alive":         {Expires: future},
		"forever":       {},
		"expired":       {Expires: past},
		"held":          {Expires: past, Lease: live},
		"let go":        {Expires: past, Lease: persist.Lease{Holder: "h", Token: 1, Until: past}},
		"deleted":       {Deleted: true},
		"swept":         {Deleted: true, Expires: past},
		"swept ahead":   {Deleted: true, Expires: future}, // by a host whose clock was ahead
		"swept, leased": {Deleted: true, Expires: past, Lease: live},
	}
	for id, r := range records {
		r.Key, r.Version, r.Born, r.Updated = persist.Key{Kind: "k", ID: id}, 1, 1, now
		if !r.Deleted {
			r.Doc = []byte(`{}`)
		}
		records[id] = r
		_, err := s.writer.conn.ExecContext(t.Context(), s.sql.store, values(r)...)
		require.NoError(t, err)
	}
	for _, q := range []persist.Query{
		{}, {Expired: true}, {Deleted: true}, {Expired: true, Deleted: true},
		{Unheld: true}, {Unheld: true, Expired: true}, {Unheld: true, Deleted: true},
	} {
		page, err := s.List(t.Context(), q)
		require.NoError(t, err)
		var want, got []string
		for id, r := range records {
			if q.Match(r, now) {
				want = append(want, id)
			}
		}
		for _, r := range page.Records {
			require.Equal(t, records[r.ID].Expires, r.Expires, r.ID)
			got = append(got, r.ID)
		}
		require.ElementsMatch(t, want, got, "%+v", q)
	}
}
