package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl/persist"
)

// finding is one line of doctor.
type finding struct {
	Check string `json:"check"`
	OK    bool   `json:"ok"`
	Found string `json:"found"`
	// Advice says what to do. It is empty if OK.
	Advice string `json:"advice,omitempty"`
}

// limits are what doctor accepts.
type limits struct {
	skew       time.Duration // between the clocks
	grace      time.Duration // for due work, leases that ran out and expired records
	tombstones time.Duration // age of tombstones
}

func (a *app) doctorCommand() *cobra.Command {
	var l limits
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check a store, and say what to do",
		Long: `Check a store: schema version, settings that durability depends on, size, clock,
leases of holders that did not renew or release them, overdue work, expired
records and tombstones that a sweeper should have removed. Each finding says
what to do. The exit code is 1 if something needs attention.

It reads all records once.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if l.skew <= 0 || l.grace <= 0 || l.tombstones <= 0 {
				return misused("--max-skew, --grace and --tombstones must be above 0")
			}
			return a.withStore(cmd.Context(), false, func(store persist.Store) error {
				return a.examine(cmd.Context(), store, l)
			})
		},
	}
	flags := cmd.Flags()
	flags.DurationVar(&l.skew, "max-skew", time.Second, "largest difference between the clocks of this machine and the store")
	flags.DurationVar(&l.grace, "grace", time.Hour, "how long due work, leases that ran out and expired records may wait")
	flags.DurationVar(&l.tombstones, "tombstones", 14*24*time.Hour, "how old tombstones may become")
	return cmd
}

// examine prints the findings, and returns an error with exit code 1 if one needs attention.
func (a *app) examine(ctx context.Context, store persist.Store, l limits) error {
	attention := 0
	for _, check := range []func(context.Context, persist.Store, limits) ([]finding, error){checkFacts, checkClock, checkRecords, checkTombstones} {
		findings, err := check(ctx, store, l)
		if err != nil {
			return err
		}
		for _, f := range findings {
			if !f.OK {
				attention++
			}
			if err := a.tell(f); err != nil {
				return err
			}
		}
	}
	if attention > 0 {
		return negative("%s attention", count(attention, "finding needs", "findings need"))
	}
	return nil
}

// tell prints a finding.
func (a *app) tell(f finding) error {
	if a.out.json {
		return a.out.value(f)
	}
	word, advice := "ok  ", ""
	if !f.OK {
		word, advice = "LOOK", "\n      "+f.Advice
	}
	return a.out.printf("%s  %s: %s%s\n", word, f.Check, f.Found, advice)
}

// checkFacts reports the schema version, the settings and the size.
func checkFacts(ctx context.Context, store persist.Store, _ limits) ([]finding, error) {
	d, err := describe(ctx, store)
	if errors.Is(err, persist.ErrUnsupported) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	findings := []finding{{Check: "schema", OK: true, Found: fmt.Sprintf("version %d, as this release needs", d.Schema)}}
	for _, s := range d.Settings {
		findings = append(findings, finding{"setting", s.Advice == "", s.Name + " = " + visible(s.Value), s.Advice})
	}
	records := 0
	for _, k := range d.Kinds {
		records += k.Records
	}
	return append(findings, finding{Check: "size", OK: true,
		Found: fmt.Sprintf("%.1f MiB, %s of %s", float64(d.Size)/(1<<20), count(records, "record", "records"), count(len(d.Kinds), "kind", "kinds"))}), nil
}

// checkClock compares the clocks of this machine and the store.
func checkClock(ctx context.Context, store persist.Store, l limits) ([]finding, error) {
	before := time.Now()
	_, now, err := floorOf(ctx, store)
	if err != nil {
		return nil, err
	}
	// The store read its clock between the two readings here, so a slow answer is no difference.
	skew := max(before.Sub(now), time.Until(now), 0).Round(time.Millisecond)
	f := finding{Check: "clock", OK: skew <= l.skew, Found: fmt.Sprintf("differs from the store by %s", skew)}
	if skew == 0 {
		f.Found = "same as the store's"
	}
	if !f.OK {
		f.Advice = "synchronize the clocks (NTP): leases, expiry and due times are judged by the store's clock"
	}
	return []finding{f}, nil
}

// waiting counts records that wait for something, and knows the one that has waited longest.
type waiting struct {
	n      int
	oldest persist.Record
	since  time.Time
}

// add counts a record that has waited since a time.
func (w *waiting) add(r persist.Record, since time.Time) {
	if w.n == 0 || since.Before(w.since) {
		w.oldest, w.since = r, since
	}
	w.n++
}

// finding returns the finding about the records.
func (w *waiting) finding(check, one, many, advice string) finding {
	if w.n == 0 {
		return finding{Check: check, OK: true, Found: "none"}
	}
	return finding{Check: check, Advice: advice,
		Found: fmt.Sprintf("%s, the first %s since %s", count(w.n, one, many), visible(w.oldest.Key.String()), stamp(w.since))}
}

// checkRecords looks for leases that ran out, overdue work and expired records.
func checkRecords(ctx context.Context, store persist.Store, l limits) ([]finding, error) {
	var leases, overdue, expired waiting
	look := func(records []persist.Record) error {
		for _, r := range records {
			latest := r.Now.Add(-l.grace)
			if r.Lease.Token != 0 && r.Lease.Until.Before(latest) && !isAnswered(r) {
				leases.add(r, r.Lease.Until)
			}
			if r.Expired(r.Now) {
				if r.Expires.Before(latest) {
					expired.add(r, r.Expires)
				}
				continue
			}
			if !r.Due.IsZero() && r.Due.Before(latest) && !r.Held(r.Now) {
				overdue.add(r, r.Due)
			}
		}
		return nil
	}
	for _, q := range []persist.Query{{}, {Expired: true}} {
		if err := each(ctx, store, q, look); err != nil {
			return nil, err
		}
	}
	holder := ""
	if leases.n > 0 {
		holder = " of " + visible(leases.oldest.Lease.Holder)
	}
	return []finding{
		leases.finding("leases", "lease"+holder+" ran out and was not released", "leases ran out and were not released",
			"the holders died or hang: see whether their processes run; another process takes over when it acquires the lease"),
		overdue.finding("due work", "record is due and not taken", "records are due and not taken",
			"see whether workers for these kinds run, and what they log (pawl ls KIND --due)"),
		expired.finding("expired", "record waits for a sweep", "records wait for a sweep",
			"run a pawl.Sweeper for these kinds; expired records take space only"),
	}, nil
}

// isAnswered reports whether r is the record of an idempotent request that has its response: the lease
// of such a record may run out, because no request asks for it again.
func isAnswered(r persist.Record) bool {
	var record struct{ Done bool }
	return r.Kind == "idempotency" && json.Unmarshal(r.Doc, &record) == nil && record.Done
}

// checkTombstones looks for tombstones that are old enough to be purged.
func checkTombstones(ctx context.Context, store persist.Store, l limits) ([]finding, error) {
	var old waiting
	err := each(ctx, store, persist.Query{Deleted: true, Age: l.tombstones}, func(records []persist.Record) error {
		for _, r := range records {
			old.add(r, r.Updated)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return []finding{old.finding("tombstones", "tombstone waits for a purge", "tombstones wait for a purge",
		"run a pawl.Sweeper for these kinds, whose SweeperConfig.Tombstones is how long they are kept")}, nil
}

// count returns a number with the right noun.
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
