package persisttest_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pawl-go/pawl/internal/testkit"
	"github.com/pawl-go/pawl/persist"
	"github.com/pawl-go/pawl/persist/persisttest"
)

func TestMain(m *testing.M) { testkit.Main(m.Run) }

// data are the records at a location, which several handles share.
type data struct {
	mu      sync.Mutex // protects the fields below
	records map[persist.Key]persist.Record
	muted   bool // answers of commits are lost
}

// flaw is what is wrong with a store.
type flaw struct {
	// ownClock judges by the clock of the handle's host.
	ownClock bool
	// denies says of a commit whose answer was lost that it was not applied.
	denies bool
	// unordered lists the due in the order of their ids.
	unordered bool
	// overstates the number of keys that a commit may have.
	overstates bool
	// unlimited accepts commits beyond the limits.
	unlimited bool
}

// handle is a store as another process sees it, with a flaw.
type handle struct {
	*data
	flaw
	off    time.Duration // by which the clock of its host is wrong
	remote bool          // its answers can be lost
}

const maxKeys, maxBytes = 10, 1000

func (h *handle) Limits() persist.Limits {
	if h.overstates {
		return persist.Limits{MaxKeys: maxKeys + 1, MaxBytes: maxBytes}
	}
	return persist.Limits{MaxKeys: maxKeys, MaxBytes: maxBytes}
}

func (h *handle) now() time.Time {
	now := time.Now().UTC().Truncate(time.Microsecond)
	if h.ownClock {
		return now.Add(h.off)
	}
	return now
}

func (h *handle) Load(ctx context.Context, key persist.Key) (persist.Record, error) {
	if err := ctx.Err(); err != nil {
		return persist.Record{}, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	r, ok := h.records[key]
	if r.Key, r.Now = key, h.now(); !ok {
		return r, persist.ErrNotFound
	}
	return r.Clone(), nil
}

func (h *handle) Commit(ctx context.Context, c persist.Commit) (time.Time, error) {
	if err := c.Validate(); err != nil {
		return time.Time{}, err
	}
	limits := persist.Limits{MaxKeys: maxKeys, MaxBytes: maxBytes}
	if h.unlimited {
		limits = persist.Limits{}
	}
	if err := limits.Check(c); err != nil {
		return time.Time{}, err
	}
	at, err := h.apply(c)
	if err != nil || !h.lost() {
		return at, err
	}
	<-ctx.Done()
	err = fmt.Errorf("%w: no answer: %w", persist.ErrUnavailable, ctx.Err())
	if h.denies {
		err = fmt.Errorf("%w: %w", persist.ErrNotApplied, err)
	}
	return time.Time{}, err
}

func (h *handle) lost() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.muted && h.remote
}

func (h *handle) apply(c persist.Commit) (time.Time, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := h.now()
	next, err := persist.Apply(c, h.records, at)
	for _, r := range next {
		h.records[r.Key] = r
	}
	return at, err
}

func (h *handle) List(_ context.Context, q persist.Query) (page persist.Page, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	page.Records = h.match(q)
	return page, nil
}

// match returns the records that match q. The caller holds mu.
func (h *handle) match(q persist.Query) (matching []persist.Record) {
	now := h.now()
	for _, r := range h.records {
		if r.Now = now; q.Match(r, now) {
			matching = append(matching, r)
		}
	}
	slices.SortFunc(matching, func(a, b persist.Record) int {
		if q.Due && !h.unordered && !a.Due.Equal(b.Due) {
			return a.Due.Compare(b.Due)
		}
		return a.Key.Compare(b.Key)
	})
	return matching
}

func (h *handle) Take(ctx context.Context, q persist.Query, a persist.Acquire, change persist.Change) (all []persist.Record, err error) {
	if err := a.ValidateTake(q); err != nil {
		return nil, err
	}
	q.Unheld = true
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.match(q) {
		if len(all) == q.PageSize() {
			break
		}
		if taken, ok := a.Take(r, r.Now, change); ok {
			all = append(all, taken)
			h.records[r.Key] = taken
		}
	}
	return all, ctx.Err()
}

func (h *handle) Close() error { return nil }

// flaws maps each flaw to the group of tests that has to find it, and to a part of the name of one
// that does.
var flaws = map[string]struct {
	flaw
	group, test string
}{
	"ownClock":   {flaw{ownClock: true}, "Clocks", "hosts_with_wrong_clocks"},
	"denies":     {flaw{denies: true}, "Doubts", "no_answer_in_time"},
	"unordered":  {flaw{unordered: true}, "Leases", "longest_due_first"},
	"overstates": {flaw{overstates: true}, "Limits", "most_keys"},
	"unlimited":  {flaw{unlimited: true}, "Limits", "too_many"},
	"none":       {flaw{}, "(Clocks|Doubts|Limits|Leases)", ""},
}

const flawVariable = "PAWL_TEST_FLAW"

// TestFlawedStore runs the suite on a store with a flaw, in a child of TestSuiteFindsFlaws.
func TestFlawedStore(t *testing.T) {
	f, ok := flaws[os.Getenv(flawVariable)]
	if !ok {
		t.Skip("only in a child of TestSuiteFindsFlaws")
	}
	var mu sync.Mutex // protects places
	places := map[string]*data{}
	open := func(location string, off time.Duration) *handle {
		mu.Lock()
		defer mu.Unlock()
		location, remote := strings.CutPrefix(location, "remote:")
		if places[location] == nil {
			places[location] = &data{records: map[persist.Key]persist.Record{}}
		}
		return &handle{data: places[location], flaw: f.flaw, off: off, remote: remote}
	}
	persisttest.Run(t, func(location string) (persist.Store, error) { return open(location, 0), nil }, persisttest.Options{
		Volatile: true,
		Skewed:   func(location string, off time.Duration) (persist.Store, error) { return open(location, off), nil },
		Link: func(_ *testing.T, location string) persisttest.Link {
			at := open(location, 0)
			mute := func(muted bool) func() {
				return func() {
					at.mu.Lock()
					defer at.mu.Unlock()
					at.muted = muted
				}
			}
			return persisttest.Link{Location: "remote:" + location, Mute: mute(true), Cut: mute(false)}
		},
	})
}

// The suite fails a store that reports a commit in doubt as not applied, judges time by the clock of
// each host, answers the due out of order, or has other limits than it states. It passes the same
// store without the flaw.
//
// Proves STORE-17, STORE-16.
func TestSuiteFindsFlaws(t *testing.T) {
	for name, f := range flaws {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.v", "-test.run", "^TestFlawedStore$/^"+f.group+"$")
			cmd.Env = append(os.Environ(), flawVariable+"="+name)
			out, err := cmd.CombinedOutput()
			if f.test == "" {
				require.NoError(t, err, "%s", out)
				return
			}
			require.Error(t, err, "the suite passes")
			require.Regexp(t, "--- FAIL: TestFlawedStore/.*"+f.test, string(out))
			require.NotContains(t, string(out), "panic:")
		})
	}
}
