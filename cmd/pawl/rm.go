package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl/internal/commit"
	"github.com/pawl-go/pawl/persist"
)

// settling is how long rm tries to learn the outcome of a commit whose answer was lost.
const settling = 30 * time.Second

func (a *app) rmCommand() *cobra.Command {
	var version uint64
	var force bool
	cmd := &cobra.Command{
		Use:   "rm KIND/ID | KIND ID",
		Short: "Delete a record, with its log, and leave a tombstone",
		Long: `Delete a record, with its log, and leave a tombstone that keeps the version. The
delete applies to the version that was read: a change of another process
meanwhile makes it fail with exit code 1. A record with a live lease is deleted
only with --force; its holder then loses the lease.`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := keyOf(args)
			switch {
			case err != nil:
				return err
			case persist.IsLogKind(key.Kind):
				return misused("%q is part of a log; delete the record of the log", key)
			case cmd.Flags().Changed("if-version") && version == 0:
				return misused("--if-version must be above 0")
			}
			return a.withStore(cmd.Context(), false, func(store persist.Store) error {
				return a.remove(cmd.Context(), store, key, version, force)
			})
		},
	}
	cmd.Flags().Uint64Var(&version, "if-version", 0, "delete only this version")
	cmd.Flags().BoolVar(&force, "force", false, "delete also while the record has a live lease")
	return cmd
}

// remove deletes the record of key. Version, if it is not 0, must be the current version.
func (a *app) remove(ctx context.Context, store persist.Store, key persist.Key, version uint64, force bool) error {
	r, err := store.Load(ctx, key)
	switch {
	case errors.Is(err, persist.ErrNotFound):
		return negative("%q: no record", key)
	case err != nil:
		return fmt.Errorf("load %q: %w", key, err)
	case r.Gone(r.Now):
		return negative("%q: %s already", key, state(r))
	case version != 0 && r.Version != version:
		return negative("%q: version is %d, not %d", key, r.Version, version)
	case r.Held(r.Now) && !force:
		return negative("%q: leased by %q until %s; --force deletes it anyway", key, r.Lease.Holder, stamp(r.Lease.Until))
	}
	deletion := persist.Write{
		Key: key, Expected: r.Version, Version: r.Version + 1, Deleted: true,
		Log: &persist.LogWrite{Clear: true}, Recent: r.Commits,
	}
	c := persist.Commit{ID: "pawl.cli-" + rand.Text() + ".1", Writes: []persist.Write{deletion}}
	// From here on an interrupt does not keep rm from learning the outcome.
	sending, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.settling)
	defer cancel()
	verdict := commit.Send(sending, commit.Route{Store: persist.Logs(store)},
		commit.Backoff{First: 10 * time.Millisecond, Max: time.Second}, c, []commit.Base{{Born: r.Born}})
	switch verdict.Kind {
	case commit.Landed:
	case commit.Lost, commit.Fenced:
		return negative("%q: changed by another process meanwhile; nothing was deleted", key)
	case commit.Unknown:
		return &codedError{exitUnknown, fmt.Errorf("%q: not known whether it was deleted: %w; look with pawl get", key, verdict.Cause)}
	default:
		return fmt.Errorf("%q: nothing was deleted: %w", key, verdict.Cause)
	}
	if a.out.json {
		return a.out.value(struct {
			persist.Key
			Version uint64 `json:"version"`
			Deleted bool   `json:"deleted"`
		}{key, r.Version + 1, true})
	}
	return a.out.printf("deleted %s at version %d\n", visible(key.String()), r.Version+1)
}
