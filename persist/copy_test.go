package persist_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/memory"
)

// inState returns a record of each state: alive, alive with every field, leased, with a lease that
// ran out, expired, expired with a live lease, deleted, and swept.
func inState(id string, state int) persist.Record {
	ago, later := started.Add(-time.Hour), started.Add(time.Hour)
	r := persist.Record{
		Key: persist.Key{Kind: "thing", ID: id}, Version: 9, Born: 3, Updated: ago,
		Doc: fmt.Appendf(nil, `{"id":%q}`, id), Commits: []string{"a.1", "b.7"},
	}
	switch state {
	case 1:
		r.Schema, r.Label, r.Due, r.Expires = 4, "open", later, later
	case 2:
		r.Lease = persist.Lease{Holder: "me", Token: 8, Until: later}
	case 3:
		r.Lease = persist.Lease{Holder: "me", Token: 8, Until: ago}
	case 4:
		r.Expires = ago
	case 5:
		r.Expires, r.Lease = ago, persist.Lease{Holder: "me", Token: 8, Until: later}
	case 6:
		r.Deleted, r.Doc = true, nil
	case 7:
		r.Deleted, r.Doc, r.Expires = true, nil, ago
	}
	return r
}

const states = 8

// started is the time at which the tests started.
var started = time.Now().UTC().Truncate(time.Microsecond)

// filled returns a store with n records in all states and the version floor 40.
func filled(t testing.TB, n int) *memory.Store {
	store := memory.New()
	var records []persist.Record
	for i := range n {
		records = append(records, inState(fmt.Sprintf("%03d", i), i%states))
	}
	require.NoError(t, store.Restore(context.Background(), records, 40))
	return store
}

// dump returns all records of a store by key, without Now, and the version floor.
func dump(t require.TestingT, store persist.Store) (map[persist.Key]persist.Record, uint64) {
	all := make(map[persist.Key]persist.Record)
	for _, q := range []persist.Query{{Limit: 1000}, {Limit: 1000, Expired: true}, {Limit: 1000, Deleted: true}} {
		page, err := store.List(context.Background(), q)
		require.NoError(t, err)
		require.Empty(t, page.Next)
		for _, r := range page.Records {
			r.Now = time.Time{}
			all[r.Key] = r
		}
	}
	r, err := store.Load(context.Background(), persist.Key{Kind: "none", ID: "none"})
	require.ErrorIs(t, err, persist.ErrNotFound)
	return all, r.Version
}

// requireSame asserts that two stores have the same records and the same floor.
func requireSame(t require.TestingT, from, to persist.Store) {
	want, floor := dump(t, from)
	got, copied := dump(t, to)
	require.Equal(t, want, got)
	require.Equal(t, floor, copied)
}

// TestCopy: every field of records in every state is kept, and a second run writes nothing.
//
// Proves STORE-15.
func TestCopy(t *testing.T) {
	const n = 3*states + 1
	from, to := filled(t, n), memory.New()
	var pages []persist.CopyReport
	opts := persist.CopyOptions{PageSize: 4, Progress: func(r persist.CopyReport) { pages = append(pages, r) }}
	report, err := persist.Copy(t.Context(), from, to, opts)
	require.NoError(t, err)
	require.Equal(t, persist.CopyReport{Copied: n, Verified: n}, report)
	requireSame(t, from, to)
	require.Equal(t, 4, pages[0].Copied)
	require.Equal(t, report, pages[len(pages)-1])

	report, err = persist.Copy(t.Context(), from, to, persist.CopyOptions{})
	require.NoError(t, err)
	require.Equal(t, persist.CopyReport{Unchanged: n, Verified: n}, report)
	requireSame(t, from, to)
}

// broken is a destination whose Restore calls before, which may replace the records or fail.
type broken struct {
	*memory.Store
	before func(records []persist.Record) ([]persist.Record, error)
}

func (b *broken) Restore(ctx context.Context, records []persist.Record, floor uint64) error {
	kept, err := b.before(records)
	return errors.Join(b.Store.Restore(ctx, kept, floor), err)
}

var errCrash = errors.New("crash")

// TestCopyIsResumed: a run that ends after any number of records is completed by the next one,
// which does not write the records that are there.
//
// Proves STORE-15.
func TestCopyIsResumed(t *testing.T) {
	const n = 2*states + 3
	from := filled(t, n)
	for limit := range n {
		to := &broken{Store: memory.New()}
		written := make(map[persist.Key]int)
		to.before = func(records []persist.Record) (kept []persist.Record, err error) {
			for _, r := range records {
				if len(written) == limit {
					return kept, errCrash
				}
				written[r.Key]++
				kept = append(kept, r)
			}
			return kept, nil
		}
		report, err := persist.Copy(t.Context(), from, to, persist.CopyOptions{PageSize: 5})
		require.ErrorIs(t, err, errCrash)
		copied, _ := dump(t, to)
		require.Len(t, copied, limit)
		require.LessOrEqual(t, report.Copied, limit)

		report, err = persist.Copy(t.Context(), from, to.Store, persist.CopyOptions{PageSize: 5})
		require.NoError(t, err)
		require.Equal(t, persist.CopyReport{Copied: n - limit, Unchanged: limit, Verified: n}, report)
		requireSame(t, from, to.Store)
	}
}

// TestCopyIsCanceled: Copy returns the context's error, and the next run completes the copy.
//
// Proves STORE-15.
func TestCopyIsCanceled(t *testing.T) {
	const n = 20
	from, to := filled(t, n), memory.New()
	ctx, cancel := context.WithCancel(t.Context())
	report, err := persist.Copy(ctx, from, to, persist.CopyOptions{PageSize: 3, Progress: func(persist.CopyReport) { cancel() }})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 3, report.Copied)
	report, err = persist.Copy(t.Context(), from, to, persist.CopyOptions{PageSize: 3})
	require.NoError(t, err)
	require.Equal(t, persist.CopyReport{Copied: n - 3, Unchanged: 3, Verified: n}, report)
	requireSame(t, from, to)
}

// TestCopyAgain: a second run copies the changes of the source since the first one, also changes
// that move no version, and nothing else.
//
// Proves STORE-15.
func TestCopyAgain(t *testing.T) {
	const n = 2 * states
	from, to := filled(t, n), memory.New()
	_, err := persist.Copy(t.Context(), from, to, persist.CopyOptions{})
	require.NoError(t, err)

	key := func(id string) persist.Key { return persist.Key{Kind: "thing", ID: id} }
	commit := func(c persist.Commit) {
		t.Helper()
		c.ID = "w.1"
		_, err := from.Commit(t.Context(), c)
		require.NoError(t, err)
	}
	commit(persist.Commit{Writes: []persist.Write{{Key: key("000"), Expected: 9, Version: 10, Doc: []byte(`{}`)}}})
	commit(persist.Commit{Writes: []persist.Write{{Key: key("004"), Expected: 9, Version: 10, Gone: true, Swept: true, Deleted: true}}})
	commit(persist.Commit{Guards: []persist.Guard{{Key: key("001"), Read: true, Version: 9, TTL: time.Minute}}})
	commit(persist.Commit{Guards: []persist.Guard{{Key: key("002"), Token: 8, Extend: 2 * time.Hour}}})
	commit(persist.Commit{Guards: []persist.Guard{{Key: key("005"), Token: 8, Release: true}}})
	commit(persist.Commit{Writes: []persist.Write{{Key: key("new"), Version: 41, Doc: []byte(`{}`)}}})
	report, err := persist.Copy(t.Context(), from, to, persist.CopyOptions{})
	require.NoError(t, err)
	require.Equal(t, persist.CopyReport{Copied: 6, Unchanged: n + 1 - 6, Verified: n + 1}, report)
	requireSame(t, from, to)

	// The destination keeps tombstones that the source purged. They have the same meaning.
	_, err = from.Purge(t.Context(), persist.Query{})
	require.NoError(t, err)
	report, err = persist.Copy(t.Context(), from, to, persist.CopyOptions{})
	require.NoError(t, err)
	require.Zero(t, report.Copied)
	want, _ := dump(t, from)
	got, _ := dump(t, to)
	require.Greater(t, len(got), len(want))
}

// TestCopyOfAWrittenDestination: Copy does not replace or remove a record that was written in the
// destination, and names it.
//
// Proves STORE-15.
func TestCopyOfAWrittenDestination(t *testing.T) {
	change := func(change func(*persist.Record)) persist.Record {
		r := inState("000", 0)
		change(&r)
		return r
	}
	for want, r := range map[string]persist.Record{
		`"thing/000": written in the destination: version 9 in the source, version 12 in the destination`: change(func(r *persist.Record) { r.Version = 12 }),
		`written in the destination: version 9 in the source, version 8 in the destination`: change(func(r *persist.Record) {
			r.Version, r.Commits = 8, append(slices.Clone(r.Commits), "x.1") // the destination went on by itself
		}),
		`version 9 has another doc in the destination`:                                    change(func(r *persist.Record) { r.Doc = []byte(`{"id":"other"}`) }),
		`version 9 has another updated in the destination`:                                change(func(r *persist.Record) { r.Updated = r.Updated.Add(time.Second) }),
		`version 9 has another commits in the destination`:                                change(func(r *persist.Record) { r.Commits = []string{"x.1"} }),
		`version 9 has another doc, deleted in the destination`:                           change(func(r *persist.Record) { r.Doc, r.Deleted = nil, true }),
		`1 records differ, the first is "thing/extra": version 9 only in the destination`: inState("extra", 0),
		`the first is "thing/tombstone": version 41 only in the destination`: {
			Key: persist.Key{Kind: "thing", ID: "tombstone"}, Version: 41, Deleted: true, Updated: started,
		},
	} {
		from, to := filled(t, 1), memory.New()
		require.NoError(t, to.Restore(t.Context(), []persist.Record{r}, 0))
		before, err := to.Load(t.Context(), r.Key)
		require.NoError(t, err)
		_, err = persist.Copy(t.Context(), from, to, persist.CopyOptions{})
		require.ErrorContains(t, err, want)
		after, err := to.Load(t.Context(), r.Key)
		require.NoError(t, err)
		before.Now, after.Now = time.Time{}, time.Time{}
		require.Equal(t, before, after)
	}
}

// TestCopySweptAndDeleted: a tombstone that was swept and one that was deleted at the same version
// are two different records.
//
// Proves STORE-15.
func TestCopySweptAndDeleted(t *testing.T) {
	for state := 6; state < 8; state++ {
		from, to := memory.New(), memory.New()
		require.NoError(t, from.Restore(t.Context(), []persist.Record{inState("1", state)}, 0))
		require.NoError(t, to.Restore(t.Context(), []persist.Record{inState("1", 13-state)}, 0))
		_, err := persist.Copy(t.Context(), from, to, persist.CopyOptions{})
		require.ErrorContains(t, err, "version 9 has another expires")
	}
}

// TestCopyVerifies: the comparison finds a record that the destination lost or changed, in any
// field, and a floor that it did not keep.
//
// Proves STORE-15.
func TestCopyVerifies(t *testing.T) {
	all := inState("1", 5)
	all.Label, all.Due, all.Schema = "open", all.Updated, 4
	for field, change := range map[string]func(*persist.Record){
		"born":    func(r *persist.Record) { r.Born = 4 },
		"doc":     func(r *persist.Record) { r.Doc = []byte(`{"id":1}`) },
		"schema":  func(r *persist.Record) { r.Schema = 0 },
		"label":   func(r *persist.Record) { r.Label = "" },
		"due":     func(r *persist.Record) { r.Due = time.Time{} },
		"expires": func(r *persist.Record) { r.Expires = r.Expires.Add(time.Microsecond) },
		"updated": func(r *persist.Record) { r.Updated = r.Updated.Add(time.Microsecond) },
		"lease":   func(r *persist.Record) { r.Lease.Until = r.Lease.Until.Add(time.Microsecond) },
		"commits": func(r *persist.Record) { r.Commits = r.Commits[1:] },
	} {
		from := memory.New()
		require.NoError(t, from.Restore(t.Context(), []persist.Record{all}, 0))
		to := &broken{memory.New(), func(records []persist.Record) ([]persist.Record, error) {
			for i := range records {
				change(&records[i])
			}
			return records, nil
		}}
		report, err := persist.Copy(t.Context(), from, to, persist.CopyOptions{})
		reason := fmt.Sprintf("version 9 has another %s in the destination", field)
		require.EqualError(t, err, fmt.Sprintf(`persist: copy: 1 records differ, the first is "thing/1": %s`, reason))
		require.Equal(t, []persist.CopyDifference{{Key: all.Key, Reason: reason}}, report.Differences)

		_, err = persist.Copy(t.Context(), from, &broken{memory.New(), to.before}, persist.CopyOptions{SkipVerify: true})
		require.NoError(t, err)
	}

	const n = 150
	loses := &broken{memory.New(), func([]persist.Record) ([]persist.Record, error) { return nil, nil }}
	report, err := persist.Copy(t.Context(), filled(t, n), loses, persist.CopyOptions{})
	require.ErrorContains(t, err, `150 records differ, the first is "thing/000": version 9 only in the source`)
	require.Equal(t, n, report.Differing)
	require.Len(t, report.Differences, 100)

	_, err = persist.Copy(t.Context(), filled(t, 1), &sunk{memory.New()}, persist.CopyOptions{})
	require.EqualError(t, err, "persist: copy: version floor 40 in the source, 0 in the destination")
}

// sunk is a destination that does not keep the version floor.
type sunk struct{ *memory.Store }

func (s *sunk) Restore(ctx context.Context, records []persist.Record, _ uint64) error {
	return s.Store.Restore(ctx, records, 0)
}

// TestCopyNamesTheRecord: a record that the destination refuses is named in the error, and the
// other records of its page are copied up to it.
//
// Proves STORE-15.
func TestCopyNamesTheRecord(t *testing.T) {
	errRefused := errors.New("refused")
	to := &broken{memory.New(), func(records []persist.Record) ([]persist.Record, error) {
		for _, r := range records {
			if r.ID == "002" {
				return nil, errRefused
			}
		}
		return records, nil
	}}
	report, err := persist.Copy(t.Context(), filled(t, 4), to, persist.CopyOptions{})
	require.ErrorIs(t, err, errRefused)
	require.EqualError(t, err, `persist: copy: "thing/002": refused`)
	require.Equal(t, 2, report.Copied)
}

// plainStore hides the optional interfaces of a store, except those that are embedded beside it.
type plainStore struct{ persist.Store }

// TestCopyWithoutOptionalInterfaces: the source needs none, and the destination needs Restorer.
//
// Proves STORE-15.
func TestCopyWithoutOptionalInterfaces(t *testing.T) {
	from, to := filled(t, 20), memory.New()
	_, err := persist.Copy(t.Context(), from, plainStore{to}, persist.CopyOptions{})
	require.ErrorIs(t, err, persist.ErrUnsupported)
	_, err = persist.Copy(t.Context(), plainStore{from}, struct {
		plainStore
		persist.Restorer
	}{plainStore{to}, to}, persist.CopyOptions{})
	require.NoError(t, err)
	requireSame(t, from, to)
}

// skewed is a store whose clock differs from the host's.
type skewed struct {
	*memory.Store
	by time.Duration
}

func (s *skewed) Load(ctx context.Context, key persist.Key) (persist.Record, error) {
	r, err := s.Store.Load(ctx, key)
	r.Now = r.Now.Add(s.by)
	return r, err
}

// TestCopyComparesClocks: leases and expiry would mean something else under another clock, so Copy
// refuses it before it writes.
//
// Proves STORE-15.
func TestCopyComparesClocks(t *testing.T) {
	for _, by := range []time.Duration{-time.Minute, time.Minute} {
		from, to := filled(t, 1), &skewed{memory.New(), by}
		_, err := persist.Copy(t.Context(), from, to, persist.CopyOptions{})
		require.ErrorContains(t, err, "clocks of the stores differ by")
		copied, _ := dump(t, to)
		require.Empty(t, copied)
		_, err = persist.Copy(t.Context(), from, to, persist.CopyOptions{MaxSkew: 2 * time.Minute})
		require.NoError(t, err)
	}
}

// TestCopyComparesValues: a store may change the spelling of a document, and only that.
//
// Proves STORE-15.
func TestCopyComparesValues(t *testing.T) {
	const text = `{"a": 1e2, "b": [0.10, -0, 12345678901234567890, "\u00fc"], "c": null, "d": {}}`
	for spelled, same := range map[string]bool{
		`{"b":[0.1,0,12345678901234567890,"ü"],"d":{},"c":null,"a":100}`:              true,
		`{"b":[1E-1,0.0,1234567890123456789e+1,"ü"],"d":{},"c":null,"a":100.00}`:      true,
		`{"b":[0.1,0,12345678901234567891,"ü"],"d":{},"c":null,"a":100}`:              false,
		`{"b":[0.1,0,12345678901234567890,"u"],"d":{},"c":null,"a":100}`:              false,
		`{"b":[0.1,0,12345678901234567890,"ü"],"d":{},"c":null,"a":-100}`:             false,
		`{"b":[0.1,0,12345678901234567890,"ü"],"d":{},"c":null,"a":"100"}`:            false,
		`{"b":[0.1,0,12345678901234567890],"d":{},"c":null,"a":100}`:                  false,
		`{"b":[0.1,0,12345678901234567890,"ü"],"d":{},"a":100}`:                       false,
		`{"b":[0.1,0,12345678901234567890,"ü"],"d":{},"e":null,"a":100}`:              false,
		`{"b":[0.1,0,12345678901234567890,"ü"],"d":[],"c":null,"a":100}`:              false,
		`{"b":[0.1,0,12345678901234567890,"ü"],"d":{},"c":null,"a":1e99999999999999}`: false,
	} {
		from := memory.New()
		r := inState("1", 0)
		r.Doc = json.RawMessage(text)
		require.NoError(t, from.Restore(t.Context(), []persist.Record{r}, 0))
		to := &broken{memory.New(), func(records []persist.Record) ([]persist.Record, error) {
			for i := range records {
				records[i].Doc = json.RawMessage(spelled)
			}
			return records, nil
		}}
		_, err := persist.Copy(t.Context(), from, to, persist.CopyOptions{})
		require.Equal(t, same, err == nil, spelled)
		if same {
			report, err := persist.Copy(t.Context(), from, to, persist.CopyOptions{})
			require.NoError(t, err)
			require.Zero(t, report.Copied)
		}
	}
}

// TestCopyBesideWriters: a first run while the source is written, and a second run after the
// writers have stopped, leave two equal stores.
//
// Proves STORE-15.
func TestCopyBesideWriters(t *testing.T) {
	const n = 10 * states
	from, to := filled(t, n), memory.New()
	stop := make(chan struct{})
	var writers sync.WaitGroup
	for writer := range 2 {
		writers.Go(func() {
			for i := writer; ; i += 2 {
				select {
				case <-stop:
					return
				default:
				}
				key := persist.Key{Kind: "thing", ID: fmt.Sprintf("%03d", i%n)}
				r, err := from.Load(t.Context(), key)
				if err != nil {
					t.Error(err)
					return
				}
				w := persist.Write{Key: key, Expected: r.Version, Version: r.Version + 1, Gone: r.Gone(r.Now), Doc: []byte(`{}`)}
				if i%3 == 0 {
					w.Deleted, w.Doc = true, nil
				}
				if _, err := from.Commit(t.Context(), persist.Commit{ID: fmt.Sprintf("%d.%d", writer, i), Writes: []persist.Write{w}}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	_, err := persist.Copy(t.Context(), from, to, persist.CopyOptions{PageSize: 3, SkipVerify: true})
	close(stop)
	writers.Wait()
	require.NoError(t, err)
	report, err := persist.Copy(t.Context(), from, to, persist.CopyOptions{PageSize: 3})
	require.NoError(t, err)
	require.Equal(t, n, report.Copied+report.Unchanged)
	requireSame(t, from, to)
}

// TestCopyRandomly: any records are copied by a run that stops anywhere and a second run, over
// changes of the source in between.
//
// Proves STORE-15.
func TestCopyRandomly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		from, to := memory.New(), &broken{Store: memory.New()}
		draw := func() (records []persist.Record) {
			for i := range rapid.IntRange(0, 12).Draw(t, "records") {
				r := inState(fmt.Sprint(i), rapid.IntRange(0, states-1).Draw(t, "state"))
				r.Kind = rapid.SampledFrom([]string{"a", "b"}).Draw(t, "kind")
				records = append(records, r)
			}
			return records
		}
		require.NoError(t, from.Restore(t.Context(), draw(), rapid.Uint64Range(0, 9).Draw(t, "floor")))
		left := rapid.IntRange(0, 13).Draw(t, "written before the crash")
		to.before = func(records []persist.Record) ([]persist.Record, error) {
			if left < len(records) {
				return records[:left], errCrash
			}
			left -= len(records)
			return records, nil
		}
		opts := persist.CopyOptions{PageSize: rapid.IntRange(1, 5).Draw(t, "page")}
		if _, err := persist.Copy(t.Context(), from, to, opts); err != nil {
			require.ErrorIs(t, err, errCrash)
		}
		changed := draw()
		for i := range changed {
			changed[i].Version += 2
		}
		require.NoError(t, from.Restore(t.Context(), changed, rapid.Uint64Range(0, 9).Draw(t, "floor")))
		_, err := persist.Copy(t.Context(), from, to.Store, opts)
		require.NoError(t, err)
		requireSame(t, from, to.Store)
	})
}

// TestValidateRestore: a malformed record is refused.
//
// Proves STORE-15.
func TestValidateRestore(t *testing.T) {
	for state := range states {
		require.NoError(t, persist.ValidateRestore([]persist.Record{inState("1", state)}))
	}
	for name, change := range map[string]func(*persist.Record){
		"no key":             func(r *persist.Record) { r.ID = "" },
		"version 0":          func(r *persist.Record) { r.Version = 0 },
		"absent":             func(r *persist.Record) { r.Updated = time.Time{} },
		"born later":         func(r *persist.Record) { r.Born = 10 },
		"token later":        func(r *persist.Record) { r.Lease.Token = 10 },
		"deleted with doc":   func(r *persist.Record) { r.Deleted, r.Lease = true, persist.Lease{} },
		"deleted with lease": func(r *persist.Record) { r.Deleted, r.Doc = true, nil },
		"no document":        func(r *persist.Record) { r.Doc = nil },
		"not JSON":           func(r *persist.Record) { r.Doc = []byte(`{`) },
		"label":              func(r *persist.Record) { r.Label = "a\x00b" },
		"holder":             func(r *persist.Record) { r.Lease.Holder = "\xff" },
		"commit id":          func(r *persist.Record) { r.Commits = []string{"a\nb"} },
		"long commit id":     func(r *persist.Record) { r.Commits = []string{string(bytes.Repeat([]byte("x"), 129))} },
		"nanoseconds":        func(r *persist.Record) { r.Due = r.Updated.Add(1) },
		"year 10000":         func(r *persist.Record) { r.Expires = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
	} {
		r := inState("1", 2)
		change(&r)
		require.ErrorIs(t, persist.ValidateRestore([]persist.Record{r}), persist.ErrNotApplied, name)
	}
	twice := []persist.Record{inState("1", 0), inState("2", 0), inState("1", 2)}
	require.ErrorIs(t, persist.ValidateRestore(twice), persist.ErrNotApplied)
}
