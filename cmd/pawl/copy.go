package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/pawl-go/pawl/persist"
)

const again = "\nRun the same command again to continue; records that are there already are not copied again."

func (a *app) copyCommand() *cobra.Command {
	var opts persist.CopyOptions
	cmd := &cobra.Command{
		Use:   "copy FROM TO",
		Short: "Copy a store to another one, and compare both",
		Long: `Copy every record and log entry of a store to another one, and compare both. FROM
and TO are locations as for --store. TO is created if it is missing.

The target must be empty, or hold nothing but an earlier copy of the source:
every record is in the source, not newer there, and written by the same
processes. Otherwise nothing is written, and the exit code is 1.

A copy that was interrupted or killed is continued by the same command. For a
large store, run it with --skip-verify while the application works, stop all
writers, and run it again without.`,
		Example: `  pawl copy sqlite:chat.db postgres://ann:secret@localhost/chat`,
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case args[0] == args[1]:
				return misused("source and target are the same store")
			case opts.PageSize < 1 || opts.MaxSkew <= 0:
				return misused("--page-size and --max-skew must be above 0")
			}
			if err := a.schemes.Check(args[1]); err != nil { // before the source is opened
				return err
			}
			return a.with(cmd.Context(), args[0], false, func(from persist.Store) error {
				return a.with(cmd.Context(), args[1], true, func(to persist.Store) error {
					if err := checkTarget(cmd.Context(), from, to, false); err != nil {
						return err
					}
					return a.copy(cmd.Context(), from, to, opts)
				})
			})
		},
	}
	cmd.ValidArgsFunction = a.completeSchemes
	flags := cmd.Flags()
	flags.BoolVar(&opts.SkipVerify, "skip-verify", false, "do not compare the stores at the end")
	flags.DurationVar(&opts.MaxSkew, "max-skew", time.Second, "largest difference between the clocks of the stores")
	flags.IntVar(&opts.PageSize, "page-size", 500, "records read and written at a time")
	return cmd
}

// completeSchemes completes the scheme of a location.
func (a *app) completeSchemes(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var schemes []string
	for scheme := range a.schemes {
		schemes = append(schemes, scheme+":")
	}
	return schemes, cobra.ShellCompDirectiveNoSpace
}

// copy copies a store and prints the report.
func (a *app) copy(ctx context.Context, from, to persist.Store, opts persist.CopyOptions) error {
	finish := a.showProgress(ctx, from, &opts)
	report, err := persist.Copy(ctx, from, to, opts)
	finish()
	if err != nil {
		if report.Differing+report.Logs.Differing > 0 {
			a.hint = again + " Stop the writers of the source first."
			return errors.Join(a.report(report), &codedError{exitNegative, err})
		}
		a.hint = again
		return err
	}
	return a.report(report)
}

// report prints what was copied.
func (a *app) report(r persist.CopyReport) error {
	if a.out.json {
		return a.out.value(r)
	}
	for _, d := range r.Differences {
		if err := a.out.printf("differs: %s: %s\n", visible(d.Key.String()), visibleText(d.Reason)); err != nil {
			return err
		}
	}
	return a.out.printf("records: %d copied, %d unchanged, %d verified, %d differ\nlog entries: %d copied, %d unchanged, %d removed, %d verified, %d differ\n",
		r.Copied, r.Unchanged, r.Verified, r.Differing,
		r.Logs.Copied, r.Logs.Unchanged, r.Logs.Removed, r.Logs.Verified, r.Logs.Differing)
}

// showProgress shows a bar on standard error if that is a terminal. It counts the records that are
// copied and those that are compared. The result ends the bar.
func (a *app) showProgress(ctx context.Context, from persist.Store, opts *persist.CopyOptions) (finish func()) {
	if a.out.json || !isTerminal(a.errOut) {
		return func() {}
	}
	total := -1 // a spinner
	if d, err := describe(ctx, from); err == nil {
		total = 0
		for _, k := range d.Kinds {
			if !persist.IsLogKind(k.Kind) {
				total += k.Records
			}
		}
		if !opts.SkipVerify {
			total *= 2
		}
	}
	bar := progressbar.NewOptions(total, progressbar.OptionSetWriter(a.errOut), progressbar.OptionShowCount(),
		progressbar.OptionSetDescription("copying"), progressbar.OptionClearOnFinish(), progressbar.OptionSetRenderBlankState(true), progressbar.OptionThrottle(100*time.Millisecond))
	opts.Progress = func(r persist.CopyReport) {
		if r.Verified > 0 {
			bar.Describe("comparing")
		}
		_ = bar.Set(bounded(r.Copied+r.Unchanged+r.Verified, total))
	}
	return func() { _ = bar.Finish() }
}

// bounded returns n, at most total. New records may come while the source is copied.
func bounded(n, total int) int {
	if total < 0 {
		return n
	}
	return min(n, total)
}

// temporary returns an error of a store that the command made for itself.
func temporary(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("temporary store: %w", err)
}
