package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	core "github.com/pawl-go/pawl"
	"github.com/pawl-go/pawl/erase"
	"github.com/pawl-go/pawl/persist"
)

func (a *app) eraseCommand() *cobra.Command {
	var s erase.Subject
	var kinds, labels []string
	var yes, force bool
	cmd := &cobra.Command{
		Use:   "erase",
		Short: "List everything about one user or tenant, and delete it with --yes",
		Long: `List everything that a store has about one user or tenant, and delete it with
--yes: records of all kinds, streams with their events, positions of reactions
and snapshots, runs with their signals, finished batch jobs with their items,
after-effects of an entity, and idempotency records of a principal.

A record with a live lease is left, with all records that belong to it, and the
exit code is 1; so is a batch job that is not finished. --force deletes them,
and their holders lose the lease. After an interruption or an error, run the
same command again. Stop the writers of the user's data first: a record that is
created while the command ends may stay.`,
		Example: `  pawl erase --id ann --prefix ann/ --principal ann
  pawl erase --id ann --prefix ann/ --principal ann --yes
  pawl erase --kind session --kind stream --prefix tenant7/ --yes --json
  pawl erase --label 'order=of tenant7'`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if force && !yes {
				return misused("--force needs --yes")
			}
			labeled, err := labeledParts(labels)
			if err != nil {
				return err
			}
			named := len(s.IDs)+len(s.Prefixes)+len(s.Workspaces)+len(s.Principals) > 0
			if !named && (len(labeled) == 0 || len(kinds) > 0) {
				return misused("name the user: --id, --prefix, --workspace, --principal, or --label without --kind")
			}
			return a.withStore(cmd.Context(), false, func(store persist.Store) error {
				parts := labeled
				if named {
					found, err := erase.Parts(cmd.Context(), store, s, kinds...)
					if err != nil {
						return argument(err)
					}
					parts = append(found, labeled...)
				}
				if yes {
					return a.erase(cmd.Context(), store, parts, force)
				}
				return a.listErasable(cmd.Context(), store, parts)
			})
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVar(&s.IDs, "id", nil, "id of the user's records, streams, runs or jobs; repeat it for others")
	flags.StringArrayVar(&s.Prefixes, "prefix", nil, "what such ids start with, separator included")
	flags.StringArrayVar(&s.Workspaces, "workspace", nil, "workspace of runs")
	flags.StringArrayVar(&s.Principals, "principal", nil, "principal of idempotency records")
	flags.StringArrayVar(&labels, "label", nil, "KIND=LABEL: records of a kind with a label")
	flags.StringArrayVar(&kinds, "kind", nil, "only this kind, also for --workspace (kind run) and --principal (kind idempotency); repeat it for others (default all)")
	flags.BoolVar(&yes, "yes", false, "delete; without it, only list")
	flags.BoolVar(&force, "force", false, "delete also records that are leased, and unfinished batch jobs")
	return cmd
}

// labeledParts returns the parts of --label.
func labeledParts(labels []string) (parts []erase.Part, err error) {
	for _, text := range labels {
		kind, label, ok := strings.Cut(text, "=")
		if !ok || kind == "" || label == "" || persist.IsLogKind(kind) {
			return nil, misused("--label wants KIND=LABEL, got %q", text)
		}
		parts = append(parts, erase.Labeled(kind, label))
	}
	return parts, nil
}

// argument returns err with exit code 2 if it is about an argument.
func argument(err error) error {
	if _, ok := errors.AsType[*core.ArgumentError](err); ok {
		return &codedError{exitUsage, err}
	}
	return err
}

// erasable is a record that erase lists, deletes or leaves, as --json prints it.
type erasable struct {
	persist.Key
	Part    string `json:"part"`
	Version uint64 `json:"version,omitempty"`
	Deleted bool   `json:"deleted"`
	// Left says why the record is left.
	Left string `json:"left,omitempty"`
}

// listErasable prints what erase would delete and leave.
func (a *app) listErasable(ctx context.Context, store persist.Store, parts []erase.Part) error {
	table := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	found, left := 0, 0
	for f, err := range erase.List(ctx, store, parts) {
		if err != nil {
			return errors.Join(err, outputError(table.Flush()))
		}
		if found++; f.Left != "" {
			left++
		}
		if a.out.json {
			if err := a.out.value(erasable{Key: f.Key, Part: f.Part, Version: f.Version, Left: f.Left}); err != nil {
				return err
			}
			continue
		}
		if found == 1 {
			fmt.Fprintln(table, "KIND\tID\tVERSION\tUPDATED\tKEPT")
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\n", visible(f.Kind), visible(f.ID), f.Version, stamp(f.Updated), dash(f.Left))
	}
	if err := table.Flush(); err != nil {
		return outputError(err)
	}
	fmt.Fprintf(a.errOut, "pawl: %s found, %d of them to be kept; nothing was deleted (--yes deletes)\n", count(found, "record", "records"), left)
	return nil
}

// erase deletes the records of parts and prints them.
func (a *app) erase(ctx context.Context, store persist.Store, parts []erase.Part, force bool) error {
	var failed error // of the output: the erasure goes on without it
	tell := func(e erasable) {
		if failed != nil {
			return
		}
		switch {
		case a.out.json:
			failed = a.out.value(e)
		case e.Deleted:
			failed = a.out.printf("deleted %s\n", visible(e.Key.String()))
		default:
			failed = a.out.printf("kept %s: %s\n", visible(e.Key.String()), visibleText(e.Left))
		}
	}
	report, err := erase.Erase(ctx, store, parts, erase.Options{Force: force, Deleted: func(part string, key persist.Key) {
		tell(erasable{Key: key, Part: part, Deleted: true})
	}})
	for _, f := range report.Left {
		tell(erasable{Key: f.Key, Part: f.Part, Version: f.Version, Left: f.Left})
	}
	switch {
	case errors.Is(err, erase.ErrLeft):
		err = &codedError{exitNegative, err}
		a.hint = "; run the same command again when leases and jobs have ended"
	case err != nil:
		a.hint = "; run the same command again"
	}
	fmt.Fprintf(a.errOut, "pawl: %s deleted, %d kept\n", count(report.Deleted, "record", "records"), len(report.Left))
	return errors.Join(err, failed)
}
