package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl/persist"
)

// seenRecord is a record as --json prints it.
type seenRecord struct {
	persist.Record
	// State is "alive", "expired", "deleted" or "swept", which is deleted after it expired.
	State string `json:"state"`
	// Held says that the lease is live.
	Held bool `json:"held"`
	// Now is the store's time of the reading.
	Now time.Time `json:"now"`
}

func seen(r persist.Record) seenRecord {
	return seenRecord{Record: r, State: state(r), Held: r.Held(r.Now), Now: r.Now}
}

// state returns the state of a record for people.
func state(r persist.Record) string {
	switch {
	case r.Deleted && !r.Expires.IsZero():
		return "swept"
	case r.Deleted:
		return "deleted"
	case r.Expired(r.Now):
		return "expired"
	}
	return "alive"
}

func (a *app) getCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "get KIND/ID | KIND ID",
		Short: "Show a record: document, version, times, lease, recent commits",
		Long: `Show a record: document, version, times, lease, label and recent commits.
The exit code is 1 if there is no document: the record is absent, deleted or
expired.`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := keyOf(args)
			if err != nil {
				return err
			}
			return a.withStore(cmd.Context(), false, func(store persist.Store) error {
				r, err := store.Load(cmd.Context(), key)
				if errors.Is(err, persist.ErrNotFound) {
					return negative("%q: no record", key)
				}
				if err != nil {
					return fmt.Errorf("load %q: %w", key, err)
				}
				if err := a.show(r); err != nil {
					return err
				}
				if r.Gone(r.Now) {
					return negative("%q: %s", key, state(r))
				}
				return nil
			})
		},
	}
}

// show prints a record.
func (a *app) show(r persist.Record) error {
	if a.out.json {
		return a.out.value(seen(r))
	}
	table := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	line := func(name, value string) { fmt.Fprintf(table, "%s\t%s\n", name, value) }
	line("kind", visible(r.Kind))
	line("id", visible(r.ID))
	line("state", state(r))
	line("version", fmt.Sprintf("%d (born at %d, schema %d)", r.Version, r.Born, r.Schema))
	line("updated", stamp(r.Updated))
	line("label", dash(r.Label))
	line("due", stamp(r.Due))
	line("expires", stamp(r.Expires))
	line("lease", lease(r))
	for i, id := range r.Commits {
		name := ""
		if i == 0 {
			name = "commits"
		}
		line(name, visible(id))
	}
	if err := table.Flush(); err != nil || len(r.Doc) == 0 {
		return outputError(err)
	}
	var doc bytes.Buffer
	if err := json.Indent(&doc, r.Doc, "", "  "); err != nil {
		return fmt.Errorf("document of %q: %w", r.Key, err)
	}
	return a.out.printf("\n%s\n", visibleJSON(doc.Bytes()))
}
