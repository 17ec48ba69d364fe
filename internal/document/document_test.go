package document

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/persist"
)

var (
	key = persist.Key{Kind: "k", ID: "a"}
	now = time.Unix(1_000, 0)
)

// Whether a record is alive depends on the store's clock at the time of the read. Proves SCOPE-14.
func TestLifeOfRecord(t *testing.T) {
	lease := persist.Lease{Holder: "h", Token: 2, Until: now.Add(time.Minute)}
	for _, c := range []struct {
		name     string
		r        persist.Record
		life     Life
		expected uint64
		gone     bool
	}{
		{"absent", persist.Record{Version: 7}, Absent, 0, false},
		{"alive", persist.Record{Version: 7, Updated: now}, Alive, 7, false},
		{"alive, and expires later", persist.Record{Version: 7, Updated: now, Expires: now.Add(1)}, Alive, 7, false},
		{"expired", persist.Record{Version: 7, Updated: now, Expires: now}, Expired, 7, true},
		{"expired, but held", persist.Record{Version: 7, Updated: now, Expires: now, Lease: lease}, Alive, 7, false},
		{"deleted", persist.Record{Version: 7, Updated: now, Deleted: true}, Deleted, 7, true},
		{"swept", persist.Record{Version: 7, Updated: now, Deleted: true, Expires: now}, Expired, 7, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.r.Key, c.r.Now = key, now
			d := Of(c.r)
			require.Equal(t, c.life, d.Life)
			require.EqualValues(t, 7, d.Version)
			require.Equal(t, c.expected, d.Expected())
			require.Equal(t, c.gone, d.Gone())
			require.Equal(t, persist.Guard{Key: key, Read: true, Version: c.expected, Gone: c.gone}, d.Guard(key))
			if c.r.Lease == lease {
				require.Equal(t, &Holding{Holder: "h", Token: 2, Left: time.Minute}, d.Held)
			} else {
				require.Nil(t, d.Held)
			}
		})
	}
	require.True(t, Of(persist.Record{Deleted: true, Expires: now, Updated: now, Now: now}).Expires.IsZero(), "a swept record has no future expiry")
}

// A version has one content, so one decoded view serves every Doc of that version.
func TestViewsAreShared(t *testing.T) {
	a, b := Of(persist.Record{Version: 7, Updated: now}), Of(persist.Record{Version: 7, Updated: now})
	require.True(t, a.Same(b))
	require.Nil(t, a.View())
	first, second := &View{}, &View{}
	a.Cache(first)
	b.CacheFrom(a)
	require.Same(t, first, b.View())
	a.Cache(second)
	b.CacheFrom(a)
	require.Same(t, first, b.View(), "an existing view is kept")
	renewed := b.Renewed(now.Add(time.Hour))
	require.Same(t, first, renewed.View())
	require.Equal(t, now.Add(time.Hour), renewed.Expires)
	require.True(t, b.Expires.IsZero(), "the Doc itself never changes")
	require.False(t, a.Same(Of(persist.Record{Version: 8, Updated: now})))
	require.False(t, a.Same(Of(persist.Record{Version: 7, Updated: now, Deleted: true})))
}

func TestLanded(t *testing.T) {
	for _, c := range []struct {
		name    string
		w       persist.Write
		records []persist.Record
		expires time.Time
		commits []string
	}{
		{"created", persist.Write{}, nil, time.Time{}, []string{"w.1"}},
		{"the ids are known", persist.Write{Expected: 1, Recent: []string{"x.1"}}, nil, time.Time{}, []string{"x.1", "w.1"}},
		{"the ids are not known", persist.Write{Expected: 1}, nil, time.Time{}, nil},
		{"expires", persist.Write{TTL: time.Hour}, nil, now.Add(time.Hour), []string{"w.1"}},
		{"renewed since", persist.Write{TTL: time.Hour}, []persist.Record{{Key: key, Version: 2, Expires: now.Add(2 * time.Hour)}}, now.Add(2 * time.Hour), []string{"w.1"}},
		{"replaced since", persist.Write{TTL: time.Hour}, []persist.Record{{Key: key, Version: 3}}, now.Add(time.Hour), []string{"w.1"}},
		{"another record", persist.Write{TTL: time.Hour}, []persist.Record{{Version: 2}}, now.Add(time.Hour), []string{"w.1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.w.Key, c.w.Version = key, 2
			d := &Doc{Life: Alive, Version: 2}
			d.Landed(c.w, "w.1", now, c.records)
			require.Equal(t, now, d.At)
			require.Equal(t, c.expires, d.Expires)
			require.Equal(t, c.commits, d.Commits)
		})
	}
}
