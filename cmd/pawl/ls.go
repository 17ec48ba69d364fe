package main

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl/persist"
)

func (a *app) lsCommand() *cobra.Command {
	var q persist.Query
	var held bool
	cmd := &cobra.Command{
		Use:   "ls [KIND]",
		Short: "List the kinds of a store, or the records of a kind",
		Long: `List the kinds of a store with the number of their records, or the records of a
kind in the order of their ids; with --due in the order of their due times.

The number of records includes tombstones and expired records, because it is
read from an index.`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: a.completeKinds,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				if q.Prefix != "" || q.Labels != nil || q.Due || held || q.Expired || q.Deleted || q.Limit != 0 {
					return misused("name a KIND: these flags select records")
				}
				return a.withStore(cmd.Context(), false, func(store persist.Store) error { return a.listKinds(cmd.Context(), store) })
			}
			if args[0] == "" || q.Limit < 0 {
				return misused("KIND must not be empty, and --limit not negative")
			}
			q.Kind = args[0]
			return a.withStore(cmd.Context(), false, func(store persist.Store) error {
				return a.listRecords(cmd.Context(), store, q, held)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&q.Prefix, "prefix", "", "only ids that start with this")
	flags.StringArrayVar(&q.Labels, "label", nil, "only records with this label; repeat it for others")
	flags.BoolVar(&q.Due, "due", false, "only records whose due time has come")
	flags.BoolVar(&held, "held", false, "only records with a live lease")
	flags.BoolVar(&q.Expired, "expired", false, "only expired records")
	flags.BoolVar(&q.Deleted, "deleted", false, "only tombstones")
	flags.IntVar(&q.Limit, "limit", 0, "at most this many records (0: all)")
	cmd.MarkFlagsMutuallyExclusive("held", "expired", "deleted")
	return cmd
}

// listKinds prints the kinds of a store.
func (a *app) listKinds(ctx context.Context, store persist.Store) error {
	d, err := describe(ctx, store)
	if errors.Is(err, persist.ErrUnsupported) {
		return negative("this store cannot list its kinds; name a KIND")
	}
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	if !a.out.json && len(d.Kinds) > 0 {
		fmt.Fprintln(table, "KIND\tRECORDS\tTOMBSTONES")
	}
	for _, k := range d.Kinds {
		if a.out.json {
			if err := a.out.value(k); err != nil {
				return err
			}
			continue
		}
		tombstones := "?"
		if k.Tombstones >= 0 {
			tombstones = fmt.Sprint(k.Tombstones)
		}
		fmt.Fprintf(table, "%s\t%d\t%s\n", visible(k.Kind), k.Records, tombstones)
	}
	return outputError(table.Flush())
}

// errEnough ends a listing.
var errEnough = errors.New("enough records")

// listRecords prints the records that match q, and with held only those with a live lease.
func (a *app) listRecords(ctx context.Context, store persist.Store, q persist.Query, held bool) error {
	limit, printed := q.Limit, 0
	q.Limit = 0
	table := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	err := each(ctx, store, q, func(records []persist.Record) error {
		for _, r := range records {
			if held && !r.Held(r.Now) {
				continue
			}
			if printed++; limit > 0 && printed > limit {
				return errEnough
			}
			if a.out.json {
				if err := a.out.value(seen(r)); err != nil {
					return err
				}
				continue
			}
			if printed == 1 {
				fmt.Fprintln(table, "ID\tVERSION\tUPDATED\tLABEL\tDUE\tEXPIRES\tLEASE")
			}
			fmt.Fprintf(table, "%s\t%d\t%s\t%s\t%s\t%s\t%s\n", visible(r.ID), r.Version, stamp(r.Updated), dash(r.Label), stamp(r.Due), stamp(r.Expires), lease(r))
		}
		return outputError(table.Flush())
	})
	if errors.Is(err, errEnough) {
		err = nil
	}
	return errors.Join(err, outputError(table.Flush()))
}

// dash returns a name for a table.
func dash(name string) string {
	if name == "" {
		return "-"
	}
	return visible(name)
}

// lease returns the lease of a record for people.
func lease(r persist.Record) string {
	switch {
	case r.Lease.Token == 0:
		return "-"
	case !r.Held(r.Now):
		return "ran out: " + visible(r.Lease.Holder)
	}
	return visible(r.Lease.Holder) + " until " + stamp(r.Lease.Until)
}
